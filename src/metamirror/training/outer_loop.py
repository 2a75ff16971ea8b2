"""Algorithm 1 of the paper: the outer loop, read from top to bottom."""

from metamirror.console import Progress, say
from metamirror.training.interrupts import InterruptedRun, Interrupts
from metamirror.training.outer_step import clip, decay, descend
from metamirror.training.run import Run


def outer_loop(run: Run, interrupts: Interrupts, title: str) -> None:
    """Take the outer steps that a run has left; save it, also where it is interrupted."""
    config, learner, ranks = run.config, run.learner, run.ranks
    count, done = config.iterations, run.state.step
    with Progress(title, count, done=done, quiet=not ranks.first) as progress:
        for step in range(done, count):
            stop = interrupts.received is not None
            # A function of the step: a resumed run, and every rank, has the same.
            learner.progress = step / count
            gradient = run.source.gradient(step, stop=stop)
            if gradient.finite:
                run.count(gradient)
                clip(gradient.flat, config)
                descend(run.optimizer, gradient.flat, decay(config, step))
            else:
                run.skip(step, gradient)
            run.state.step = step + 1
            collapsed = run.watch(gradient)
            last = run.state.step == count
            run.log(last)
            progress.update(run.state.step, run.note(gradient))
            if collapsed and config.on_collapse == "stop":
                run.give_up(collapsed)
            if last or gradient.stop or run.state.step % config.checkpoint_every == 0:
                run.save()
            if gradient.stop and not last:
                if ranks.first:
                    say(f"stopped after step {step + 1}; continue with --resume --out {run.out}")
                ranks.part()
                raise InterruptedRun(interrupts.received or 2)
    ranks.part()
    run.check_end()
    learner.progress = 1.0
