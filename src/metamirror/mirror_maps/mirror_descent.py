"""A mirror map in the geometry slot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metamirror.core.geometry import Geometry, State
from metamirror.core.tasks import Params
from metamirror.mirror_maps.base import MirrorMap


class MirrorGeometry(Geometry):
    r"""Mirror descent in its dual form, eq. (7): $z \leftarrow z - \alpha \nabla L(g(z))$.

    The learned start is the dual $z^{(0)}$, so that whatever changes g moves the first point
    $g(z^{(0)})$ as well: a geometry that is still being learned disturbs the start. An anchored
    map, $\phi = g(z) - g(z^{(0)}) + z^{(0)}$, does not. It is g up to a constant, a mirror map
    where g is one and with the same slopes, and it holds the start in place.

    Args:
        g: the inverse mirror map.
        anchored: shift g so that the start is its own image. What only adds a constant to g then
            has no effect and is frozen.
    """

    def __init__(self, g: MirrorMap, *, anchored: bool = False):
        super().__init__()
        self.g = g
        self.anchored = anchored
        if anchored:
            for constant in g.constants():
                constant.requires_grad_(False)

    def prepare(self) -> dict[str, Any]:
        return {"prepared": self.g.prepare()}

    def prepare_start(self, theta: Params, prepared: Mapping[str, Any]) -> dict[str, Any]:
        # All tasks begin at one point, and share its image.
        image = self.g(theta, prepared["prepared"])
        if not self.anchored:
            return {"phi0": image}
        return {"phi0": theta, "shift": {name: z - image[name] for name, z in theta.items()}}

    def begin(self, theta: Params, prepared: Mapping[str, Any], noise: Params) -> State:
        if self.anchored and "shift" not in prepared:
            prepared = {**prepared, **self.prepare_start(theta, prepared)}
        return State(theta, prepared)

    def primal(self, state: State) -> Params:
        memory = state.memory
        if "phi0" in memory:
            phi0: Params = memory["phi0"]
            return phi0
        image: Params = self.g(state.z, memory["prepared"])
        if not self.anchored:
            return image
        return {name: phi + memory["shift"][name] for name, phi in image.items()}

    def step(self, state: State, grad: Params, lr: float) -> State:
        z, memory = super().step(state, grad, lr)
        return State(z, {key: value for key, value in memory.items() if key != "phi0"})

    def candidate_mirror_map(self, theta: Params) -> MirrorMap:
        # Up to the shift, which changes no slope.
        return self.g
