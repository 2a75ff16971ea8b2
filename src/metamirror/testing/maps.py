"""What a mirror map says of itself, measured at a small point with dense matrices."""

import copy

import torch
from torch import Tensor

from metamirror.core.mirror_map import MirrorMap
from metamirror.core.tasks import Params
from metamirror.linalg.tensor_stacks import flat, unflat
from metamirror.testing.differences import check_slope, move, named, require


def check_mirror_map(g: MirrorMap, z: Params | None = None) -> None:
    """Check what a mirror map claims: its derivatives, slopes, bounds, inverse and potential.

    The map is copied to float64 and checked with the parameters it has, and far from them. What
    it leaves out (an inverse, bounds, a potential) is not checked.

    Args:
        g: the map.
        z: a small point that it takes. It may be left out for a map that has `shapes`, a dict of
            the shapes of the parameters that it takes.

    >>> from metamirror.mirror_maps import Diagonal
    >>> check_mirror_map(Diagonal({"w": torch.tensor([0.5, 2.0])}), {"w": torch.ones(2)})
    """
    if z is None:
        shapes = getattr(g, "shapes", None)
        if shapes is None:
            raise ValueError(f"{type(g).__name__} has no shapes: give a point z that it takes")
        z = {name: torch.ones(shape) for name, shape in shapes.items()}
    if (size := sum(t.numel() for t in z.values())) > 2000:
        raise ValueError(f"z has {size} entries; build the map for at most 2000 to check it")
    point = {name: t.detach().double().clone() for name, t in z.items()}
    move(list(point.values()), 1.0, seed=0)
    checks = (check_output, check_derivatives, check_jacobian)
    for check in (*checks, check_inverse, check_potential, check_constants):
        for distance in (0.0, 0.5):
            moved = copy.deepcopy(g).double()
            move(list(moved.parameters()), distance, seed=1)
            check(moved, point)


def check_output(g: MirrorMap, z: Params) -> None:
    """Check the form of g(z), and that it is the same when prepared, under vmap and on meta."""
    require(
        isinstance(g, MirrorMap), f"{type(g).__name__} is no MirrorMap: derive it from that class"
    )
    phi = g(z)
    found, expected = ({n: (tuple(t.shape), t.dtype) for n, t in p.items()} for p in (phi, z))
    require(found == expected, f"g(z) has {found}; it must have the form of z, {expected}")
    require(bool(torch.isfinite(flat(phi)).all()), "g(z) is not finite at a finite z")
    require(
        _distance(phi, g(z, g.prepare())) == 0,
        "g(z, g.prepare()) differs from g(z): forward must use nothing but what prepare returns",
    )
    with named("under torch.func.vmap g(z) fails", "do not branch on values nor change z"):
        stacked = torch.func.vmap(g)({n: torch.stack([t, -t]) for n, t in z.items()})
    error = _distance(phi, {n: t[0] for n, t in stacked.items()})
    require(
        error <= 1e-10 * (1 + _size(phi)),
        f"under torch.func.vmap g(z) differs by {error:.3g}: do not branch on values nor change z",
    )
    with named("g of a point on the meta device fails", "make every tensor where z is"):
        on_meta = copy.deepcopy(g).to("meta")({n: t.to("meta") for n, t in z.items()})
    require(
        all(t.is_meta for t in on_meta.values()),
        "g of a point on the meta device lies elsewhere: make every tensor where z is",
    )


def check_derivatives(g: MirrorMap, z: Params) -> None:
    """Check first and second derivatives, by z and by the map's parameters."""
    at = {name: t.detach().clone().requires_grad_() for name, t in z.items()}
    weights = flat(at).detach().cos()

    def value() -> Tensor:
        phi = flat(g(at))
        return (weights + phi / 2) @ phi

    def slope() -> Tensor:
        grads = torch.autograd.grad(value(), list(at.values()), create_graph=True)
        return torch.stack([grad.square().sum() for grad in grads]).sum()

    learned = [p for p in g.parameters() if p.requires_grad]
    for name, function in (("the first derivative", value), ("the second derivative", slope)):
        for tensors, by in ((list(at.values()), "z"), (learned, "the map's parameters")):
            if tensors:
                grads = torch.autograd.grad(function(), tensors, materialize_grads=True)
                check_slope(function, tensors, grads, f"{name} of g by {by}")


def check_jacobian(g: MirrorMap, z: Params) -> None:
    """Check the Jacobian against `is_gradient`, `bounds` and `is_linear`."""
    j = jacobian(g, z)
    values = torch.linalg.eigvalsh((j + j.T) / 2)
    low, high = float(values[0]), float(values[-1])
    zero = 1e-9 * max(1.0, abs(low), abs(high))
    skew = float((j - j.T).abs().max())
    require(
        not g.is_gradient or skew <= zero,
        f"is_gradient is True, but the Jacobian differs from its transpose by {skew:.3g}",
    )
    require(
        not g.is_gradient or low >= -zero,
        f"is_gradient is True, but the Jacobian has the eigenvalue {low:.3g}: g must increase",
    )
    for current in (False, True):
        m, largest = g.bounds(current=current) or (-torch.inf, torch.inf)
        require(
            m - zero <= low <= high <= largest + zero,
            f"bounds(current={current}) is ({m:.6g}, {largest:.6g}), but the Jacobian's slopes run "
            f"from {low:.6g} to {high:.6g}",
        )
    if g.is_linear:
        change = float((j - jacobian(g, {n: 2 * t + 1 for n, t in z.items()})).abs().max())
        require(change <= zero, f"is_linear is True, but the Jacobian changes by {change:.3g}")


def check_inverse(g: MirrorMap, z: Params) -> None:
    """Check that the inverse inverts, as far as the Jacobian's condition allows."""
    stretches = torch.linalg.svdvals(jacobian(g, z))
    lost = max(1.0, float(stretches[0])) / min(1.0, float(stretches[-1]))
    with torch.no_grad():
        phi = g(z)
        try:
            error = _distance(g.inverse(phi), z)
        except (NotImplementedError, ValueError):
            return
    require(
        error <= 1e-10 * lost * (1 + max(_size(z), _size(phi))),
        f"g.inverse(g(z)) differs from z by {error:.3g}: inverse must undo forward",
    )


def check_potential(g: MirrorMap, z: Params) -> None:
    """Check that a map that has a potential is its gradient."""
    at = {name: t.detach().clone().requires_grad_() for name, t in z.items()}
    try:
        grads = torch.autograd.grad(g.potential(at), list(at.values()), materialize_grads=True)
    except (NotImplementedError, ValueError):
        return
    error = _distance(dict(zip(z, grads, strict=True)), g(z))
    require(
        error <= 1e-9 * (1 + _size(z)),
        f"the gradient of potential(z) differs from g(z) by {error:.3g}: g must be its gradient",
    )


def check_constants(g: MirrorMap, z: Params) -> None:
    """Check that the parameters listed by `constants` add a constant and do nothing else."""
    other = {name: 2 * t + 1 for name, t in z.items()}
    with torch.no_grad():
        before = flat(g(z)) - flat(g(other))
        move(g.constants(), 1.0, seed=5)
        change = float((flat(g(z)) - flat(g(other)) - before).abs().max())
    require(
        change <= 1e-9 * (1 + float(before.abs().max())),
        f"constants() lists a parameter that does more than add a constant: moving it changes "
        f"g(z) - g(z') by {change:.3g}",
    )


def jacobian(g: MirrorMap, z: Params) -> Tensor:
    """Return the Jacobian of g at z as a matrix."""
    dense: Tensor = torch.func.jacrev(lambda vector: flat(g(unflat(vector, z))))(flat(z))
    return dense.detach()


def _distance(a: Params, b: Params) -> float:
    return float((flat(a) - flat(b)).detach().abs().max())


def _size(a: Params) -> float:
    return float(flat(a).detach().abs().max())
