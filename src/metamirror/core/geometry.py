"""The geometry slot: how a gradient becomes an update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from metamirror.core.tasks import Params

if TYPE_CHECKING:
    from metamirror.mirror_maps.base import MirrorMap


class State(NamedTuple):
    """Where an adaptation stands: the variable that descends, and what the geometry remembers."""

    z: Params
    memory: Mapping[str, Any]


class Geometry(nn.Module):
    r"""Plain gradient descent, and the base of every other geometry.

    One inner step is

    $$z \leftarrow z - \alpha \cdot \mathrm{direction}(\nabla L(\phi)), \qquad
      \phi = \mathrm{primal}(z).$$

    A subclass overrides `primal` (a mirror map), `direction` (a preconditioner), or both. Its
    own parameters are meta-learned. The methods below `step` exist so that each thing is
    computed as rarely as it can be: once per outer step, once per task, once per inner step.

    >>> class Halved(Geometry):
    ...     def direction(self, state, grad):
    ...         return {name: 0.5 * g for name, g in grad.items()}
    """

    stochastic: bool = False
    """Whether `draw` gives a task its own noise."""

    candidate_note: str | None = None
    """What has to be known beside a verdict on `candidate_mirror_map`."""

    def primal(self, state: State) -> Params:
        """phi, the model's parameters, for the present z."""
        return state.z

    def direction(self, state: State, grad: Params) -> Params:
        """What is subtracted from z, before the step size."""
        return grad

    def step(self, state: State, grad: Params, lr: float) -> State:
        """One inner step. Override only to change the memory as well."""
        direction = self.direction(state, grad)
        z = {name: torch.sub(z, direction[name], alpha=lr) for name, z in state.z.items()}
        return State(z, state.memory)

    def prepare(self) -> Mapping[str, Any]:
        """What depends on the meta-parameters alone: once per outer step, shared by all tasks."""
        return {}

    def prepare_start(self, theta: Params, prepared: Mapping[str, Any]) -> Mapping[str, Any]:
        """What depends on the learned start as well: as often, and added to what is prepared."""
        return {}

    def draw(self, generator: torch.Generator) -> Params:
        """A task's own noise, on the CPU, so that every device sees the same."""
        return {}

    def begin(self, theta: Params, prepared: Mapping[str, Any], noise: Params) -> State:
        """The state at k = 0. theta is the dual start where `primal` is not the identity."""
        return State(theta, {**prepared, **noise})

    def candidate_mirror_map(self, theta: Params) -> MirrorMap | None:
        """The map g with phi = g(z) that this geometry amounts to; None if it is of another kind.

        "Candidate", since nothing here says that g is increasing or a gradient: that is what
        `mirror_maps.certify` and `g.bounds()` are for.
        """
        from metamirror.mirror_maps.quadratic import Identity

        return Identity()


def tensor_like(value: Tensor, like: Tensor) -> Tensor:
    """Value on the device and in the floating type of `like`."""
    return value.to(device=like.device, dtype=like.dtype)


class Inserted(nn.Module):
    """A module that a method puts into the model: learned like a geometry, no part of the start."""
