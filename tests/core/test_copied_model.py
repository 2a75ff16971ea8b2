"""Who trains the model that was copied is told so, once, and nobody else is."""

from __future__ import annotations

import copy
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import metamirror as mm
from metamirror.core.copied_model import CALLS
from metamirror.testing.networks import smooth_mlp
from tests.networks import point_tasks

TOLD = r"Adam\(learner\.parameters\(\)\).*copy=False"


def make(method="metasgd", **options):
    net = smooth_mlp()
    return net, mm.make_learner(method, net, steps=1, lr=0.1, **options)


def train(learner, optimizer, iterations=2 * CALLS, accumulate=1):
    for i in range(iterations):
        learner.meta_loss(point_tasks()).backward()
        if (i + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()


def told(learner, optimizer, **options):
    """How often a loop is told; any other warning is an error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(learner, optimizer, **options)
    assert {w.category for w in caught} <= {UserWarning}
    return len(caught)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD, torch.optim.RMSprop])
@pytest.mark.parametrize("vectorize", [False, True])
def test_who_trains_the_copied_model_is_told_once(kind, vectorize):
    net, learner = make(vectorize=vectorize)
    optimizer = kind(net.parameters(), lr=1e-3)
    train(learner, optimizer, CALLS)
    with pytest.warns(UserWarning, match=TOLD) as caught:
        train(learner, optimizer, 1)
    assert caught[0].filename == __file__  # the line that calls meta_loss
    train(learner, optimizer)  # where a warning is an error


def test_the_model_itself_need_not_live():
    net, learner = make()
    optimizer = torch.optim.Adam(net.parameters())
    del net
    assert told(learner, optimizer) == 1


def test_a_geometry_that_is_trained_does_not_hide_a_start_that_is_not():
    net, learner = make()
    both = torch.optim.Adam([*net.parameters(), *learner.geometry.parameters()])
    assert told(learner, both) == 1


@pytest.mark.parametrize("fused", [False, True])  # the fused ones do not count their changes
@pytest.mark.parametrize("accumulate", [1, CALLS + 2, 10 * CALLS])
def test_who_trains_the_learner_is_not(fused, accumulate):
    net, learner = make()
    also = torch.optim.Adam(net.parameters())  # an older one, say
    optimizer = torch.optim.Adam(learner.parameters(), fused=fused)
    assert told(learner, optimizer, accumulate=accumulate) == 0
    assert also.param_groups


def test_who_trains_a_part_of_it_is_not():
    _, learner = make()
    assert told(learner, torch.optim.Adam(learner.model.head.parameters())) == 0


def test_who_gave_the_model_itself_is_not():
    net, learner = make(copy=False)
    assert told(learner, torch.optim.Adam(net.parameters())) == 0


def test_who_changes_parameters_by_hand_is_not():
    net, learner = make()
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(2 * CALLS):
        learner.zero_grad()
        learner.meta_loss(point_tasks()).backward()
        with torch.no_grad():
            for p in learner.parameters():
                p -= 0.01 * p.grad
        optimizer.step()


def test_who_only_looks_at_losses_or_gradients_is_not():
    net, learner = make()
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(2 * CALLS):
        learner.meta_loss(point_tasks())  # nobody differentiates it
        with torch.no_grad():
            learner.meta_loss(point_tasks())
        learner.meta_gradient(point_tasks())
    learner.eval()
    train(learner, optimizer)


def test_who_trains_the_model_on_something_else_is_not():
    net, learner = make()
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(2 * CALLS):
        optimizer.zero_grad()
        net(point_tasks().query.x[0]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        learner.meta_loss(point_tasks()).backward()


def test_without_an_optimiser_nobody_is():
    net, learner = make()
    for _ in range(2 * CALLS):
        learner.meta_loss(point_tasks()).backward()
    assert net


@pytest.mark.parametrize("again", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_a_copy_of_a_learner_watches_nothing(again):
    net, learner = make()
    optimizer = torch.optim.Adam(net.parameters())
    assert told(again(learner), optimizer) == 0
    assert told(learner, optimizer) == 1


def test_a_saved_learner_watches_nothing(tmp_path):
    net, learner = make()
    mm.save(learner, tmp_path / "start")
    assert told(mm.load(tmp_path / "start"), torch.optim.Adam(net.parameters())) == 0


class MetaLoss(torch.nn.Module):
    def __init__(self, learner):
        super().__init__()
        self.learner = learner

    def forward(self, tasks):
        return self.learner.meta_loss(tasks)


def test_transforms_pass():
    module = MetaLoss(make()[1])

    def loss(parameters):
        return torch.func.functional_call(module, parameters, (point_tasks(),))

    own = {name: p.detach() for name, p in module.named_parameters()}
    for _ in range(CALLS + 2):
        found = torch.func.grad(loss)(own)
    assert all(g.any() for g in found.values())


def test_another_thread_may_train():
    _, learner = make()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(train, learner, torch.optim.Adam(learner.parameters())).result()
