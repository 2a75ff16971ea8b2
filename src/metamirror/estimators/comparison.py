"""A few-shot classifier beside simpler ones, on the user's own few examples."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metamirror.console import printable
from metamirror.core.layer_calls import recorded_calls
from metamirror.core.learner import Learner
from metamirror.core.tasks import Batch
from metamirror.estimators.calibration import likeliest_temperature
from metamirror.estimators.fitting import Adapt
from metamirror.estimators.held_out import Fit, adapting, enough, held_out_logits
from metamirror.experiments.statistics import Estimate, estimate
from metamirror.linalg.logistic import logistic_regression
from metamirror.models import head_of

NEAREST, LOGISTIC, OURS = "nearest class mean", "logistic regression", "this model"
MOST_DOUBTFUL = 8
MOST_NEEDED = 1000
"""Examples a class beyond which "more" says enough."""


@dataclass(frozen=True)
class Interval:
    """A figure in percent, or a difference in percentage points, with its 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Row:
    """A classifier: its accuracy, and this model's minus its own on the same examples."""

    name: str
    accuracy: Interval
    ours_less_this: Interval | None  # None for this model itself


@dataclass(frozen=True)
class Doubtful:
    """An example whose own label seems unlikely to a model of the others."""

    index: int
    label: Any
    predicted: Any
    probability: float  # of its label


@dataclass(frozen=True)
class Comparison:
    """What `FewShotClassifier.compare` found; `print` shows it.

    Attributes:
        rows: the classifiers, simplest first.
        recommendation: the name of the simplest that is not significantly worse than the best.
        reason: why, and how many more examples would settle what is open.
        classes: the labels, in the order of the confusion matrix.
        confusion: how many examples of a class (row) this model takes for which (column).
        doubtful: examples whose label this model finds least likely, the least likely first.
        examples: how many there are.
    """

    rows: list[Row]
    recommendation: str
    reason: str
    classes: list[Any]
    confusion: NDArray[np.int64]
    doubtful: list[Doubtful]
    examples: int

    def as_json(self) -> dict[str, Any]:
        """Return everything as a JSON document has it."""
        return {**asdict(self), "confusion": self.confusion.tolist()}

    def confused(self) -> list[tuple[int, int, int]]:
        """Return the pairs that are confused: class, what it is taken for, and how often."""
        wrong = self.confusion * (1 - np.eye(len(self.classes), dtype=np.int64))
        pairs = [(int(i), int(j), int(wrong[i, j])) for i, j in np.argwhere(wrong)]
        return sorted(pairs, key=lambda pair: -pair[2])

    def __str__(self) -> str:
        return self.in_words([f"example {one.index}" for one in self.doubtful])

    def in_words(self, doubtful: Sequence[str]) -> str:
        """Return the text of `print`, in which the doubtful examples have these names."""
        lines = [
            f"accuracy on these {self.examples} examples, each predicted by models of the others, "
            f"with 95 % intervals:"
        ]
        for row in self.rows:
            gap = row.ours_less_this
            less = "" if gap is None else f"   {OURS} minus it {in_points(gap)}"
            here = row.accuracy
            figure = f"{here.mean:5.1f} % [{here.low:.1f}, {here.high:.1f}]"
            lines.append(f"  {row.name:<19}  {figure:<21}{less}".rstrip())
        lines.append(f"recommended: {self.recommendation}; {self.reason}")
        names = [printable(label) for label in self.classes]
        if pairs := self.confused()[:3]:
            said = ", ".join(f"{names[i]} for {names[j]} ({count})" for i, j, count in pairs)
            lines.append(f"{OURS} takes: {said}")
        if self.doubtful:
            some = [
                f"{printable(name)} ({printable(one.label)} at {one.probability:.0%}, rather "
                f"{printable(one.predicted)})"
                for name, one in list(zip(doubtful, self.doubtful, strict=True))[:3]
            ]
            lines.append(f"most doubtful: {', '.join(some)}")
        return "\n".join(lines)


def compare(learner: Learner, support: Batch, classes: NDArray[Any], run: Adapt) -> Comparison:
    """Return how an adaptation does beside simpler classifiers on the same features."""
    y = support.y.cpu()
    if not enough(y):
        few = classes.tolist()[int(torch.bincount(y).argmin())]
        raise ValueError(
            f"class {few!r} has one example, and comparing takes one to hold out and one to learn "
            f"from: give two or more of each class"
        )
    features = features_of(learner)
    models = {
        NEAREST: on_features(features, nearest_mean),
        LOGISTIC: on_features(features, logistic),
        OURS: adapting(run),
    }
    logits = {name: held_out_logits(support, fit) for name, fit in models.items()}
    right = {name: (own.argmax(1) == y).double().numpy() for name, own in logits.items()}
    rows = [
        Row(
            name,
            shown(own, accuracy_of(own), 0.0),
            None if name == OURS else difference_shown(right[OURS], own),
        )
        for name, own in right.items()
    ]
    recommended, reason = recommend(right, y)
    ours = logits[OURS]
    confusion = np.zeros((len(classes), len(classes)), np.int64)
    np.add.at(confusion, (y.numpy(), ours.argmax(1).numpy()), 1)
    shares = (ours / likeliest_temperature(ours, y)).softmax(1)
    own_share = shares[torch.arange(len(y)), y]
    labels: list[Any] = classes.tolist()
    doubtful = [
        Doubtful(i, labels[int(y[i])], labels[int(ours[i].argmax())], float(own_share[i]))
        for i in own_share.argsort(stable=True).tolist()
        if int(ours[i].argmax()) != int(y[i])
    ]
    return Comparison(
        rows, recommended, reason, labels, confusion, doubtful[:MOST_DOUBTFUL], len(y)
    )


Features = Callable[[Batch], Callable[[Tensor], Tensor]]
"""Examples, whose statistics normalise, to a function that gives the features of others."""


def features_of(learner: Learner) -> Features:
    """Return what stands before the head at the start's own parameters; rows stay as they are."""

    def features(others: Batch) -> Callable[[Tensor], Tensor]:
        if others.x.dim() == 2:
            return torch.Tensor.double
        # No step: the parameters of the start, and the statistics of these examples.
        begun = learner.adapt(others, steps=0)

        def of(x: Tensor) -> Tensor:
            with recorded_calls(learner.model, head_of(learner.model)) as calls:
                begun(x)
            return torch.stack([given.flatten(1).double() for given, _ in calls]).mean(0)

        return of

    return features


def on_features(features: Features, fit: Fit) -> Fit:
    """Return a classifier of features as one of examples."""

    def fitted(others: Batch) -> Callable[[Tensor], Tensor]:
        of = features(others)
        model = fit(Batch(of(others.x), others.y))
        return lambda x: model(of(x))

    return fitted


def nearest_mean(others: Batch) -> Callable[[Tensor], Tensor]:
    """Return a model whose logits are the negative squared distances to the class means."""
    means = torch.stack([others.x[others.y == c].mean(0) for c in range(int(others.y.max()) + 1)])
    return lambda x: -torch.cdist(x, means, compute_mode="donot_use_mm_for_euclid_dist").square()


def logistic(others: Batch) -> Callable[[Tensor], Tensor]:
    """Return logistic regression with penalty 1, as scikit-learn's comes."""
    weight, bias = logistic_regression(*others)
    return lambda x: x @ weight.T + bias


def recommend(right: dict[str, NDArray[np.float64]], y: Tensor) -> tuple[str, str]:
    """Return the simplest classifier that is not significantly worse than the best, and why.

    Classifiers come simplest first; 1 stands for an example that was predicted right, 0 for one
    that was not.
    """
    best = max(right, key=lambda name: right[name].mean())
    gaps = {name: difference_of(own, right[best]) for name, own in right.items()}
    chosen = next(name for name in right if name == best or gaps[name].sign != "lower")
    gap, means = gaps[chosen], {name: own.mean() for name, own in right.items()}
    if chosen == best:
        simpler = list(right)[: list(right).index(best)]
        reason = "the simpler ones are significantly worse" if simpler else "none is better here"
    elif means[chosen] == means[best]:
        reason = f"as good as {best} here, and simpler"
    else:
        more = more_examples(gap, len(y), len(torch.bincount(y)))
        reason = (
            f"simpler than {best}, and not significantly worse "
            f"({in_points(difference_shown(right[chosen], right[best]))} points): {more} would "
            f"settle it"
        )
    guessing = float(torch.bincount(y).max()) / len(y)
    if not any(accuracy_of(own).low > 100 * guessing for own in right.values()):
        reason += f". None is significantly better than guessing ({100 * guessing:.1f} %)"
    return chosen, reason


def more_examples(gap: Estimate, examples: int, classes: int) -> str:
    """Return about how many more would leave zero out of an interval, if the gap stays.

    >>> more_examples(Estimate(-10.0, 20.0), 25, 5)
    'about 15 more examples a class'
    """
    needed = examples * ((gap.half / gap.mean) ** 2 - 1) / classes if gap.mean else math.inf
    if needed > MOST_NEEDED:
        return f"more than {MOST_NEEDED:,} more examples a class"
    count = max(1, math.ceil(needed))
    return f"about {count} more example{'s' if count > 1 else ''} a class"


def accuracy_of(right: NDArray[np.float64]) -> Estimate:
    """Return an accuracy in percent with two right and two wrong ones added.

    A few examples that are all right would have an interval of no width (Agresti & Coull, 1998).
    """
    return estimate(100 * np.append(right, [1.0, 1.0, 0.0, 0.0])[None])


def difference_of(ours: NDArray[np.float64], others: NDArray[np.float64]) -> Estimate:
    """Return a paired difference of accuracies, with one example added that each alone gets right.

    For the same reason (Bonett & Price, 2012).
    """
    return estimate(100 * np.append(ours - others, [1.0, -1.0])[None])


def difference_shown(ours: NDArray[np.float64], others: NDArray[np.float64]) -> Interval:
    """Return a paired difference as it is shown."""
    return shown(ours - others, difference_of(ours, others), -100.0)


def shown(values: NDArray[np.float64], interval: Estimate, least: float) -> Interval:
    """Return what was seen, with the interval that allows for how few examples there are."""
    mean = 100 * float(values.mean())
    low, high = max(interval.low, least), min(interval.high, 100.0)
    return Interval(mean, min(low, mean), max(high, mean))


def in_points(gap: Interval) -> str:
    """Return a difference in percentage points with its interval."""
    return f"{gap.mean:+.1f} [{gap.low:+.1f}, {gap.high:+.1f}]"
