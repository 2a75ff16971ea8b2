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

    def begin(self, theta: Params, prepared: Mapping[str, Any], noise: Params) -> State:
        return State(theta, prepared)

    def primal(self, state: State) -> Params:
        phi: Params = self.g(state.z, state.memory["prepared"])
        return phi

    def candidate_mirror_map(self, theta: Params) -> MirrorMap:
        return self.g
