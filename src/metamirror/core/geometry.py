"""The geometry slot: how a gradient becomes an update."""

from abc import ABC, abstractmethod
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, final

import torch
from torch import Tensor, nn

from metamirror.core.lower_level import LowerLevel
from metamirror.core.mirror_map import Identity, MirrorMap
from metamirror.core.tasks import Params


class State(Protocol):
    """Where an adaptation stands: a named tuple of each geometry, of which z descends."""

    @property
    def z(self) -> Params:
        """The variable that descends; the parameters themselves, where the map is the identity."""


S = TypeVar("S", bound=State)


class Geometry(nn.Module, ABC, Generic[S]):
    r"""How a gradient becomes an update. Its own parameters are meta-learned.

    One inner step is

    $$z \leftarrow z - \alpha \cdot \mathrm{direction}(\nabla L(\phi)), \qquad
      \phi = \mathrm{primal}(z).$$

    Derive from `Preconditioner` to transform the gradient, from `MirrorDescent` to use a mirror
    map, and from this class for anything else, such as a learned optimiser.
    """

    descends: bool = True
    """Whether there is an inner loop.

    Without one K is 0, however many steps are asked for, and step size, adjoint and prior do
    nothing.
    """

    stochastic: bool = False
    """Whether `draw` gives each task its own noise."""

    moves_start: bool = False
    """Whether phi^(0) is another point than the one that `begin` is given."""

    any_outputs: bool = False
    """Whether it moves a head of any number of outputs, and not that of the model alone."""

    candidate_note: str | None = None
    """A remark that a verdict on `candidate_mirror_map` needs."""

    def prepare(self, theta: Params | None) -> Any:
        """Compute what the tasks of an outer step share; theta is given if all begin at it."""
        return None

    def draw(self, generator: torch.Generator) -> Params:
        """Draw a task's own noise, on the CPU, so that every device sees the same."""
        return {}

    @abstractmethod
    def begin(self, theta: Params, prepared: Any, noise: Params) -> S:
        """Return the state at k = 0, from the learned parameters or what the start slot made."""

    def lower_level(self, lower: LowerLevel, state: S) -> LowerLevel:
        """Return what is minimised from this state; other than `lower` if noise is part of it."""
        return lower

    @abstractmethod
    def primal(self, state: S) -> Params:
        """Return phi, the parameters with which the model runs."""

    def given(self, state: S) -> Params:
        """Return parameters of the model that do not adapt and have other values at this state.

        The step from here is taken with them, and if it is the last, the query predicted. By
        default there are none: what does not adapt has the learner's one value.
        """
        return {}

    @abstractmethod
    def step(self, state: S, grad: Params, *, lr: float, loss: Tensor, k: int) -> S:
        """Take inner step k + 1.

        Args:
            state: where the adaptation stands.
            grad: the gradient of the lower level at `primal(state)`.
            lr: alpha.
            loss: the support loss there, in the graph where the gradient is: at second order.
            k: how many steps were taken before.
        """

    def gradient_norm(self, state: S, grad: Params) -> Tensor:
        """Return the length of a gradient, for people to see."""
        lengths = [torch.linalg.vector_norm(g.detach()) for g in grad.values()]
        norm: Tensor = torch.linalg.vector_norm(torch.stack(lengths))
        return norm

    def members(self, phi: Params) -> list[Params]:
        """Return the parameters whose predictions are averaged.

        That is phi alone, unless it stands for a distribution.
        """
        return [phi]

    def candidate_mirror_map(self, theta: Params) -> MirrorMap | None:
        """Return the map g with phi = g(z) that this geometry amounts to; None if unknown.

        "Candidate", since nothing here says that g is increasing or a gradient: that is what
        `mirror_maps.certify` and `g.bounds()` are for.
        """
        return None


class PointState(NamedTuple):
    """The state of a geometry that remembers nothing: the parameters, and what was prepared."""

    z: Params
    prepared: Any = None


class Preconditioner(Geometry[PointState]):
    """Gradient descent along `direction(grad)`.

    >>> class Halved(Preconditioner):
    ...     def direction(self, grad, prepared):
    ...         return {name: 0.5 * g for name, g in grad.items()}
    """

    def begin(self, theta: Params, prepared: Any, noise: Params) -> PointState:
        return PointState(theta, prepared)

    def primal(self, state: PointState) -> Params:
        return state.z

    @abstractmethod
    def direction(self, grad: Params, prepared: Any) -> Params:
        """Return what is subtracted from phi, before the step size."""

    def step(
        self, state: PointState, grad: Params, *, lr: float, loss: Tensor, k: int
    ) -> PointState:
        direction = self.direction(grad, state.prepared)
        return PointState(moved(state.z, direction, lr), state.prepared)


@final
class GradientDescent(Preconditioner):
    """Plain gradient descent: what MAML does."""

    any_outputs = True

    def direction(self, grad: Params, prepared: Any) -> Params:
        return grad

    def candidate_mirror_map(self, theta: Params) -> MirrorMap:
        return Identity()


def moved(z: Params, direction: Params, lr: float) -> Params:
    """Return z - lr * direction."""
    return {name: torch.sub(value, direction[name], alpha=lr) for name, value in z.items()}


class Inserted(nn.Module):
    """A module that a method adds to the model: learned like a geometry, no part of the start."""
