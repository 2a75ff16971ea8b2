"""Runs that fall back to guessing: noticed after a hundred steps, with what to try."""

import math

import torch
from torch import Tensor

from metamirror.core.learner import Learner
from metamirror.core.tasks import Params, Task
from metamirror.core.trees import leaves, registered
from metamirror.storage.checkpoint import TrainingState
from metamirror.training.config import RunConfig

WINDOW = 100
"""Outer steps over which an accuracy is averaged before it is compared with chance."""
ABOVE, AT = 5.0, 1.0
"""Percentage points by which an accuracy is above chance, and within which it is at chance."""
EXPLODED = 10.0
"""An adaptation that moves the parameters by that many times their size has exploded."""


class CollapseError(ValueError):
    """A run that has fallen back to guessing and was told to stop."""


def watch(
    state: TrainingState, accuracy: float, config: RunConfig, outputs: float
) -> tuple[float, bool] | None:
    """Count a step; at the end of a hundred steps at chance return their mean.

    With it comes whether the run has ever been clearly above chance.

    Args:
        state: holds the counts, and what two hundreds of steps in a row have reached.
        accuracy: of this step, in percent; NaN for regression, which is not watched.
        config: says how many examples a step has.
        outputs: the number of classes; their harmonic mean, where it differs from task to task.
    """
    if math.isnan(accuracy):
        return None
    state.window_accuracies += accuracy
    state.window_steps += 1
    if state.window_steps < WINDOW:
        return None
    mean, chance = state.window_accuracies / WINDOW, 100 / outputs
    # Of two in a row: the best of many windows of few examples is above chance by luck.
    state.peak_accuracy = max(state.peak_accuracy, min(mean, state.window_mean))
    state.window_accuracies, state.window_steps, state.window_mean = 0.0, 0, mean
    examples = WINDOW * (config.batch or config.tasks_per_step * outputs * config.queries)
    error = math.sqrt(chance * (100 - chance) / examples)
    if mean > chance + max(AT, 3 * error):
        state.collapsed = False
        return None
    return mean, state.peak_accuracy >= chance + max(ABOVE, 8 * error)


def describe(
    state: TrainingState, mean: float, fell: bool, config: RunConfig, signs: list[str]
) -> str:
    """Return what was seen and what to try."""
    before = f", after {state.peak_accuracy:.1f} %" if fell else ""
    seen = "".join(f"; {sign}" for sign in signs)
    inner = None if config.pretrains else config.lr
    rates = {"outer_lr": config.outer_lr, "geometry_lr": config.geometry_lr, "lr": inner}
    lower = " or ".join(f"{name} ({v})" for name, v in rates.items() if v is not None)
    clip = "" if config.clip_norm else ", or set clip_norm"
    return (
        f"{config.title} has collapsed: its accuracy was {mean:.1f} %, at chance, for the last "
        f"{WINDOW} steps{before}{seen}. Lower {lower}{clip}"
    )


def signs_of(learner: Learner, task: Task) -> list[str]:
    """Return what one adaptation shows of the cause: a dead last layer, an exploded map."""
    adapted = learner.adapt(task.support, keep=True, seed=0)
    first, last = adapted.path.points[0], adapted.path.phi
    parts = leaves(registered(adapted(task.query.x)))
    outputs = [t for t in parts if isinstance(t, Tensor) and t.is_floating_point()]
    moved = _norm({name: last[name] - first[name] for name in last}) / max(_norm(first), 1e-30)
    found = []
    if all(_spread(output) <= 1e-6 * float(output.abs().max()) for output in outputs) and outputs:
        found.append("the network's outputs no longer depend on its inputs: the last layer is dead")
    if not moved <= EXPLODED:
        found.append(f"one adaptation moves the parameters by {moved:.3g} times their size")
    return found


def _spread(output: Tensor) -> float:
    return float((output - output.mean(0)).abs().max())


def _norm(params: Params) -> float:
    return float(torch.stack([p.double().square().sum() for p in params.values()]).sum().sqrt())
