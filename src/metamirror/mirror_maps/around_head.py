"""The geometry of a body, around a head of any number of outputs."""

from collections.abc import Collection
from typing import Any, NamedTuple

import torch

from metamirror.core.geometry import Geometry, State, moved
from metamirror.core.mirror_map import MirrorMap
from metamirror.core.tasks import Params
from metamirror.mirror_maps.beside import BesideIdentity, parted


class AroundState(NamedTuple):
    """All that descends; the state of the body's geometry, and the head."""

    z: Params
    body: State
    head: Params


class AroundHead(Geometry[AroundState]):
    """Moves the body by a geometry that was made for it, and the head by plain gradient descent.

    A geometry has parameters in the shape of what it moves. A head that is computed has as many
    outputs as the task, in an order that means nothing: there is nothing to learn for each.

    Args:
        body: the geometry of everything but the head.
        head: names of the head's parameters.
    """

    any_outputs = True

    def __init__(self, body: Geometry[Any], head: Collection[str]):
        super().__init__()
        self.body, self.head = body, frozenset(head)
        self.stochastic, self.moves_start = body.stochastic, body.moves_start
        self.candidate_note = body.candidate_note

    def prepare(self, theta: Params | None) -> Any:
        return self.body.prepare(None if theta is None else parted(theta, self.head)[0])

    def draw(self, generator: torch.Generator) -> Params:
        return self.body.draw(generator)

    def begin(self, theta: Params, prepared: Any, noise: Params) -> AroundState:
        body, head = parted(theta, self.head)
        return AroundState(theta, self.body.begin(body, prepared, noise), head)

    def primal(self, state: AroundState) -> Params:
        return {**self.body.primal(state.body), **state.head}

    def step(
        self, state: AroundState, grad: Params, *, lr: float, loss: torch.Tensor, k: int
    ) -> AroundState:
        along_body, along_head = parted(grad, self.head)
        body = self.body.step(state.body, along_body, lr=lr, loss=loss, k=k)
        head = moved(state.head, along_head, lr)
        return AroundState({**body.z, **head}, body, head)

    def candidate_mirror_map(self, theta: Params) -> MirrorMap | None:
        own = self.body.candidate_mirror_map(parted(theta, self.head)[0])
        return None if own is None else BesideIdentity(own, self.head)
