"""The implicit adjoint against its definition: dense solves, limits, memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import metamirror as mm
from metamirror.core.adjoints import Implicit
from metamirror.core.implicit import conjugate_gradients
from metamirror.testing.methods import meta_gradient, relative_difference
from metamirror.testing.networks import smooth_mlp
from tests.comparing import one
from tests.networks import conv4, image_tasks, point_tasks, shaken

EXACT = "implicit:cg=400,damping=0"


class Naive:
    """The implicit gradient of one task, by dense matrices over one long vector.

    `names` adapt, from the values in `model`; the others are constants of the lower level, whose
    own gradient is `by_rest`. `precision` is the prior's, one number or one for each parameter.
    """

    def __init__(self, model, task, names, precision, *, steps, lr, damping):
        self.model, self.task, self.names = model, task, names
        values = {name: p.detach() for name, p in model.named_parameters()}
        self.rest = {name: p for name, p in values.items() if name not in names}
        self.shapes = {name: values[name].shape for name in names}
        theta = torch.cat([values[name].flatten() for name in names])
        phi = theta.clone()
        self.share = 1.0
        for _ in range(steps):
            phi = phi - lr * self.gradient(phi, theta, precision, self.rest)
        # From here on the loss is damped: everything that is differentiated, and nothing else.
        self.share = 1 / (1 + damping)
        phi.requires_grad_()
        q = torch.autograd.grad(self.loss(phi, self.rest, task.query), phi)[0]
        hessian = torch.autograd.functional.hessian(
            lambda p: self.loss(p, self.rest, task.support), phi
        )
        system = self.share * hessian + torch.diag(precision.expand_as(phi))
        self.w = torch.linalg.solve(system, q)
        self.phi, self.theta, self.precision = phi.detach(), theta, precision
        self.by_start = precision * self.w

    def loss(self, phi: Tensor, rest: dict[str, Tensor], batch: mm.Batch) -> Tensor:
        pieces = phi.split([shape.numel() for shape in self.shapes.values()])
        own = {n: t.view(s) for t, (n, s) in zip(pieces, self.shapes.items(), strict=True)}
        return F.cross_entropy(functional_call(self.model, {**rest, **own}, (batch.x,)), batch.y)

    def gradient(self, phi, theta, precision, rest) -> Tensor:
        """Of a share of the loss plus the prior, with a graph that reaches all it depends on."""
        with torch.enable_grad():
            own = phi.detach().requires_grad_()
            loss = self.share * self.loss(own, rest, self.task.support)
            return torch.autograd.grad(loss, own, create_graph=True)[0] + precision * (phi - theta)

    def by_precision(self) -> Tensor:
        return -self.w * (self.phi - self.theta)

    def by_rest(self) -> dict[str, Tensor]:
        """By parameters that do not adapt: through the minimiser, and by the query directly."""
        rest = {name: t.clone().requires_grad_() for name, t in self.rest.items()}
        tensors = list(rest.values())
        total = -self.w @ self.gradient(self.phi, self.theta, self.precision, rest)
        total = total + self.loss(self.phi, rest, self.task.query)
        return dict(zip(rest, torch.autograd.grad(total, tensors), strict=True))


def first(tasks: mm.Task) -> tuple[mm.Task, mm.Task]:
    """The first task, as a stack of one and without its task axis."""
    stack = mm.Task(*(mm.Batch(x[:1], y[:1]) for x, y in tasks))
    return stack, mm.Task(one(tasks.support), one(tasks.query))


def flat(grads: dict[str, Tensor], names: list[str]) -> Tensor:
    return torch.cat([grads[f"model.{name}"].flatten() for name in names])


@pytest.mark.parametrize("damping", [0.0, 0.5, 21.0])
@pytest.mark.parametrize("method", ["maml", "anil"])
def test_the_gradient_is_that_of_a_dense_solve(method: str, damping: float):
    stack, task = first(point_tasks())
    adjoint = f"implicit:cg=400,damping={damping}"
    learner = mm.make_learner(
        method, smooth_mlp(), steps=20, lr=0.1, prior="isotropic:0.7", adjoint=adjoint
    )
    found = meta_gradient(learner, stack)
    precision = torch.tensor(0.7, dtype=torch.float64)
    naive = Naive(smooth_mlp(), task, learner.adapts, precision, steps=20, lr=0.1, damping=damping)
    torch.testing.assert_close(flat(found, learner.adapts), naive.by_start, rtol=0, atol=1e-8)
    if method == "anil":
        for name, grad in naive.by_rest().items():
            torch.testing.assert_close(found[f"model.{name}"], grad, rtol=0, atol=1e-8)


def test_the_precisions_have_a_gradient_too():
    stack, task = first(point_tasks())
    learner = mm.make_learner(
        "maml", smooth_mlp(), steps=20, lr=0.1, prior="diagonal:2", adjoint=EXACT
    )
    shaken(learner.prior, size=0.3)
    found = meta_gradient(learner, stack)
    precision = torch.cat([p.detach().exp().flatten() for p in learner.prior.parameters()])
    naive = Naive(smooth_mlp(), task, learner.adapts, precision, steps=20, lr=0.1, damping=0)
    torch.testing.assert_close(flat(found, learner.adapts), naive.by_start, rtol=0, atol=1e-8)
    own = torch.cat([g.flatten() for n, g in found.items() if n.startswith("prior.")])
    # The logarithm is what is learned.
    torch.testing.assert_close(own, precision * naive.by_precision(), rtol=0, atol=1e-8)


@pytest.mark.parametrize("damping", [0, 1, 21])
def test_a_strong_prior_leaves_the_query_gradient_at_the_start(damping: int):
    stack, task = first(point_tasks())
    learner = mm.make_learner(
        "maml",
        smooth_mlp(),
        steps=5,
        lr=1e-10,
        prior="isotropic:1e9",
        adjoint=Implicit(damping=damping),
    )
    found = meta_gradient(learner, stack)
    model = smooth_mlp()
    F.cross_entropy(model(task.query.x), task.query.y).backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(found[f"model.{name}"], p.grad, rtol=0, atol=1e-8)


class Quadratic:
    """Least squares, whose minimiser under a prior has a closed form."""

    def __init__(self, inputs: int = 4, lam: float = 0.5):
        generator = torch.Generator().manual_seed(3)
        x, y = (torch.randn(12, n, generator=generator, dtype=torch.float64) for n in (inputs, 1))
        query = mm.Batch(x[6:], y[6:])
        self.task = mm.Task(mm.Batch(x[:6], y[:6]), query)
        self.stack = mm.Task(*(mm.Batch(b.x[None], b.y[None]) for b in self.task))
        self.model = nn.Linear(inputs, 1, bias=False).double()
        self.theta = self.model.weight.detach()[0]
        self.lam = lam
        self.hessian = 2 * x[:6].T @ x[:6] / 6
        system = self.hessian + lam * torch.eye(inputs, dtype=torch.float64)
        right = 2 * x[:6].T @ y[:6, 0] / 6 + lam * self.theta
        self.minimiser = torch.linalg.solve(system, right)
        q = 2 * query.x.T @ (query.x @ self.minimiser - query.y[:, 0]) / 6
        self.gradient = lam * torch.linalg.solve(system, q)

    def learner(self, method: str = "maml", adjoint: str = EXACT, steps: int = 600):
        prior = f"isotropic:{self.lam}"
        return mm.make_learner(
            method, self.model, steps=steps, lr=0.1, prior=prior, adjoint=adjoint
        )


@pytest.mark.parametrize("adjoint", [EXACT, "unrolled", "rematerialised"])
def test_on_a_quadratic_every_exact_adjoint_ends_at_the_closed_form(adjoint: str):
    quadratic = Quadratic()
    learner = quadratic.learner(adjoint=adjoint)
    adapted = learner.adapt(quadratic.task.support)
    torch.testing.assert_close(adapted.params["weight"][0], quadratic.minimiser, rtol=0, atol=1e-9)
    found = meta_gradient(learner, quadratic.stack)["model.weight"][0]
    torch.testing.assert_close(found, quadratic.gradient, rtol=0, atol=1e-9)


@pytest.mark.parametrize("method", ["metasgd", "gradnet", "blockiaf", "metacurvature"])
def test_the_minimiser_does_not_depend_on_the_geometry(method: str):
    quadratic = Quadratic()
    torch.manual_seed(0)
    learner = quadratic.learner(method)
    shaken(learner.geometry, size=0.01)
    found = meta_gradient(learner, quadratic.stack)
    start = found.pop("model.weight")[0]
    torch.testing.assert_close(start, quadratic.gradient, rtol=0, atol=1e-6)
    assert all(float(grad.abs().max()) == 0 for grad in found.values())


def test_the_last_steps_are_unrolled_for_the_rates_of_metasgd():
    stack, task = first(point_tasks())

    def learner(adjoint: str, steps: int = 5) -> mm.Learner:
        prior = "isotropic:0.7"
        return shaken(
            mm.make_learner(
                "metasgd", smooth_mlp(), steps=steps, lr=0.1, prior=prior, adjoint=adjoint
            ),
            size=0.05,
        )

    without, found = (meta_gradient(learner(f"implicit:last={k}"), stack) for k in (0, 2))
    model = learner("implicit").model
    phi = dict(learner("implicit", steps=3).adapt(task.support).params)
    theta = {name: p.detach() for name, p in model.named_parameters()}
    rates = [r.detach().requires_grad_() for r in learner("implicit").geometry.rates]
    for _ in range(2):
        leaves = {n: p if p.requires_grad else p.requires_grad_() for n, p in phi.items()}
        loss = F.cross_entropy(functional_call(model, leaves, (task.support.x,)), task.support.y)
        grads = torch.autograd.grad(loss, list(leaves.values()), create_graph=True)
        phi = {
            name: p - rate * (g + 0.7 * (p - theta[name]))
            for (name, p), g, rate in zip(leaves.items(), grads, rates, strict=True)
        }
    query = F.cross_entropy(functional_call(model, phi, (task.query.x,)), task.query.y)
    for i, grad in enumerate(torch.autograd.grad(query, rates)):
        torch.testing.assert_close(found[f"geometry.rates.{i}"], grad, rtol=0, atol=1e-12)
        assert float(without[f"geometry.rates.{i}"].abs().max()) == 0
    for name in theta:
        assert torch.equal(found[f"model.{name}"], without[f"model.{name}"])


@pytest.mark.parametrize("method", ["gradnet", "blockiaf", "metakfo:adapt_transform=true"])
def test_the_last_steps_reach_the_geometry_alone(method: str):
    """All of them, from a start that is a constant: what unrolling gives the geometry."""
    found = {}
    for adjoint in ("implicit", "implicit:last=9", "unrolled"):
        torch.manual_seed(0)
        learner = mm.make_learner(
            method, smooth_mlp(), steps=3, lr=0.1, prior="isotropic:0.7", adjoint=adjoint
        )
        found[adjoint] = meta_gradient(shaken(learner, size=0.05), point_tasks())
    for name, grad in found["implicit:last=9"].items():
        other = "unrolled" if name.startswith("geometry.") else "implicit"
        torch.testing.assert_close(grad, found[other][name], rtol=0, atol=1e-12)


class PeakMemory(TorchDispatchMode):
    """The most bytes that tensors held at any time, counted operation by operation."""

    def __init__(self) -> None:
        super().__init__()
        self.peak, self._live, self._most = 0, {}, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                before = self._live.get(storage._cdata, (None, 0))[1]
                self._live[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
                self._most += storage.nbytes() - before
        if self._most > self.peak:
            # Only now is it worth looking which of them are gone.
            self._live = {key: pair for key, pair in self._live.items() if not pair[0].expired()}
            self._most = sum(size for _, size in self._live.values())
            self.peak = max(self.peak, self._most)
        return result


def peak_of(adjoint: str, steps: int) -> int:
    learner = mm.make_learner(
        "maml", smooth_mlp(), steps=steps, lr=0.1, prior="isotropic:1", adjoint=adjoint
    )
    parameters = list(learner.parameters())
    with PeakMemory() as memory:
        torch.autograd.grad(learner.meta_loss(point_tasks(shots=40)), parameters)
    return memory.peak


def test_memory_does_not_grow_with_the_steps():
    few, many = (peak_of("implicit", steps) for steps in (5, 50))
    assert many < 1.1 * few
    assert peak_of("unrolled", 20) > 3 * many


def test_tasks_in_threads_give_the_same_gradient():
    learner = mm.make_learner("imaml", conv4(), steps=2, lr=0.1)
    tasks = image_tasks(size=16)
    found = learner.meta_gradient(tasks)[1]
    for grad, expected in zip(found, meta_gradient(learner, tasks).values(), strict=True):
        torch.testing.assert_close(grad, expected, rtol=0, atol=1e-12)


PRIOR = "adjoint=implicit:prior=isotropic:1"


@pytest.mark.parametrize(
    "spec",
    [
        "imaml:adjoint=implicit:damping=0",
        "ibaml",
        "metasgd:adjoint=implicit:prior=diagonal:2",
        f"blockiaf:start=dual:{PRIOR}",
        f"anil:{PRIOR}",
        f"warpgrad:{PRIOR}",
        f"maml:start=ridge:{PRIOR}",
    ],
)
def test_a_stack_of_tasks_has_the_gradient_of_one_after_the_other(spec: str):
    found, expected = (
        shaken(mm.make_learner(spec, smooth_mlp(), steps=3, lr=0.1, vectorize=at_once), size=0.05)
        .double()
        .meta_gradient(point_tasks(), seeds=range(len(point_tasks().support.y)))[1]
        for at_once in (True, False)
    )
    for grad, own in zip(found, expected, strict=True):
        torch.testing.assert_close(grad, own, rtol=1e-10, atol=1e-12)


def test_warp_layers_are_reached_through_the_minimiser():
    """They are part of the model, and of the minimiser."""
    learner = mm.make_learner(
        "warpgrad", smooth_mlp(), steps=150, lr=0.3, prior="isotropic:1", adjoint=EXACT
    )
    unrolled = mm.make_learner("warpgrad", smooth_mlp(), steps=150, lr=0.3, prior="isotropic:1")
    found, expected = (meta_gradient(each, point_tasks()) for each in (learner, unrolled))
    assert relative_difference(found, expected) < 1e-8


def test_conjugate_gradients_stop_where_there_is_no_minimum():
    indefinite = torch.tensor([1.0, -1.0])
    b, ones = [torch.tensor([[1.0, 2.0]])], [torch.ones(1, 2)]
    assert bool((conjugate_gradients(lambda v: [indefinite * v[0]], b, 9, ones)[0] == 0).all())
    # The largest step that a single precision holds is shorter than 1 / 1e-45.
    flat = [torch.tensor([[1e10, 0.0]])]
    for tiny in (1e-45, 1e-30):
        found = conjugate_gradients(lambda v, tiny=tiny: [tiny * v[0]], flat, 9, ones)[0]
        assert bool(found.isfinite().all())
    nothing = [torch.zeros(1, 2)]
    assert torch.equal(conjugate_gradients(lambda v: v, nothing, 9, ones)[0], nothing[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_undamped_gradients_are_finite_where_the_loss_curves_downwards(dtype: torch.dtype):
    """At a saddle: all weights near zero, and a prior too weak to make it a minimum."""
    model = smooth_mlp().to(dtype)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.05)
    tasks = mm.Task(*(mm.Batch(x.to(dtype), y) for x, y in point_tasks()))
    learner = mm.make_learner(
        "maml:adjoint=implicit:cg=50", model, steps=1, lr=1e-3, prior="isotropic:1e-4"
    )
    task = first(tasks)[1]
    phi = dict(learner.adapt(task.support).params)
    names, sizes = list(phi), [p.numel() for p in phi.values()]

    def loss(vector: Tensor) -> Tensor:
        own = {n: t.view_as(phi[n]) for n, t in zip(names, vector.split(sizes), strict=True)}
        return F.cross_entropy(functional_call(model, own, (task.support.x,)), task.support.y)

    hessian = torch.autograd.functional.hessian(
        loss, torch.cat([p.flatten() for p in phi.values()])
    )
    assert float(torch.linalg.eigvalsh(hessian).min()) < -1e-3
    assert all(bool(grad.isfinite().all()) for grad in meta_gradient(learner, tasks).values())


@pytest.mark.parametrize("method", ["maml", "blockiaf:start=dual", "mamlpp", "maml:start=ridge"])
def test_without_a_step_there_is_nothing_to_differentiate_implicitly(method: str):
    found, expected = (
        meta_gradient(
            shaken(
                mm.make_learner(
                    method, smooth_mlp(), steps=0, lr=0.1, prior="isotropic:1", adjoint=adjoint
                ),
                size=0.05,
            ),
            point_tasks(),
        )
        for adjoint in ("implicit", "unrolled")
    )
    assert relative_difference(found, expected) == 0


@pytest.mark.parametrize(
    ("spec", "options", "words"),
    [
        ("maml:adjoint=implicit", {}, r"and there is none: give one, such as prior=isotropic:1"),
        ("maml", {"adjoint": "implicit", "prior": "isotropic:0"}, "its weight is 0: give one"),
        ("snail:adjoint=implicit:prior=isotropic:1", {}, "takes none: leave the adjoint out"),
        (
            "imaml:adjoint=implicit:last=1",
            {"vectorize": True},
            "cannot run the implicit adjoint: leave vectorize off",
        ),
        ("maml", {"adjoint": "implicit:cg=0"}, "implicit:cg is 0; it must be at least 1"),
        ("maml", {"adjoint": "implicit:damping=-1"}, "damping is -1.0; it must be finite and at"),
        ("maml", {"adjoint": "implicit:last=-1"}, "last is -1; it must be at least 0"),
        ("maml:adjoint=implicit:gc=5", {"prior": "isotropic:1"}, "maml has no option 'gc'"),
        ("mtnet", {"adjoint": "implicit:last=1", "prior": "isotropic:1"}, "draws noise"),
    ],
)
def test_what_cannot_be_is_refused(spec: str, options: dict, words: str):
    with pytest.raises(ValueError, match=words):
        mm.make_learner(spec, smooth_mlp(), **options)


@pytest.mark.parametrize("spec", ["ecml", "warpgrad:objective=trajectory"])
def test_objectives_that_need_the_whole_path_are_refused(spec: str):
    learner = mm.make_learner(spec, smooth_mlp(), prior="isotropic:1", adjoint="implicit")
    with pytest.raises(ValueError, match="uses other points or single steps: choose another adj"):
        learner.meta_loss(point_tasks())
    learner.adapt(one(point_tasks().support))


def test_a_further_derivative_is_refused_rather_than_wrong():
    learner = mm.make_learner("imaml", smooth_mlp())
    loss = learner.meta_loss(point_tasks())
    with pytest.raises(RuntimeError, match="choose the adjoint unrolled"):
        torch.autograd.grad(loss, list(learner.parameters()), create_graph=True)


@pytest.mark.parametrize(
    "spec", ["maml:adjoint=implicit:cg=7,last=1", "maml:cg=7:adjoint=implicit:last=1"]
)
def test_its_numbers_may_follow_it_in_a_specification(spec: str, tmp_path):
    learner = mm.make_learner(spec, smooth_mlp(), prior="isotropic:2")
    assert learner.settings.adjoint == Implicit(cg=7, damping=0.0, last=1)
    mm.save(learner, tmp_path)
    assert mm.load(tmp_path).settings.adjoint == learner.settings.adjoint
    learner.configure(adjoint="implicit:cg=7:damping=3")
    assert learner.settings.adjoint == Implicit(cg=7, damping=3)


@pytest.mark.parametrize("method", ["maml", "anil"])
def test_much_damping_is_the_gradient_at_the_adapted_parameters(method: str):
    """Of the query loss, by torch alone; where K steps end is the adjoint's own affair.

    What does not adapt has no other gradient left than that of the query either.
    """
    stack, task = first(point_tasks())
    adjoint = "implicit:cg=5,damping=1e12"
    learner = mm.make_learner(
        method, smooth_mlp(), steps=3, lr=0.1, prior="isotropic:2", adjoint=adjoint
    )
    values = dict(smooth_mlp().named_parameters()) | dict(learner.adapt(task.support).params)
    phi = {name: p.detach().clone().requires_grad_() for name, p in values.items()}
    loss = F.cross_entropy(functional_call(smooth_mlp(), phi, (task.query.x,)), task.query.y)
    grads = torch.autograd.grad(loss, list(phi.values()))
    expected = {f"model.{name}": g for name, g in zip(phi, grads, strict=True)}
    assert relative_difference(meta_gradient(learner, stack), expected) < 1e-9
