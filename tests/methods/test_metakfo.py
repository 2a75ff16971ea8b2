import torch
from torch.func import functional_call

import metamirror as mm
from metamirror.testing.networks import smooth_mlp
from tests.networks import conv4, point_tasks, shaken


def support():
    return mm.Batch(*(t[0] for t in point_tasks().support))


def random_gradient(learner):
    random = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(p.shape, generator=random, dtype=torch.float64)
        for name, p in learner.theta().items()
    }


def test_the_psd_form_never_turns_a_gradient_around():
    learner = shaken(mm.make_learner("metakfo", smooth_mlp()), size=1.0)
    grad = random_gradient(learner)
    for name, moved in learner.geometry.transform(grad).items():
        assert (moved * grad[name]).sum().item() >= 0


def test_the_linear_form_is_l_l_g_r_r():
    learner = shaken(mm.make_learner("metakfo", smooth_mlp()), size=0.5)
    grad = random_gradient(learner)
    moved = learner.geometry.transform(grad)
    transform = learner.geometry.transform
    for names, (left, right) in zip(
        transform.groups.members.values(), transform.linear, strict=True
    ):
        for i, name in enumerate(names):
            g = grad[name] if grad[name].dim() == 2 else grad[name][:, None]
            expected = left[i].T @ left[i] @ g @ right[i].T @ right[i]
            torch.testing.assert_close(moved[name], expected.view_as(grad[name]))


def test_the_linear_form_is_a_map_of_a_quadratic():
    learner = shaken(mm.make_learner("metakfo", conv4()), size=0.3)
    grad = random_gradient(learner)
    g = learner.geometry.candidate_mirror_map(learner.theta())
    for name, moved in learner.geometry.transform(grad).items():
        torch.testing.assert_close(g(grad)[name], moved)


def test_the_stack_is_linear_relu_linear_relu_linear_beside_the_linear_form():
    learner = shaken(mm.make_learner("metakfo:hidden=2", smooth_mlp()), size=0.5)
    grad = random_gradient(learner)
    transform = learner.geometry.transform
    moved = transform(grad)
    parts = zip(transform.groups.members.values(), transform.linear, transform.stacks, strict=True)
    for names, (left, right), stack in parts:
        for i, name in enumerate(names):
            g = grad[name] if grad[name].dim() == 2 else grad[name][:, None]
            hidden = g
            for depth, (a, b) in enumerate(stack):
                hidden = a[i] @ (hidden if depth == 0 else hidden.relu()) @ b[i].T
            expected = left[i].T @ left[i] @ g @ right[i].T @ right[i] + hidden
            torch.testing.assert_close(moved[name], expected.view_as(grad[name]))


def test_the_stack_scales_with_the_gradient():
    learner = shaken(mm.make_learner("metakfo:hidden=2", smooth_mlp()), size=0.5)
    grad = random_gradient(learner)
    small = learner.geometry.transform({n: 1e-3 * g for n, g in grad.items()})
    for name, moved in learner.geometry.transform(grad).items():
        torch.testing.assert_close(small[name], 1e-3 * moved)


def test_an_adapted_transform_coincides_with_maml_for_one_step_only():
    maml = mm.make_learner("maml", smooth_mlp(), lr=0.1)
    kfo = mm.make_learner("metakfo:adapt_transform=true", smooth_mlp(), lr=0.1)
    for steps, equal in ((1, True), (2, False)):
        ours = kfo.adapt(support(), steps=steps).params
        theirs = maml.adapt(support(), steps=steps).params
        assert equal == all(torch.allclose(ours[n], theirs[n], atol=1e-12) for n in theirs)


def test_the_transform_descends_the_support_loss_as_autograd_says():
    """Step by step with the graph through the last update, as the authors' scripts do it."""
    learner = shaken(mm.make_learner("metakfo:adapt_transform=true", smooth_mlp(), lr=0.1))
    transform, lr = learner.geometry.transform, 0.1
    x, y = support()
    phi = dict(learner.theta())
    xi = dict(transform.named_parameters())
    for k in range(3):
        loss = torch.nn.functional.cross_entropy(functional_call(learner.model, phi, x), y)
        grads = torch.autograd.grad(loss, list(phi.values()), retain_graph=True)
        grads = dict(zip(phi, (g.detach() for g in grads), strict=True))
        if k > 0:
            slopes = torch.autograd.grad(loss, list(xi.values()))
            xi = {n: (v - lr * s) for (n, v), s in zip(xi.items(), slopes, strict=True)}
        xi = {n: v.detach().requires_grad_() for n, v in xi.items()}
        moves = functional_call(transform, xi, (grads,))
        phi = {n: p.detach() - lr * moves[n] for n, p in phi.items()}
    found = learner.adapt(support(), steps=3).params
    for name, p in phi.items():
        torch.testing.assert_close(found[name], p.detach(), rtol=1e-10, atol=1e-13)
