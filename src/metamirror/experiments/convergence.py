"""The paper's Figure 1: support loss and gradient norm against the inner step k, on new tasks."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from metamirror.console import warn
from metamirror.core.checks import check_steps
from metamirror.core.files import file_name
from metamirror.core.metrics import Metric, described
from metamirror.core.option_spec import parse_spec
from metamirror.data import TaskStream
from metamirror.experiments import inner_paths
from metamirror.experiments.comparison.commands import Command
from metamirror.experiments.comparison.jobs import Job, read_record
from metamirror.experiments.comparison.launchers.launcher import Launcher
from metamirror.experiments.comparison.status_board import StatusBoard
from metamirror.experiments.inner_paths import Paths
from metamirror.experiments.statistics import BASELINE, Estimate, estimate, half_of_sum
from metamirror.methods import find_method
from metamirror.storage import learner_file
from metamirror.training.config import RunConfig, labels_of, load_config
from metamirror.training.device import choose_device
from metamirror.training.distributed import Ranks
from metamirror.training.evaluate_run import loaded
from metamirror.training.factory import build_stream

COMPARABLE = (0.5, 2.0)
"""Within these ratios to MAML's, gradient norms at k = 0 count as comparable."""


@dataclass(frozen=True)
class Curve:
    """Runs that differ in nothing but their seed."""

    label: str  # the method, with the settings in which other curves of that method differ
    runs: dict[int, Path]  # the run folders by seed
    config: RunConfig  # of the first of them

    @property
    def steps(self) -> int:
        """K, with which they were trained."""
        return find_method(self.config.method)[0].own_settings(self.config.steps, None)[0]


@dataclass(frozen=True)
class Measured:
    """What a curve's runs did on the same tasks: each tensor is (seeds, tasks, k = 0..N)."""

    curve: Curve
    support_loss: Tensor
    grad_norm: Tensor
    query: Tensor


def convergence(
    runs: Sequence[Path],
    *,
    tasks: int = 1000,
    steps: int | None = None,
    split: str = "test",
    which: Literal["best", "last"] = "best",
    device: str = "auto",
    data_dir: Path | None = None,
    on_curve: Callable[[dict[str, Any]], None] = lambda found: None,
    launcher: Launcher | None = None,
    out: Path = Path(),
) -> dict[str, Any]:
    """Measure runs on the same new tasks; return what `metamirror convergence --json` prints.

    Args:
        runs: run folders, on the same data with the same ways and shots; those that differ in their
            seed alone become one curve.
        tasks: how many tasks; always the first ones of the split.
        steps: N, the last k that is looked at; by default twice the largest trained K.
        split: train, val or test.
        which: the learner with the best validation score, or the last one.
        device: auto (CUDA, MPS or CPU, in this order), or one of them.
        data_dir: where the data are, if not in the usual place.
        on_curve: called after each curve with what is known by then, such as to write it.
        launcher: where runs are measured, if not in this process.
        out: a folder for the jobs of the launcher.
    """
    if tasks < 2:
        raise ValueError(f"tasks is {tasks}; an interval needs at least 2")
    curves = with_inner_loop(group(runs), which)
    streams = {
        run: build_stream(load_config(run), split, batch=1, data_dir=data_dir)
        for curve in curves
        for run in curve.runs.values()
    }
    protocol = same_tasks(streams)
    last = 2 * max(c.steps for c in curves) if steps is None else check_steps(steps)
    last = max(last, 1)
    protocol |= {"split": split, "tasks": tasks, "steps": last, "which": which}
    for run in streams:
        step, iterations = learner_file.step_of(run, "last"), load_config(run).iterations
        if step is not None and step < iterations:
            warn(f"{run} is not finished: it stands at {step} of {iterations} iterations")

    common: dict[str, Any] = {"tasks": tasks, "steps": last, "which": which}

    def measure(run: Path, title: str) -> Paths:
        if launcher is not None:
            return inner_paths.read(files[run])
        ranks = Ranks(choose_device(device))
        return inner_paths.measure(run, streams[run], ranks=ranks, title=title, **common)

    files: dict[Path, Path] = {}
    if launcher is None:
        choose_device(device)
    else:
        data = None if data_dir is None else str(data_dir.absolute())
        place = (str(out.absolute()), device, data)
        files = _measure_elsewhere(list(streams), split, common, place, launcher)
    measured: list[Measured] = []
    found: dict[str, Any] = {}
    for done, curve in enumerate(curves, start=1):
        title = f"convergence {done}/{len(curves)}: "
        each = [measure(run, title + run.name) for run in curve.runs.values()]
        measured.append(Measured(curve, *torch.stack([values for _, values in each]).unbind(1)))
        found = describe(measured, protocol, each[0][0])
        found["missing"] = [c.label for c in curves[done:]]
        on_curve(found)
    return found


def _measure_elsewhere(
    runs: Sequence[Path],
    split: str,
    common: dict[str, Any],
    place: tuple[str, str, str | None],
    launcher: Launcher,
) -> dict[Path, Path]:
    """Measure runs by a launcher, but for those that were measured before; return their files."""
    jobs: dict[Path, Job] = {}
    for i, run in enumerate(runs):
        own = {**common, "step": learner_file.step_of(run, common["which"])}
        del own["tasks"]
        config, folder = asdict(load_config(run)), str(run.absolute())
        name = f"convergence-{i}-{file_name(run.name)}"
        job = Job(name, "convergence", folder, config, split, common["tasks"], *place, options=own)
        jobs[run] = job
    every = list(jobs.values())
    there = [job for job in every if job.file("safetensors").is_file()]
    records = {j.name: r for j in there if (r := read_record(j)) is not None and r.done}
    with (
        Command(Path(place[0])) as command,
        StatusBoard("convergence", every, records, command) as board,
    ):
        launcher.run([job for job in every if job.name not in records], board)
    for run, job in jobs.items():
        if not records[job.name].done:
            raise ValueError(f"{run} was not measured: {records[job.name].reason}")
    return {run: job.file("safetensors") for run, job in jobs.items()}


def group(runs: Sequence[Path]) -> list[Curve]:
    """Return runs as curves, in the order given; seeds of the same settings are one curve."""
    if not runs:
        raise ValueError("no run is given: name at least one run folder")
    together: dict[RunConfig, dict[int, Path]] = {}
    for run in runs:
        config = load_config(run)
        seeds = together.setdefault(replace(config, seed=0), {})
        if config.seed in seeds:
            raise ValueError(
                f"{seeds[config.seed]} and {run} are runs of the same settings and seed "
                f"({config.seed}): give each of them once"
            )
        seeds[config.seed] = run
    labels = labels_of(together)
    return [Curve(labels[config], seeds, config) for config, seeds in together.items()]


def with_inner_loop(curves: list[Curve], which: Literal["best", "last"]) -> list[Curve]:
    """Return the curves of methods that take inner steps; say of the others that they do not."""
    found = []
    for curve in curves:
        learner, _ = loaded(next(iter(curve.runs.values())), which)
        if learner.geometry.descends:
            found.append(curve)
        else:
            warn(f"{curve.label} is left out: it has no inner loop, and so nothing to converge")
    if not found:
        raise ValueError("no run has an inner loop whose convergence could be shown: add others")
    return found


def same_tasks(streams: dict[Path, TaskStream]) -> dict[str, Any]:
    """Return what decides the tasks and the measure; refuse runs in which it differs."""
    protocols = {}
    for run, stream in streams.items():
        config = load_config(run)
        regression = stream.task(0, 0).query.y.is_floating_point()
        protocols[run] = {
            "data": config.data,
            "ways": None if regression else config.ways if stream.ragged else stream.outputs,
            "shots": config.shots if stream.ragged else stream.shots,
            "queries": stream.queries,
            "example": "x".join(map(str, stream.example_shape)),
            "norm": config.norm,
        }
    (first, expected), *others = protocols.items()
    for run, protocol in others:
        for key, value in protocol.items():
            if value != expected[key]:
                raise ValueError(
                    f"{run} has {key} {value} and {first} has {expected[key]}: runs on different "
                    f"tasks cannot be compared; give those that agree in {', '.join(expected)}"
                )
    return expected


def describe(measured: list[Measured], protocol: dict[str, Any], measure: Metric) -> dict[str, Any]:
    """Return every curve with its intervals, and the paper's observations against MAML's."""
    known = (m for m in measured if parse_spec(m.curve.config.method)[0] == BASELINE)
    reference = next(known, None)
    return {
        "protocol": protocol,
        "measure": measure.name,
        **described(measure),
        "reference": None if reference is None else reference.curve.label,
        "comparable": list(COMPARABLE),
        "curves": [
            {
                "label": m.curve.label,
                "method": m.curve.config.method,
                "runs": [str(run) for run in m.curve.runs.values()],
                "seeds": list(m.curve.runs),
                "trained_steps": m.curve.steps,
                "points": _points(m, measure.name),
                **(_observations(m, reference) if reference else {}),
            }
            for m in measured
        ],
    }


def _points(measured: Measured, measure: str) -> list[dict[str, float | int]]:
    points: list[dict[str, float | int]] = [{"k": k} for k in range(measured.query.shape[-1])]
    three = (measured.support_loss, measured.grad_norm, measured.query)
    for name, values in zip(("support_loss", "grad_norm", measure), three, strict=True):
        for point, at_k in zip(points, values.unbind(-1), strict=True):
            found = estimate(at_k.numpy())
            point |= {name: found.mean, f"{name}_ci95": found.half}
    return points


def _observations(own: Measured, reference: Measured) -> dict[str, Any]:
    """Return the two observations at k = 0, and how soon MAML's last support loss is reached."""
    # Paired: every run has the same tasks. Seeds are not paired, and are averaged over.
    gap = own.support_loss[..., 0].mean(0) - reference.support_loss[..., 0].mean(0)
    means = [gap, *(m.support_loss[..., 0].mean(1) for m in (own, reference))]
    half = half_of_sum([(float(v.var()) / len(v), len(v) - 1) for v in means if len(v) > 1])
    difference = Estimate(float(gap.mean()), half)
    ratio = float(own.grad_norm[..., 0].mean() / reference.grad_norm[..., 0].mean())
    least, most = COMPARABLE
    k = min(reference.curve.steps, own.support_loss.shape[-1] - 1)
    target = reference.support_loss.mean((0, 1))[k]
    reached = (own.support_loss.mean((0, 1)) <= target).nonzero()
    return {
        "initial_loss": {
            "difference": difference.mean,
            "low": difference.low,
            "high": difference.high,
            "verdict": "reference" if own is reference else difference.sign,
        },
        "initial_grad_norm": {"ratio": ratio, "comparable": least <= ratio <= most},
        "reference_loss": {
            "k": k,
            "loss": float(target),
            "reached_at": int(reached[0]) if len(reached) else None,
        },
    }
