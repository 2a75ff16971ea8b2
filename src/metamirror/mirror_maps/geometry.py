"""A mirror map in the geometry slot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metamirror.geometry import Geometry, State
from metamirror.mirror_maps.base import MirrorMap
from metamirror.types import Params


class MirrorGeometry(Geometry):
    r"""Mirror descent in its dual form, eq. (7): $z \leftarrow z - \alpha \nabla L(g(z))$.

    Args:
        g: the inverse mirror map. The learned start is then the dual z^(0).
    """

    def __init__(self, g: MirrorMap):
        super().__init__()
        self.g = g

    def prepare(self) -> dict[str, Any]:
        return {"prepared": self.g.prepare()}

    def prepare_start(self, theta: Params, prepared: Mapping[str, Any]) -> dict[str, Any]:
        # All tasks begin at one point, and share its image.
        return {"phi0": self.g(theta, prepared["prepared"])}

    def begin(self, theta: Params, prepared: Mapping[str, Any], noise: Params) -> State:
        return State(theta, prepared)

    def primal(self, state: State) -> Params:
        memory = state.memory
        phi: Params = memory["phi0"] if "phi0" in memory else self.g(state.z, memory["prepared"])
        return phi

    def step(self, state: State, grad: Params, lr: float) -> State:
        z, memory = super().step(state, grad, lr)
        return State(z, {"prepared": memory["prepared"]})

    def candidate_mirror_map(self, theta: Params) -> MirrorMap:
        return self.g
