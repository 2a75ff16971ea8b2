"""What geometry a run has learned, and whether it is that of a mirror map."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from metamirror.core.adapted import Adapted
from metamirror.core.attention import plain_attention
from metamirror.core.geometry import Geometry
from metamirror.core.learner import Learner
from metamirror.core.mirror_map import Identity, MirrorMap, inner
from metamirror.core.tasks import Batch, Params
from metamirror.data import TaskStream
from metamirror.linalg.lanczos import lanczos
from metamirror.mirror_maps.base import norm
from metamirror.mirror_maps.certify import Certificate, Counterexample, certify
from metamirror.mirror_maps.partition import layers
from metamirror.mirror_maps.quadratic import Diagonal
from metamirror.training.config import load_config
from metamirror.training.evaluate_run import loaded
from metamirror.training.factory import build_stream

UNKNOWN = "unknown: the geometry does not say by which map it moves"
UNUSED = "no inner step is taken: the geometry is not used, and nothing is known of it"


@dataclass(frozen=True)
class Verdict:
    """Whether a geometry is that of a mirror map, and how that is known."""

    is_mirror_map: bool | None  # None where the question has no meaning, or no answer was found
    # "by construction", "checked at N points", "refuted at ..." or "unknown: ..."
    proof: str | None
    symmetric: bool | None = None  # the Jacobian equals its transpose
    monotone: bool | None = None  # the map is strictly increasing
    bounds: tuple[float, float] | None = None  # (m, M) with m I <= dg <= M I, proved or measured
    certificate: Certificate | None = None  # what was measured, where it was needed


def verdict_on(g: MirrorMap | None, points: list[Params], n: int) -> Verdict:
    """Return a verdict on a map: by construction where possible, else measured at the points."""
    if g is None:
        return Verdict(None, None)
    g.check_parameters()
    if g.is_gradient and (bounds := g.bounds(current=True)) is not None:
        return Verdict(True, "by construction", True, True, bounds)
    if isinstance(g, Diagonal):
        rates = torch.cat([*map(Tensor.flatten, g.rates.values())])
        low, high = map(float, rates.aminmax())
        proof = f"refuted at every point: a rate is {low:.3g}, not above zero"
        return Verdict(False, proof, True, False, (low, high))
    found = certify(g, points, n=n, seed=0)
    bounds = (found.smallest, found.largest)
    valid: bool | None = False
    if found.counterexample is not None:
        product = f"(z - z')'(g(z) - g(z')) = {found.counterexample.product:.3g}"
        proof = f"refuted at a pair of points: {product}"
    elif found.monotone is False:
        proof = f"refuted at a point: the smallest slope is {found.smallest:.3g}, not above zero"
    elif not found.symmetric:
        proof = f"refuted at a point: |J - J'| = {found.asymmetry:.3g}, so that no h exists"
    elif found.monotone is None:
        proof, valid = f"not decided at {found.points} points: slopes near zero", None
    else:
        proof, valid = f"checked at {found.points} points", True
    return Verdict(valid, proof, found.symmetric, found.monotone, bounds, found)


def inspect_run(
    run: Path, *, tasks: int = 4, points: int = 4, data_dir: Path | None = None
) -> dict[str, object]:
    """Return what `metamirror inspect --json` prints. Tasks come from the validation split."""
    config = load_config(run)
    # Rounding in float32 would pass for asymmetry.
    learner = loaded(run, "best")[0].double()
    stream = build_stream(config, "val", data_dir=data_dir)
    found = inspect_learner(learner, stream, tasks=tasks, points=points)
    return {"run": str(run), "method": config.method, "data": config.data, **found}


def inspect_learner(
    learner: Learner, stream: TaskStream, *, tasks: int = 4, points: int = 4
) -> dict[str, object]:
    """Return what is known of a learner's geometry, around its paths on new tasks."""
    if tasks < 1 or points < 1:
        raise ValueError(f"tasks is {tasks} and points {points}; both must be at least 1")
    supports, adaptations = [], []
    for i in range(tasks):
        step, index = divmod(i, stream.batch)
        support = stream.task(step, index).support
        supports.append(Batch(*(t.double() if t.is_floating_point() else t for t in support)))
        seed = stream.seeds(step)[index]
        adaptations.append(learner.adapt(supports[-1], seed=seed, keep=True))
    theta = {name: p.detach() for name, p in learner.theta().items()}
    visited = [adapted.path.states[-1].z for adapted in adaptations]
    g, verdict = None, Verdict(None, UNKNOWN if learner.steps else UNUSED)
    # A geometry of the user's own may leave open which map it amounts to.
    if (
        learner.steps
        and type(learner.geometry).candidate_mirror_map is not Geometry.candidate_mirror_map
    ):
        g = learner.geometry.candidate_mirror_map(theta)
        verdict = verdict_on(g, [theta, *visited], points)
    descends = learner.geometry.descends
    smoothness = None
    if descends:
        smoothness = max(
            loss_smoothness(learner, phi, support, adapted.path.points[0])
            for adapted, support in zip(adaptations, supports, strict=True)
            for phi in (adapted.path.points[0], adapted.path.points[-1])
        )
    shapes = {name: tuple(p.shape) for name, p in theta.items()}
    blocks = {block[0].rpartition(".")[0] or block[0]: block for block in layers(shapes)}
    # A preconditioner is looked at as it is now; only a map that the method itself holds, or the
    # identity, has constants that no training can leave.
    lasting = isinstance(g, Identity) or any(g is module for module in learner.geometry.modules())
    always = g.bounds() if g is not None and lasting else None
    m, largest = verdict.bounds or (None, None)
    # What was measured at points says nothing of h elsewhere, unless the Jacobian is constant.
    everywhere = verdict.proof == "by construction" or (g is not None and g.is_linear)
    known = bool(verdict.is_mirror_map) and everywhere and m is not None and largest is not None
    found = verdict.certificate
    return {
        "is_mirror_map": verdict.is_mirror_map,
        "proof": verdict.proof,
        "note": learner.geometry.candidate_note,
        "symmetric": verdict.symmetric,
        "monotone": verdict.monotone,
        "strong_convexity": 1 / largest if known and largest else None,
        "smoothness": 1 / m if known and m else None,
        "map_bounds": None if m is None else [m, largest],
        "map_bounds_hold": "everywhere" if everywhere else "at the points looked at",
        "map_bounds_always": None if always is None else list(always),
        "asymmetry": None if found is None else found.asymmetry,
        "counterexample": None if found is None else _in_short(found.counterexample),
        "lr": learner.lr,
        "loss_smoothness_estimate": smoothness,
        "step_size_bound_estimate": (
            2 / (largest * smoothness) if known and largest and smoothness else None
        ),
        "tasks": tasks,
        "effective_step_sizes": (
            effective_step_sizes(learner, adaptations, supports, blocks) if descends else {}
        ),
        "dependencies": None if g is None else dependencies(g, visited[0], blocks),
    }


def _in_short(counterexample: Counterexample | None) -> dict[str, float] | None:
    """Return the pair in numbers that fit a page; `certify` gives the points themselves."""
    if counterexample is None:
        return None
    moved = {name: z - counterexample.other[name] for name, z in counterexample.z.items()}
    return {"product": counterexample.product, "distance": float(norm(moved))}


def _grad(value: Tensor, leaves: Params, twice: bool = False) -> Params:
    grads = torch.autograd.grad(
        value, list(leaves.values()), retain_graph=True, create_graph=twice, materialize_grads=True
    )
    return dict(zip(leaves, grads, strict=True))


def loss_smoothness(
    learner: Learner, phi: Params, support: Batch, phi0: Params, iterations: int = 12
) -> float:
    """Return an estimate of l, the largest curvature of the lower level at phi, by Lanczos."""
    leaves = {name: phi[name].detach().requires_grad_() for name in learner.adapts}
    with plain_attention():
        value = learner.lower_level(support)({**phi, **leaves}, phi0)[0]
    grads = _grad(value, leaves, twice=True)

    def curvature(v: Params) -> Params:
        product = inner(grads, v)
        if not product.requires_grad:
            return {name: torch.zeros_like(p) for name, p in leaves.items()}
        return _grad(product, leaves)

    generator = torch.Generator().manual_seed(0)
    start = {
        name: torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p)
        for name, p in leaves.items()
    }
    spectrum = lanczos(curvature, start, iterations)
    return max(abs(spectrum.low), abs(spectrum.high))


def effective_step_sizes(
    learner: Learner,
    adaptations: list[Adapted],
    supports: list[Batch],
    blocks: Mapping[str, list[str]],
) -> dict[str, float]:
    """Return, by layer, how far steps go for the gradients they saw: |change of phi| / |grad|.

    There is nothing to return where no step is taken.
    """
    if not learner.steps:
        return {}
    moved = dict.fromkeys(blocks, 0.0)
    seen = dict.fromkeys(blocks, 0.0)
    for adapted, support in zip(adaptations, supports, strict=True):
        points = adapted.path.points
        for before, after in pairwise(points):
            grad = learner.lower_level(support).gradient(before, points[0])
            for block, names in blocks.items():
                moved[block] += float(norm({name: after[name] - before[name] for name in names}))
                seen[block] += float(norm({name: grad[name] for name in names}))
    return {block: moved[block] / seen[block] if seen[block] > 0 else 0.0 for block in blocks}


def dependencies(
    g: MirrorMap, z: Params, blocks: Mapping[str, list[str]], probes: int = 4
) -> dict[str, dict[str, float]]:
    r"""Return how much each layer of phi moves with each layer of z: $\|J_{ij}\|_F / \sqrt{n_i}$.

    Estimated by random signs: how far a typical number of layer i moves when every number of
    layer j is moved by one, up or down at random.
    """
    generator = torch.Generator().manual_seed(0)
    prepared = g.prepare()
    squares = {i: dict.fromkeys(blocks, 0.0) for i in blocks}
    for j, names in blocks.items():
        for _ in range(probes):
            signs = {
                name: (torch.randint(2, t.shape, generator=generator) * 2 - 1).to(t)
                if name in names
                else torch.zeros_like(t)
                for name, t in z.items()
            }
            with torch.no_grad():
                moved = torch.func.jvp(lambda point: g(point, prepared), (z,), (signs,))[1]
            for i, own in blocks.items():
                squares[i][j] += float(norm({name: moved[name] for name in own})) ** 2 / probes
    sizes = {i: sum(z[name].numel() for name in own) for i, own in blocks.items()}
    return {i: {j: (s / sizes[i]) ** 0.5 for j, s in row.items()} for i, row in squares.items()}
