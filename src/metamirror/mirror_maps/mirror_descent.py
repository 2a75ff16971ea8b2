"""Mirror descent: a mirror map in the geometry slot."""

from typing import Any, NamedTuple, get_args

from torch import Tensor

from metamirror.core.geometry import Geometry, moved
from metamirror.core.mirror_map import MirrorMap
from metamirror.core.settings import Point
from metamirror.core.tasks import Params


class MirrorState(NamedTuple):
    """The dual point z and its image phi; what g prepared, and what is still to be added to it.

    The constant of a primal start is computed with the first step, where tasks do not share it.
    """

    z: Params
    phi: Params
    prepared: Any
    shift: Params | None = None
    complete: bool = True


class MirrorDescent(Geometry[MirrorState]):
    r"""Mirror descent in its dual form, eq. (7): $z \leftarrow z - \alpha \nabla L(g(z))$.

    With a primal start the learned vector $\theta$ is $\phi^{(0)}$ and
    $z^{(0)} = \nabla h(\theta)$, the paper's definition. A mirror map is given up to a constant,
    and the constant is chosen so that $\nabla h(\theta) = \theta$: the map is
    $\phi = g(z) - g(\theta) + \theta$, which has g's slopes, is a mirror map where g is one, and
    needs no inverse. Whatever g learns, the start stays where it is.

    With a dual start, the paper's Algorithm 1, $\theta$ is $z^{(0)}$, and every change of g moves
    the first point $g(\theta)$ as well.

    Args:
        g: the inverse mirror map.
        start: "primal" or "dual". With a primal start, parameters that only add a constant to g
            have no effect and are frozen.
    """

    def __init__(self, g: MirrorMap, *, start: Point = "primal"):
        super().__init__()
        if start not in get_args(Point):
            raise ValueError(f"start is {start!r}; choose 'primal' or 'dual'")
        self.g = g
        self.start = start
        self.moves_start = start == "dual"
        if start == "primal":
            for constant in g.constants():
                constant.requires_grad_(False)

    def prepare(self, theta: Params | None) -> MirrorState | Any:
        prepared = self.g.prepare()
        # Tasks that begin at one point share its image.
        return prepared if theta is None else self._state(theta, prepared)

    def begin(self, theta: Params, prepared: MirrorState | Any, noise: Params) -> MirrorState:
        if isinstance(prepared, MirrorState):
            return prepared._replace(z=theta)
        if self.start == "primal":
            return MirrorState(theta, theta, prepared, complete=False)
        return self._state(theta, prepared)

    def _state(self, z: Params, prepared: Any) -> MirrorState:
        if self.start == "dual":
            return MirrorState(z, self.g(z, prepared), prepared)
        image = self.g(z, prepared)
        shift = {name: value - image[name] for name, value in z.items()}
        whole = self.g.with_constant(prepared, shift)
        return MirrorState(z, z, prepared, shift) if whole is None else MirrorState(z, z, whole)

    def primal(self, state: MirrorState) -> Params:
        return state.phi

    def step(
        self, state: MirrorState, grad: Params, *, lr: float, loss: Tensor, k: int
    ) -> MirrorState:
        if not state.complete:
            state = self._state(state.z, state.prepared)
        z = moved(state.z, grad, lr)
        phi = self.g(z, state.prepared)
        if state.shift is not None:
            phi = {name: value + state.shift[name] for name, value in phi.items()}
        return state._replace(z=z, phi=phi)

    def candidate_mirror_map(self, theta: Params) -> MirrorMap:
        # Up to the shift, which changes no slope.
        return self.g
