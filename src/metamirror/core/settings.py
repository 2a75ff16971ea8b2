"""The settings that every method has in common, in one frozen object."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Literal, get_args

import torch

from metamirror.core import adjoints, losses, metrics
from metamirror.core.adjoints import Adjoint, Unrolled
from metamirror.core.checks import check_lr, check_steps
from metamirror.core.metrics import Metric
from metamirror.core.option_spec import refused
from metamirror.core.tasks import Loss
from metamirror.core.trees import Tree

Norm = Literal["transductive", "inductive"]
Point = Literal["primal", "dual"]
"""What a learned vector is to a mirror map: phi^(0), or z^(0)."""
StartKind = Literal["primal", "dual", "prototypes", "ridge", "svm"]


@dataclass(frozen=True)
class Settings:
    """How a learner adapts, whatever its method. `Learner.configure` changes them.

    Attributes:
        steps: K, at least 0.
        lr: alpha, the inner step size.
        adjoint: how the outer level differentiates the path: an `Adjoint`, or its name.
        norm: whose statistics batch normalisation uses for the query: its own batch's
            ("transductive", as MAML and the paper's code do) or the support set's ("inductive").
        loss: (output, targets) -> scalar; by default it follows the targets.
        query_loss: the same for the query set, where that is another.
        metric: how right predictions are: a `Metric`, a name (accuracy, iou, f1, mse, mae, r2), or
            a function (output, targets) -> number, of which more is better; by default accuracy
            where targets are labels.
        vectorize: run the tasks of a step under `torch.func.vmap` instead of one after the other.
        autocast: the type in which the model's own operations run, where they can.
        start: what the learned vector is: "primal", phi^(0), or "dual", z^(0), which only mirror
            maps have; or how phi^(0) gets its head from the support set: "prototypes", "ridge" or
            "svm". By default the method's own.
    """

    steps: int = 5
    lr: float = 0.01
    adjoint: Adjoint = Unrolled()  # noqa: RUF009 - frozen
    norm: Norm = "transductive"
    loss: Loss | None = None
    query_loss: Loss | None = None
    metric: Metric | None = None
    vectorize: bool = False
    autocast: torch.dtype | None = None
    start: StartKind | None = None

    @classmethod
    def check_names(cls, given: Iterable[str]) -> None:
        """Refuse names that no setting has, and say which one was meant."""
        known = [field.name for field in fields(cls)]
        if unknown := [name for name in given if name not in known]:
            raise refused("a learner", unknown[0], known)

    def __post_init__(self) -> None:
        check_steps(self.steps)
        object.__setattr__(self, "lr", check_lr(self.lr))
        object.__setattr__(self, "adjoint", adjoints.make(self.adjoint))
        if self.norm not in get_args(Norm):
            raise ValueError(f"norm is {self.norm!r}; choose 'transductive' or 'inductive'")
        if self.start not in (None, *get_args(StartKind)):
            words = ", ".join(get_args(StartKind))
            raise ValueError(f"start is {self.start!r}; choose from {words}")
        for name in ("loss", "query_loss"):
            object.__setattr__(self, name, losses.make(getattr(self, name), name))
        object.__setattr__(self, "metric", metrics.make(self.metric))
        if not isinstance(self.vectorize, bool):
            raise ValueError(f"vectorize is {self.vectorize!r}; give True or False")
        if self.vectorize and not self.adjoint.vectorizes:
            raise ValueError(
                f"torch.func.vmap cannot run the {self.adjoint.name} adjoint: leave vectorize off"
            )
        if self.vectorize and self.autocast is not None:
            raise ValueError("torch.func.vmap ignores autocast: leave vectorize off")

    def metric_of(self, y: Tree) -> Metric:
        """Return what is reported of predictions of such targets."""
        return self.metric or metrics.metric_for(y, self.query_loss or self.loss)

    @property
    def computes_head(self) -> bool:
        """Whether the start computes the head from the support set."""
        return self.start not in (None, *get_args(Point))

    def point(self, own: Point = "primal") -> Point:
        """Return which point of a mirror map the learned vector is; `own` is the method's."""
        if self.computes_head:
            return "primal"
        return "dual" if (self.start or own) == "dual" else "primal"
