r"""Explicit priors R(phi; theta) of the lower level, eq. (1b) of the paper.

Without one (the default) the prior is implicit: K steps from a learned start.
"""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from metamirror.core.tasks import Params

OF_THE_METHOD = "method"
"""The `spec` of a prior that its method builds, and no word of the user's."""


class Prior(nn.Module, ABC):
    """R(phi; theta), added to the support loss. Its parameters are part of theta."""

    spec: str | None = None
    """How it is built again: by `make`, or by the method; None for a class of the user's own."""

    vanishes: bool = False
    """Whether it is zero everywhere, as one of weight 0 is."""

    per_example: bool = False
    """Whether R is divided by the number of support examples, as a prior of their sum is next to
    their mean loss."""

    @abstractmethod
    def forward(self, phi: Params, phi0: Params) -> Tensor:
        """Return the negative log-prior of phi around the learned start phi0, up to a constant."""


class Isotropic(Prior):
    r"""$\frac{\lambda}{2}\|\phi - \phi^{(0)}\|_2^2$ with a fixed $\lambda \ge 0$.

    >>> prior = Isotropic(2.0)
    >>> float(prior({"w": torch.ones(3)}, {"w": torch.zeros(3)}))
    3.0
    """

    def __init__(self, lam: float):
        super().__init__()
        if not (math.isfinite(lam) and lam >= 0):
            raise ValueError(f"the prior's weight lam is {lam}; it must be finite and at least 0")
        self.lam = lam
        self.vanishes = lam == 0
        self.spec = f"isotropic:{lam!r}"

    def forward(self, phi: Params, phi0: Params) -> Tensor:
        squares = [(p - phi0[name]).square().sum() for name, p in phi.items()]
        return 0.5 * self.lam * torch.stack(squares).sum()

    def extra_repr(self) -> str:
        return f"lam={self.lam}"


class Diagonal(Prior):
    r"""$\frac12 \|\phi - \phi^{(0)}\|_\Lambda^2$ with a learned diagonal precision $\Lambda > 0$.

    Args:
        shapes: parameters that adapt, as given by `learner.theta()`.
        lam: the value at which every precision starts.
    """

    def __init__(self, shapes: Params, lam: float):
        super().__init__()
        if not (math.isfinite(lam) and lam > 0):
            raise ValueError(f"the prior's weight lam is {lam}; it must be finite and above 0")
        self.spec = f"diagonal:{lam!r}"
        self.names = list(shapes)
        self.log_precision = nn.ParameterList(
            torch.full_like(t, math.log(lam), requires_grad=False) for t in shapes.values()
        )

    def forward(self, phi: Params, phi0: Params) -> Tensor:
        squares = [
            (log_precision.exp() * (phi[name] - phi0[name]).square()).sum()
            for name, log_precision in zip(self.names, self.log_precision, strict=True)
        ]
        return 0.5 * torch.stack(squares).sum()


def make(spec: str, shapes: Params) -> Prior:
    """Return a prior from its name and weight, such as `isotropic:0.1` or `diagonal:0.1`.

    >>> make("isotropic:0.1", {})
    Isotropic(lam=0.1)
    """
    kind, _, weight = spec.partition(":")
    try:
        lam = float(weight)
    except ValueError as error:
        raise ValueError(f"prior is {spec!r}; write isotropic:WEIGHT or diagonal:WEIGHT") from error
    if kind == "isotropic":
        return Isotropic(lam)
    if kind == "diagonal":
        return Diagonal(shapes, lam)
    raise ValueError(f"prior is {spec!r}; the priors are isotropic:WEIGHT and diagonal:WEIGHT")
