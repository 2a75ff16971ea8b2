"""Whose statistics batch normalisation uses."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import metamirror as mm
from metamirror.testing.methods import check_learner_gradient, meta_gradient, relative_difference
from metamirror.testing.networks import smooth_conv
from tests.comparing import ByHand, assert_same_params, one
from tests.networks import image_tasks, point_tasks, shaken, with_torch_norm

methods = pytest.mark.parametrize("method", mm.METHODS)


def normalised(norm: str, method: str = "maml", **options) -> mm.Learner:
    return shaken(
        mm.make_learner(method, smooth_conv(), steps=3, lr=0.1, norm=norm, **options), seed=4
    )


def test_inductive_predictions_do_not_depend_on_the_batch():
    (support, query) = (one(b) for b in image_tasks())
    adapted = normalised("inductive").adapt(support)
    rows = torch.cat([adapted(row[None]) for row in query.x])
    torch.testing.assert_close(rows, adapted(query.x), rtol=0, atol=1e-12)


def test_transductive_predictions_do_depend_on_the_batch():
    (support, query) = (one(b) for b in image_tasks())
    adapted = normalised("transductive").adapt(support)
    rows = torch.cat([adapted(row[None]) for row in query.x])
    assert (rows - adapted(query.x)).abs().max() > 1e-3


def test_both_protocols_agree_on_the_support_set():
    support = one(image_tasks().support)
    inductive, transductive = (
        normalised(norm).adapt(support) for norm in ("inductive", "transductive")
    )
    assert_same_params(inductive.params, transductive.params)
    expected = transductive(support.x)
    torch.testing.assert_close(inductive(support.x), expected, rtol=0, atol=1e-12)


class Shared(nn.Module):
    """One normalisation in two places."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = mm.models.BatchNorm(4)
        self.mix = nn.Conv2d(4, 4, 3)
        self.head = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.mix(self.norm(self.conv(x)))).flatten(1))


def test_a_layer_used_twice_has_statistics_for_each_use():
    torch.manual_seed(0)
    model = Shared().double()
    support = one(image_tasks().support)
    inductive, transductive = (
        mm.make_learner("maml", model, lr=0.1, norm=norm).adapt(support)(support.x)
        for norm in ("inductive", "transductive")
    )
    torch.testing.assert_close(inductive, transductive, rtol=0, atol=1e-12)


def test_inductive_meta_loss_is_that_of_the_adapted_models():
    tasks = image_tasks()
    learner = normalised("inductive")
    losses = []
    for i in range(2):
        adapted = learner.adapt(one(tasks.support, i))
        losses.append(F.cross_entropy(adapted(tasks.query.x[i]), tasks.query.y[i]).item())
    assert learner.meta_loss(tasks).item() == pytest.approx(sum(losses) / 2, rel=1e-12)


@pytest.mark.parametrize("method", ["maml", "metasgd", "warpgrad:batch_norm=true", "blockiaf"])
def test_inductive_meta_gradient_equals_finite_differences(method: str):
    check_learner_gradient(normalised("inductive", method), image_tasks())


@methods
def test_loop_and_vmap_agree_under_inductive_normalisation(method: str):
    grads = [
        meta_gradient(
            normalised("inductive", method, vectorize=vectorize, adjoint="unrolled"), image_tasks()
        )
        for vectorize in (False, True)
    ]
    assert relative_difference(*grads) < 1e-10


REFUSED = {
    "vectorize": ({"vectorize": True}, "leave vectorize off"),
    "norm": ({"norm": "inductive"}, "norm='transductive'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_batch_norm_with_averages_is_refused_where_they_are_in_the_way(case: str):
    options, other = REFUSED[case]
    with pytest.raises(ValueError, match=r"its_norm.*convert_batch_norm") as raised:
        mm.make_learner("maml", with_torch_norm(), **options).meta_loss(image_tasks())
    assert other in str(raised.value)


@pytest.mark.parametrize("case", REFUSED)
def test_the_way_out_for_batch_norm_leads_out(case: str):
    model, (options, _) = mm.models.convert_batch_norm(with_torch_norm()), REFUSED[case]
    check_learner_gradient(mm.make_learner("maml", model, lr=0.1, **options), image_tasks())


def test_instance_norm_is_inductive_already():
    model = with_torch_norm(nn.InstanceNorm2d)
    support = one(image_tasks().support)
    adapted = mm.make_learner("maml", model, norm="inductive").adapt(support)
    rows = torch.cat([adapted(row[None]) for row in support.x])
    torch.testing.assert_close(rows, adapted(support.x), rtol=0, atol=1e-12)


def test_running_statistics_are_left_alone():
    learner = mm.make_learner("maml", with_torch_norm(), lr=0.1)
    before = {name: b.clone() for name, b in learner.named_buffers()}
    assert set(before) == {
        f"model.its_norm.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")
    }
    learner.meta_loss(image_tasks()).backward()
    support = one(image_tasks().support)
    learner.adapt(support)(support.x)
    for name, b in learner.named_buffers():
        assert torch.equal(b, before[name]), name


def test_batch_norm_of_torch_adapts_as_written_by_hand():
    support = one(image_tasks().support)
    hand = ByHand(with_torch_norm(), support, steps=3, lr=0.1, loss=F.cross_entropy)
    learner = mm.make_learner("maml", with_torch_norm(), steps=3, lr=0.1)
    assert_same_params(learner.adapt(support).params, hand.params)


def test_batch_norm_over_features_alone_works():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3)).double()
    check_learner_gradient(mm.make_learner("maml", model, lr=0.1), point_tasks())


def pretrained(**settings) -> mm.Learner:
    """A network whose batch normalisation has averages of a training."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)).double()
    for _ in range(5):
        net(2 + torch.randn(20, 3, dtype=torch.float64))
    return mm.make_learner("maml", net, steps=2, lr=0.1, norm="inductive", **settings)


def test_averages_of_a_training_normalise_a_pretrained_network():
    learner = pretrained()
    support = mm.Batch(torch.randn(6, 3).double(), torch.tensor([0, 1, 0, 1, 0, 1]))
    x = torch.randn(5, 3).double()
    for mode in (True, False):
        adapted = learner.train(mode).adapt(support)
        torch.testing.assert_close(adapted(x)[:1], adapted(x[:1]), rtol=0, atol=1e-14)
    before = learner.model[1].running_mean.clone()
    learner.train().meta_loss([mm.Task(support, support)]).backward()
    assert torch.equal(learner.model[1].running_mean, before)
    learner.configure(norm="transductive")
    assert learner.train().model[1].training


def test_meta_gradient_through_averages_is_that_of_finite_differences():
    learner = pretrained()
    y = torch.tensor([0, 1, 0, 1])
    task = mm.Task(*(mm.Batch(torch.randn(4, 3).double(), y) for _ in range(2)))
    weight = learner.model[0].weight
    (slope,) = torch.autograd.grad(learner.meta_loss([task]), weight)
    losses = []
    for step in (1e-5, -1e-5):
        with torch.no_grad():
            weight[1, 2] += step
            losses.append(learner.meta_loss([task]).item())
            weight[1, 2] -= step
    assert slope[1, 2].item() == pytest.approx((losses[0] - losses[1]) / 2e-5, rel=1e-6)
