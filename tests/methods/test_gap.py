"""GAP against its formula, on few examples, and in other bases."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import metamirror as mm
from metamirror.testing.methods import check_learner_gradient, meta_gradient, relative_difference
from metamirror.testing.networks import smooth_conv, smooth_mlp
from tests.core.test_naive import LR, STEPS, naive_meta_loss, same
from tests.networks import NETWORKS, conv4, point_tasks, shaken


def naive_direction(learner: mm.Learner):
    """U (M Sigma) V' with the decomposition of torch, and its derivative."""
    geometry = learner.geometry
    scales = {
        name: torch.exp(3 * torch.tanh(10 / 3 * stored[i]))
        for names, stored in zip(geometry.groups.members.values(), geometry.scales, strict=True)
        for i, name in enumerate(names)
    }

    def direction(grads):
        found = dict(grads)
        for name, g in grads.items():
            if name in scales:
                u, s, vh = torch.linalg.svd(g.reshape(len(g), -1), full_matrices=False)
                found[name] = (u @ torch.diag(scales[name] * s) @ vh).reshape(g.shape)
        return found

    return direction


def naive_gradient(learner: mm.Learner, tasks: mm.Task, direction) -> dict[str, torch.Tensor]:
    names, parameters = zip(*learner.named_parameters(), strict=True)
    loss = naive_meta_loss(learner, tasks, same, direction)
    grads = torch.autograd.grad(loss, parameters, materialize_grads=True)
    return dict(zip(names, grads, strict=True))


@pytest.mark.parametrize("network", NETWORKS)
def test_meta_gradient_equals_a_naive_program(network: str):
    """The fully connected one has six examples, and layers of sixteen units."""
    make, make_tasks = NETWORKS[network]
    learner, tasks = shaken(mm.make_learner("gap", make(), steps=STEPS, lr=LR)), make_tasks()
    expected = naive_gradient(learner, tasks, naive_direction(learner))
    assert relative_difference(meta_gradient(learner, tasks), expected) < 1e-9


def test_inputs_that_are_all_zero_have_a_meta_gradient_where_torch_s_decomposition_has_none():
    """Columns of zeros make singular values of exactly zero."""
    learner = shaken(mm.make_learner("gap", smooth_mlp(), steps=STEPS, lr=LR))
    tasks = point_tasks()
    for batch in tasks:
        batch.x[..., 2:] = 0
    naive = naive_gradient(learner, tasks, naive_direction(learner))
    assert not all(torch.isfinite(g).all() for g in naive.values())
    check_learner_gradient(learner, tasks)


def test_it_has_no_preferred_basis():
    torch.manual_seed(0)
    geometry = shaken(mm.make_learner("gap:layers=all", smooth_mlp())).geometry
    prepared = geometry.prepare(None)
    grad = {name: torch.randn(shape).double() for name, shape in geometry.groups.shapes.items()}
    turns = {
        name: [torch.linalg.qr(torch.randn(n, n).double())[0] for n in g.shape]
        for name, g in grad.items()
    }
    turned = {name: q @ grad[name] @ r for name, (q, r) in turns.items()}
    direction = geometry.direction(grad, prepared)
    for name, found in geometry.direction(turned, prepared).items():
        q, r = turns[name]
        torch.testing.assert_close(found, q @ direction[name] @ r)


def test_the_kernels_of_convolutions_are_preconditioned_or_all_weights_but_vectors():
    def layers(spec: str, model: nn.Module) -> set[str]:
        return set(mm.make_learner(spec, model).geometry.groups.shapes)

    kernels = {f"blocks.{i}.conv.weight" for i in range(4)}
    assert layers("gap", conv4()) == layers("gap:layers=kernels", conv4()) == kernels
    assert layers("gap:layers=all", conv4()) == {*kernels, "head.weight"}
    weights = {name for name, p in smooth_mlp().named_parameters() if p.dim() == 2}
    assert layers("gap", smooth_mlp()) == weights
    with pytest.raises(ValueError, match=r"gap:layers is 'kernels'; the model has no such weights"):
        mm.make_learner("gap:layers=kernels", smooth_mlp())


def test_a_kernel_has_as_many_factors_as_singular_values():
    learner = mm.make_learner("gap", mm.models.Conv4(ways=5, channels=3, image_size=84, width=64))
    assert [tuple(p.shape) for p in learner.geometry.parameters()] == [(1, 27), (3, 64)]


@pytest.mark.parametrize("shape", [(3, 7), (7, 3)])
def test_the_approximate_form_is_exact_for_orthogonal_rows_in_order(shape: tuple[int, int]):
    torch.manual_seed(0)
    model = nn.Linear(shape[1], shape[0]).double()
    exact, approximate = (
        shaken(mm.make_learner(f"gap:approximate={word}", model)).geometry
        for word in ("false", "true")
    )
    size = min(shape)
    orthogonal = torch.linalg.qr(torch.randn(max(shape), size).double())[0]
    g = (orthogonal * torch.arange(size, 0, -1)).reshape(max(shape), size)
    grad = {"weight": g.mT if shape[0] < shape[1] else g}
    found, expected = (
        one.direction(grad, one.prepare(None))["weight"] for one in (approximate, exact)
    )
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(found, grad["weight"])


def test_the_approximate_form_is_mirror_descent_and_the_exact_one_depends_on_the_gradient():
    learner = shaken(mm.make_learner("gap:approximate=true", smooth_conv()))
    g = learner.geometry.candidate_mirror_map(learner.theta())
    low, high = g.bounds()
    assert 0 < low < 1 < high
    grad = {name: torch.randn_like(p) for name, p in learner.theta().items()}
    direction = learner.geometry.direction(grad, learner.geometry.prepare(None))
    for name, found in g(grad).items():
        torch.testing.assert_close(found, direction[name])
    exact = mm.make_learner("gap", smooth_conv())
    assert exact.geometry.candidate_mirror_map(exact.theta()) is None
