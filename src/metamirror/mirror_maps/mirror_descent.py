"""Mirror descent: a mirror map in the geometry slot."""

from typing import Any, NamedTuple

from torch import Tensor

from metamirror.core.geometry import Geometry, moved
from metamirror.core.mirror_map import MirrorMap
from metamirror.core.tasks import Params


class MirrorState(NamedTuple):
    """The dual point z and its image phi; what g prepared, and the constant added to it."""

    z: Params
    phi: Params
    prepared: Any
    shift: Params | None


class MirrorDescent(Geometry[MirrorState]):
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

    def prepare(self, theta: Params | None) -> MirrorState | Any:
        prepared = self.g.prepare()
        # Tasks that begin at one point share its image.
        return prepared if theta is None else self._state(theta, prepared)

    def begin(self, theta: Params, prepared: MirrorState | Any, noise: Params) -> MirrorState:
        if isinstance(prepared, MirrorState):
            return prepared._replace(z=theta)
        return self._state(theta, prepared)

    def _state(self, z: Params, prepared: Any) -> MirrorState:
        image = self.g(z, prepared)
        if not self.anchored:
            return MirrorState(z, image, prepared, None)
        shift = {name: value - image[name] for name, value in z.items()}
        return MirrorState(z, z, prepared, shift)

    def primal(self, state: MirrorState) -> Params:
        return state.phi

    def step(
        self, state: MirrorState, grad: Params, *, lr: float, loss: Tensor, k: int
    ) -> MirrorState:
        z = moved(state.z, grad, lr)
        phi = self.g(z, state.prepared)
        if state.shift is not None:
            phi = {name: value + state.shift[name] for name, value in phi.items()}
        return state._replace(z=z, phi=phi)

    def candidate_mirror_map(self, theta: Params) -> MirrorMap:
        # Up to the shift, which changes no slope.
        return self.g
