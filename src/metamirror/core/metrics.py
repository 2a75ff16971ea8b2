"""Metrics: how right predictions are, beside the loss that is minimised."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from metamirror.core import import_path, losses
from metamirror.core.checks import are_labels
from metamirror.core.losses import IGNORED
from metamirror.core.tasks import Loss
from metamirror.core.trees import Tree, mapped, registered

Score = Callable[[Any, Tree], Any]
RESERVED = {"task", "step", "k", "loss", "ci95", "skipped", "outer_lr", "geometry_lr", "metric"}
"""What stands beside a metric in files."""


@dataclass(frozen=True)
class Metric:
    """A figure of merit of one task's predictions.

    Attributes:
        name: what it is called in tables and files.
        score: (output, targets) -> a number, or None where it has no meaning for their shapes.
        higher: whether more is better.
        percent: whether it is a share, which is shown in percent.
        title: what people read; by default the name.
        spec: how a file names it: a key of `METRICS` or an import path; None if it cannot.
    """

    name: str
    score: Score | None = None
    higher: bool = True
    percent: bool = False
    title: str = ""
    spec: str | None = None

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or (self.score is not None and self.name in RESERVED):
            raise ValueError(
                f"a metric is called {self.name!r}; its name is a word, and none of "
                f"{', '.join(sorted(RESERVED))}"
            )

    def __call__(self, output: Any, y: Tree) -> Tensor | None:
        """Return the figure as a detached scalar; None if there is none."""
        if self.score is None:
            return None
        with torch.no_grad():
            try:
                found = self.score(mapped(_detached, registered(output)), y)
            except Exception as error:  # whatever a user's function raises
                raise ValueError(
                    f"the metric {self.name} failed: {type(error).__name__}: {error}"
                ) from error
        if found is None:
            return None
        value = torch.as_tensor(found)
        if value.dim():
            raise ValueError(
                f"the metric {self.name} gave {tuple(value.shape)} numbers; it must give one"
            )
        return value if value.is_floating_point() else value.to(torch.get_default_dtype())

    @property
    def scale(self) -> float:
        """What a figure is multiplied by to be shown."""
        return 100.0 if self.percent else 1.0

    @property
    def digits(self) -> int:
        """Decimals that are shown."""
        return 2 if self.percent else 4

    @property
    def heading(self) -> str:
        """What stands above a column of figures."""
        return (self.title or self.name) + (", %" if self.percent else "")

    def worth(self, value: float) -> float:
        """Return a figure such that more is better."""
        return value if self.higher else -value

    def shown(self, value: float, digits: int | None = None) -> str:
        """Return a figure, scaled already, with its unit."""
        digits = self.digits if digits is None else digits
        return f"{value:.{digits}f}" + (" %" if self.percent else "")


def _detached(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, Tensor) else leaf


def accuracy(output: Any, y: Tree) -> Tensor | None:
    """Return the share of labels at which the largest logit stands; None if these are no logits.

    Logits are (examples, ways), or (examples, ways, ..) with a label for each place behind the
    ways. Labels that are ignored do not count, and a logit that is not a number is no answer.

    >>> accuracy(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([1, 1]))
    tensor(0.5000)
    """
    if not _are_logits(output, y):
        return None
    y = y.long()  # a byte would be equal to -100 at 156
    counts = y != IGNORED
    right = (output.argmax(1) == y) & output.isfinite().all(1) & counts
    # Without branches: vmap knows no values.
    share: Tensor = right.sum().to(output.dtype) / counts.sum()
    return share


def intersection_over_union(output: Any, y: Tree) -> Tensor | None:
    """Return the mean over classes of intersection over union, or that of a mask's foreground.

    Classes that neither the targets nor the answers have do not count.

    >>> mask = torch.tensor([[1, 1, 0, 0]])
    >>> intersection_over_union(torch.tensor([[2.0, -1.0, 3.0, -2.0]]), mask)
    tensor(0.3333)
    """
    counts = _counts(output, y)
    if counts is None:
        return None
    right, missed, wrong = counts
    union = right + missed + wrong
    return _mean_where(right / union.clamp(min=1), union > 0)


def f1(output: Any, y: Tree) -> Tensor | None:
    """Return F1 over all labels of a multi-label problem, or its mean over single-label classes.

    >>> targets = torch.tensor([[1, 0, 1], [0, 1, 0]])
    >>> f1(torch.tensor([[2.0, -1.0, 1.0], [1.0, -1.0, -1.0]]), targets)
    tensor(0.6667)
    """
    counts = _counts(output, y)
    if counts is None:
        return None
    right, missed, wrong = counts
    both = 2 * right + missed + wrong
    return _mean_where(2 * right / both.clamp(min=1), both > 0)


def mean_squared_error(output: Any, y: Tree) -> Tensor | None:
    """Return the mean squared error; None unless output and targets are numbers of one shape."""
    return F.mse_loss(output, y) if _are_numbers(output, y) else None


def mean_absolute_error(output: Any, y: Tree) -> Tensor | None:
    """Return the mean absolute error; None unless output and targets are numbers of one shape."""
    return F.l1_loss(output, y) if _are_numbers(output, y) else None


def r_squared(output: Any, y: Tree) -> Tensor | None:
    """Return the share of the targets' variance that is explained, over all their numbers.

    >>> r_squared(torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.0, 1.0, 3.0]))
    tensor(0.7857)
    """
    if not _are_numbers(output, y):
        return None
    unexplained: Tensor = (output - y).square().sum() / (y - y.mean()).square().sum()
    return 1 - unexplained


def _are_numbers(output: Any, y: Tree) -> bool:
    both = isinstance(output, Tensor) and isinstance(y, Tensor) and output.shape == y.shape
    return both and y.is_floating_point()


def _are_logits(output: Any, y: Tree) -> bool:
    """Return whether there are logits for every label, in the shapes of torch's cross-entropy."""
    fits = are_labels(y) and isinstance(output, Tensor) and output.dim() >= 2
    return fits and bool(y.shape == output.shape[:1] + output.shape[2:])


def _counts(output: Any, y: Tree) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return true positives, false negatives and false positives: by class, or of all ones.

    Targets of the output's own shape say of every place whether it is 1, and logits above 0 answer
    yes.
    """
    if not (isinstance(output, Tensor) and isinstance(y, Tensor)):
        return None
    if _are_logits(output, y):
        labels: Tensor = y.long()
        known = (labels != IGNORED).unsqueeze(1)
        classes = torch.arange(output.shape[1], device=output.device)
        classes = classes.view(1, -1, *[1] * (output.dim() - 2))
        answers = (output.argmax(1).unsqueeze(1) == classes) & known
        wanted = (labels.unsqueeze(1) == classes) & known
        axes = [axis for axis in range(output.dim()) if axis != 1]
    elif y.shape == output.shape:
        known = y != IGNORED
        answers, wanted = (output > 0) & known, (y > 0.5) & known
        axes = list(range(output.dim()))
    else:
        return None
    right, missed, wrong = answers & wanted, ~answers & wanted, answers & ~wanted
    dtype = output.dtype if output.is_floating_point() else torch.get_default_dtype()
    return tuple(part.sum(axes).to(dtype) for part in (right, missed, wrong))  # type: ignore[return-value]


def _mean_where(values: Tensor, counts: Tensor) -> Tensor:
    """Return the mean of what counts; not a number if nothing does."""
    found: Tensor = (values * counts).sum() / counts.sum()
    return found


METRICS = {
    metric.name: metric
    for metric in (
        Metric("accuracy", accuracy, percent=True, spec="accuracy"),
        Metric("iou", intersection_over_union, percent=True, title="IoU", spec="iou"),
        Metric("f1", f1, percent=True, title="F1", spec="f1"),
        Metric("mse", mean_squared_error, higher=False, title="MSE", spec="mse"),
        Metric("mae", mean_absolute_error, higher=False, title="MAE", spec="mae"),
        Metric("r2", r_squared, title="R²", spec="r2"),
    )
}
"""The metrics by their names."""

LOSS = Metric("loss", higher=False)
"""The query loss itself, where there is no other figure."""


def make(metric: "str | Metric | Score | None") -> Metric | None:
    """Return a metric from its name, an import path, or a function (output, targets) -> number."""
    if metric is None or isinstance(metric, Metric):
        return metric
    if isinstance(metric, str):
        if metric in METRICS:
            return METRICS[metric]
        if import_path.split_path(metric) is None:
            raise ValueError(
                f"metric is {metric!r}; choose from {', '.join(METRICS)}, or name your own, "
                f"package.module:function"
            )
        found = import_path.find(metric, "metric")
        own = make(found) if isinstance(found, Metric) or callable(found) else None
        if own is None:
            raise ValueError(
                f"metric is {metric!r}, which is a {type(found).__name__}, no function"
            )
        return Metric(own.name, own.score, own.higher, own.percent, own.title, metric)
    if not callable(metric):
        raise ValueError(f"metric is {metric!r}; give a name, a Metric or a function")
    return Metric(getattr(metric, "__name__", "metric").strip("<>"), metric)


def metric_for(y: Tree, loss: Loss | None = None) -> Metric:
    """Return the usual metric: accuracy of labels, squared error of numbers, the loss of others.

    Where a loss of the user's own is minimised, that is the figure of numbers too.
    """
    if are_labels(y):
        return METRICS["accuracy"]
    usual = loss is None or loss is losses.mean_squared_error
    return METRICS["mse"] if usual and isinstance(y, Tensor) else LOSS


def described(metric: Metric) -> dict[str, Any]:
    """Return a metric as files have it, so that `metric_in` finds it again."""
    facts = {} if metric.name in METRICS else {"higher": metric.higher, "percent": metric.percent}
    return {"metric": metric.name, **facts}


def metric_in(found: Mapping[str, Any]) -> Metric:
    """Return the metric of figures from a file, which may not say it: the loss if nothing else."""
    name = found.get("metric")
    if not isinstance(name, str):
        name = next((name for name in METRICS if name in found), LOSS.name)
    if name in METRICS or name == LOSS.name or not name.isidentifier():
        return METRICS.get(name, LOSS)
    higher, percent = found.get("higher") is not False, found.get("percent") is True
    return Metric(name, higher=higher, percent=percent)
