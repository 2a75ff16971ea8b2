"""`metamirror evaluate`: a run, or a learner that was saved, on fixed tasks of a split."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from metamirror.console import warn
from metamirror.core import metrics
from metamirror.core.checks import are_labels
from metamirror.core.files import file_name, write_json
from metamirror.core.import_path import NOTHING
from metamirror.core.learner import Learner
from metamirror.core.metrics import described
from metamirror.core.settings import Norm
from metamirror.data import TaskStream
from metamirror.storage import learner_file
from metamirror.training.config import RunConfig, load_config
from metamirror.training.distributed import joined_ranks
from metamirror.training.evaluate import evaluate_stream
from metamirror.training.factory import build_stream, use_precision
from metamirror.training.run_folder import recorded
from metamirror.training.task_results import TaskResult, summary, write_tasks
from metamirror.training.user_modules import check_method

FOLDER = "evaluations"


def evaluate_run(
    run: Path,
    *,
    split: str = "test",
    tasks: int = 600,
    steps: int | None = None,
    norm: Norm | None = None,
    data: str | None = None,
    image_size: int | None = None,
    ways: int | None = None,
    shots: int | None = None,
    queries: int | None = None,
    metric: str | None = None,
    which: Literal["best", "last"] = "best",
    every_step: bool = True,
    device: str = "auto",
    data_dir: Path | None = None,
) -> dict[str, object]:
    """Evaluate a run; return the fields that `metamirror evaluate --json` prints.

    The result is written to `RUN/evaluations`, with the results of every task in a file beside it.

    Args:
        run: the run folder, or one that `metamirror.save` wrote.
        split: train, val or test.
        tasks: how many tasks; always the first ones of the split.
        steps: inner steps, if other than in training.
        norm: which statistics normalise the query, if others than in training.
        data: the data set, if other than in training; a learner that was saved has none.
        image_size: height and width of the images, if other than in training.
        ways: classes of a task, if others than in training; the head must be computed from the
            examples for that, as protonet's, r2d2's and that of maml:start=ridge are.
        shots: labelled examples a class, if others than in training.
        queries: query examples a class, if others than in training.
        metric: accuracy, iou, f1, mse, mae, r2, or your own, package.module:function, in place of
            the run's.
        which: the learner with the best validation score, or the last one.
        every_step: predict after each of the steps 0..K, or, in less than half the time, after the
            last alone.
        device: auto (CUDA, MPS or CPU, in this order), or one of them.
        data_dir: where the data are, if not in the usual place.
    """
    if tasks < 2:
        raise ValueError(f"tasks is {tasks}; an interval needs at least 2")
    if not run.is_dir():
        raise ValueError(f"there is no run folder {run}")
    learner, step = loaded(run, which)
    trained = _trained(run, learner, data, ways)
    asked: dict[str, Any] = {"data": data, "image_size": image_size}
    asked |= {"shots": shots, "queries": queries}
    config = replace(trained, **{key: value for key, value in asked.items() if value is not None})
    use_precision(learner, config)
    if ways is not None and ways != config.ways:
        check_ways(learner, config, ways, steps)
        config = replace(config, ways=ways)
    if norm is not None:
        learner.configure(norm=norm)
    if metric is not None:
        learner.configure(metric=metrics.make(metric))
    with joined_ranks(device) as ranks:
        stream = build_stream(config, split, batch=1, data_dir=data_dir)
        if ranks.first and data is None:
            warn_of_other_data(run, config.data, stream)
        if not ranks.agree(step or 0):
            raise ValueError(f"{run} is still being trained: evaluate it when it has ended")
        learner = learner.to(ranks.device)
        results = evaluate_stream(
            learner, stream, tasks, steps=steps, every_step=every_step, ranks=ranks
        )
        first = ranks.first
        ranks.part()
    last = learner.steps_of(steps)
    points = range(last + 1) if every_step else (last,)
    labels = are_labels(stream.task(0, 0).query.y)
    found: dict[str, object] = {
        "method": config.method,
        "data": config.data,
        "split": split,
        "ways": config.ways if labels else None,
        "trained_ways": trained.ways if labels else None,
        "shots": config.shots,
        "queries": config.queries,
        "steps": last,
        "norm": learner.norm,
        "autocast": config.autocast,
        "tasks": tasks,
        "seed": config.seed,
        "which": which,
        "step": config.iterations if step is None and is_run(run) else step,
        **described(results[0].metric),
        **summary(results),
        "by_step": [{"k": k, **summary(results, i)} for i, k in enumerate(points)],
    }
    if first:
        other = {key: value for key, value in {**asked, "metric": metric}.items() if value}
        _keep(run / FOLDER, evaluation_name(found, other), found, results)
    return found


def _trained(run: Path, learner: Learner, data: str | None, ways: int | None) -> RunConfig:
    """Return the settings of a run; of a learner that was saved, what is known of it."""
    if is_run(run):
        return load_config(run)
    if data is None:
        raise ValueError(
            f"{run} is a learner without a run, which does not say on what it was trained: add "
            f"--data, and --ways, --shots and --queries where they are not 5, 1 and 15"
        )
    assert learner.config is not None
    norm = learner.settings.norm
    config = RunConfig(learner.config["method"], data=data, steps=learner.steps, norm=norm)
    return config if ways is None else replace(config, ways=ways)


def is_run(folder: Path) -> bool:
    """Return whether a folder holds a run, and not a learner alone."""
    return (folder / "config.json").is_file()


def check_ways(learner: Learner, config: RunConfig, ways: int, steps: int | None) -> None:
    """Refuse another number of classes than was trained where the learner cannot serve it."""
    if not learner.fits_any_outputs(steps):
        raise ValueError(
            f"ways is {ways}, and the head and geometry of {config.method} are made for the "
            f"{config.ways} of training: train with --ways {ways}, or a method whose head is "
            f"computed, such as protonet or maml:start=prototypes"
        )


def _keep(folder: Path, name: str, found: dict[str, object], results: list[TaskResult]) -> None:
    if odd := sum(not math.isfinite(r.loss) for r in results):
        steps = found["steps"]
        warn(f"the loss of {odd} of {len(results)} tasks is not finite after {steps} steps")
    try:
        folder.mkdir(exist_ok=True)
        write_tasks(folder / f"{name}.jsonl", results)
        write_json(folder / f"{name}.json", found)
    except OSError as error:
        # The result is what was asked for: it is printed all the same.
        warn(f"the results of single tasks are not kept: {error}")


def warn_of_other_data(run: Path, data: str, stream: TaskStream) -> None:
    """Warn where a run is evaluated on other data than it was trained on."""
    if recorded(run).get("data", stream.identity) != stream.identity:
        warn(
            f"{data} is not what {run} was trained on: images or classes have changed since, and "
            f"some may have been seen in training"
        )


def loaded(run: Path, which: Literal["best", "last"]) -> tuple[Learner, int | None]:
    """Load a learner and its step, even while a process trains on and replaces both."""
    if is_run(run):
        check_method(load_config(run))
    while True:
        before = learner_file.step_of(run, which)
        learner = learner_file.load(run, which=which)
        if learner_file.step_of(run, which) == before:
            return learner, before


def evaluation_name(found: Mapping[str, object], other: Mapping[str, object] = NOTHING) -> str:
    """Return a result's name in `RUN/evaluations`: all that may differ from one to the next.

    `other` has what was asked for in place of the run's own.
    """
    name = "{split}-{which}-{tasks}tasks-{steps}steps-{norm}-{queries}queries".format(**found)
    if found["ways"] != found["trained_ways"]:
        name += f"-{found['ways']}ways"
    words = [f"-{key}-{value}" for key, value in other.items() if key != "queries"]
    return name + file_name("".join(words))
