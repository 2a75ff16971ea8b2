"""Inner steps whose graph is built when it is needed."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

import metamirror as mm
from metamirror.core.geometry import PointState
from metamirror.core.trees import tensors_in, with_tensors
from metamirror.testing.methods import meta_gradient
from metamirror.testing.networks import smooth_conv, smooth_mlp
from tests.networks import image_tasks, point_tasks


@pytest.mark.parametrize("prior", [None, "isotropic:0.1", "diagonal:0.1"])
@pytest.mark.parametrize(
    "spec", ["maml", "blockiaf", "gradnet", "mamlpp", "metakfo:adapt_transform=true"]
)
def test_the_gradient_is_the_same(spec: str, prior: str | None):
    found = []
    for recompute in (False, True):
        torch.manual_seed(0)
        learner = mm.make_learner(
            spec, smooth_conv(), steps=3, lr=0.3, prior=prior, recompute=recompute
        )
        found.append(meta_gradient(learner, image_tasks()))
    for name, grad in found[0].items():
        torch.testing.assert_close(found[1][name], grad, rtol=0, atol=1e-12)


class Held:
    """A tensor that a graph holds on to."""

    def __init__(self, tensor: Tensor):
        self.tensor = tensor


def held_numbers(learner: mm.Learner, tasks: mm.Task) -> int:
    """How many numbers the graph of the meta-loss holds, each storage once."""
    seen: list[weakref.ref[Held]] = []

    def pack(tensor: Tensor) -> Held:
        held = Held(tensor.detach())
        seen.append(weakref.ref(held))
        return held

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda held: held.tensor):
        loss = learner.meta_loss(tasks)
    gc.collect()
    storages = [held.tensor.untyped_storage() for ref in seen if (held := ref()) is not None]
    sizes = {storage.data_ptr(): storage.nbytes() // 8 for storage in storages}
    del loss
    return sum(sizes.values())


def test_what_is_held_grows_by_parameters_alone():
    tasks = point_tasks(shots=40)
    model = smooth_mlp()
    size = sum(p.numel() for p in model.parameters())
    held = {
        (steps, recompute): held_numbers(
            mm.make_learner("maml", model, steps=steps, recompute=recompute), tasks
        )
        for steps in (2, 12)
        for recompute in (False, True)
    }
    tasks_of_stack = 2
    grown = {r: (held[12, r] - held[2, r]) / 10 / tasks_of_stack for r in (False, True)}
    assert grown[True] < 2 * size
    assert grown[False] > 4 * grown[True]


class Dropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 20), nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(nn.functional.dropout(self.first(x).tanh(), 0.5))


def test_noise_is_drawn_the_same_again():
    torch.manual_seed(0)
    model, found = Dropout().double(), []
    for recompute in (False, True):
        learner = mm.make_learner("maml", model, steps=3, lr=0.5, recompute=recompute)
        torch.manual_seed(7)
        loss = learner.meta_loss(point_tasks())
        found.append([loss.detach(), *torch.autograd.grad(loss, list(learner.parameters()))])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_vmap_cannot():
    with pytest.raises(ValueError, match="rematerialised adjoint: leave vectorize off"):
        mm.make_learner("maml", smooth_mlp(), vectorize=True, recompute=True)


def test_nested_tensors_are_found_and_replaced_in_order():
    a, b, c = torch.zeros(1), torch.ones(1), torch.full((1,), 2.0)
    value = PointState({"a": a}, {"list": [b, None, "word"], "pair": (c, 3)})
    assert [float(t) for t in tensors_in(value)] == [0, 1, 2]
    other = with_tensors(value, [c, a, b])
    assert isinstance(other, PointState)
    assert other.z["a"] is c
    assert other.prepared["list"] == [a, None, "word"]
    assert other.prepared["pair"] == (b, 3)


def test_a_further_derivative_is_refused_rather_than_wrong():
    learner = mm.make_learner("maml", smooth_mlp(), steps=2, recompute=True)
    loss = learner.meta_loss(point_tasks())
    with pytest.raises(RuntimeError, match="choose the adjoint unrolled"):
        torch.autograd.grad(loss, list(learner.parameters()), create_graph=True)
