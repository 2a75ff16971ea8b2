import pytest
import torch

import metamirror as mm
from metamirror.testing.networks import smooth_mlp
from tests.networks import point_tasks, shaken


def support():
    return mm.Batch(*(t[0] for t in point_tasks().support))


def set_logits(learner, value):
    with torch.no_grad():
        for logit in learner.geometry.logits:
            logit.fill_(value)


def test_a_mask_of_zeros_leaves_the_parameters_unchanged():
    learner = shaken(mm.make_learner("mtnet", smooth_mlp(), steps=5, lr=0.1))
    set_logits(learner, -1e6)
    start = learner.geometry.primal(learner.begin(support(), seed=0))
    for name, phi in learner.adapt(support(), seed=0).params.items():
        assert torch.equal(phi, start[name])


def test_identity_transforms_and_a_mask_of_ones_give_maml():
    learner = mm.make_learner("mtnet", smooth_mlp(), steps=5, lr=0.1)
    set_logits(learner, 1e6)
    maml = mm.make_learner("maml", smooth_mlp(), steps=5, lr=0.1)
    expected = maml.adapt(support()).params
    for name, phi in learner.adapt(support(), seed=0).params.items():
        torch.testing.assert_close(phi, expected[name], rtol=0, atol=1e-14)


def test_one_step_in_the_effective_weight_is_preconditioned_by_t_mask_t():
    learner = shaken(mm.make_learner("mtnet", smooth_mlp(), steps=1, lr=0.1))
    state = learner.begin(support(), seed=3)
    before = learner.geometry.primal(state)
    after = learner.adapt(support(), seed=3).params
    phi = {n: p.detach().requires_grad_() for n, p in before.items()}
    output = torch.func.functional_call(learner.model, phi, support().x)
    loss = torch.nn.functional.cross_entropy(output, support().y)
    grads = dict(zip(phi, torch.autograd.grad(loss, list(phi.values())), strict=True))
    masks = state.masks
    assert {0.0, 1.0} == {v for m in masks.values() for v in m.tolist()}
    for layer, transform in state.transforms.items():
        matrix = transform @ torch.diag(masks[layer]) @ transform.T
        for name in (f"{layer}.weight", f"{layer}.bias"):
            moved = before[name] - 0.1 * (matrix @ grads[name])
            torch.testing.assert_close(after[name], moved, rtol=1e-10, atol=1e-13)


def test_straight_through_gradient_is_that_of_the_relaxation():
    geometry = mm.make_learner("mtnet:temperature=0.7", smooth_mlp()).geometry
    logit = torch.randn(6, dtype=torch.float64, requires_grad=True)
    noise = torch.randn(6, dtype=torch.float64)
    weights = torch.randn(6, dtype=torch.float64)
    (found,) = torch.autograd.grad((geometry._mask(logit, noise) * weights).sum(), logit)
    soft = torch.sigmoid((logit + noise) / 0.7)
    torch.testing.assert_close(found, weights * soft * (1 - soft) / 0.7)


def test_units_update_with_the_probability_of_their_logit():
    geometry = mm.make_learner("mtnet", smooth_mlp()).geometry
    noise = geometry.draw(torch.Generator().manual_seed(0))
    many = torch.cat(
        [
            torch.cat(list(geometry.draw(torch.Generator().manual_seed(s)).values()))
            for s in range(400)
        ]
    )
    assert len(noise) == 3
    for logit in (-1.0, 0.0, 2.0):
        share = float(geometry._mask(torch.full_like(many, logit), many).mean())
        assert share == pytest.approx(float(torch.sigmoid(torch.tensor(logit))), abs=0.02)


def test_masks_start_open():
    """A unit adapts with probability sigmoid(4), or, as released, with one half."""
    for logit, probability in ((4.0, 0.982), (0.0, 0.5)):
        learner = mm.make_learner(f"mtnet:mask_logit={logit}", smooth_mlp())
        drawn = [learner.begin(support(), seed=s).masks.values() for s in range(300)]
        share = torch.cat([mask.detach() for masks in drawn for mask in masks]).mean()
        assert float(share) == pytest.approx(probability, abs=0.03)
    assert mm.METHODS["mtnet"].options().mask_logit == 4.0
    with pytest.raises(ValueError, match="mask_logit is inf"):
        mm.make_learner("mtnet:mask_logit=inf", smooth_mlp())


def test_masks_differ_between_tasks_and_repeat_with_the_seed():
    learner = mm.make_learner("mtnet:mask_logit=0", smooth_mlp())
    first, again, other = (learner.begin(support(), seed=s).masks for s in (1, 1, 2))
    assert all(torch.equal(first[k], again[k]) for k in first)
    assert any(not torch.equal(first[k], other[k]) for k in first)


def test_grouped_convolutions_and_tied_weights_are_left_alone():
    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.grouped = torch.nn.Conv2d(2, 2, 3, groups=2)
            self.a = torch.nn.Linear(4, 4)
            self.b = torch.nn.Linear(4, 4)
            self.b.weight = self.a.weight

    assert list(mm.make_learner("mtnet", Odd()).geometry.units) == ["a"]
