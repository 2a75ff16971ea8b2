"""What every method must satisfy, walked over the table."""

from __future__ import annotations

import pytest
import torch

import metamirror as mm
from metamirror.methods.registry import GROUPS
from metamirror.testing import check_method
from metamirror.testing.methods import check_vmap, learned, meta_gradient, relative_difference
from metamirror.testing.networks import smooth_mlp
from tests.networks import conv4, image_tasks, point_tasks, shaken
from tests.table import ROWS, Row

rows = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.spec)


def test_every_registered_method_has_a_row():
    assert {row.spec.partition(":")[0] for row in ROWS} == set(mm.METHODS)


@rows
def test_it_passes_the_checks(row: Row):
    check_method(row.spec, **row.exceptions)


@pytest.mark.parametrize("method", mm.METHODS)
def test_loop_and_vmap_give_the_same_meta_gradient_of_conv4(method: str):
    check_vmap(method, conv4(), image_tasks(size=16))


@rows
def test_every_meta_parameter_learns_within_two_outer_steps(row: Row):
    """Slice by slice along the first axis, which stacks the tensors of equal shape."""
    torch.manual_seed(0)
    model = mm.models.MLP(6, 3, hidden=(40, 40), activation="tanh").double()
    moved = _moved(mm.make_learner(row.spec, model, steps=2, lr=0.1), point_tasks())
    for name, slices in moved.items():
        if any(part in name for part, _ in row.unused):
            continue
        # Rows of a connection are ReLU units, of which some rest; all others stack whole tensors.
        learns = slices.any() if ".connections." in name else slices.all()
        assert learns, f"{name}: {int((~slices).sum())} of {len(slices)} slices never learn"


@rows
def test_every_meta_parameter_of_a_conv_net_learns(row: Row):
    learner = mm.make_learner(row.spec, conv4(), steps=2, lr=0.1)
    unused = ("conv.bias", *(part for part, _ in row.unused), *row.acts_on_conv_bias)
    for name, slices in _moved(learner, image_tasks(size=16)).items():
        assert slices.any() or any(part in name for part in unused), f"{name} never learns"


def _moved(learner: mm.Learner, tasks: mm.Task) -> dict[str, torch.Tensor]:
    """For each meta-parameter, which slices had a gradient in one of two outer steps."""
    named = learned(learner)
    optimizer = torch.optim.Adam(named.values(), lr=1e-2)
    moved = {name: torch.zeros(p.shape[:1] or (1,), dtype=torch.bool) for name, p in named.items()}
    for _ in range(2):
        grads = meta_gradient(learner, tasks)
        for name, grad in grads.items():
            # Rounding in a sum that is zero in exact arithmetic does not count.
            moved[name] |= grad.reshape(len(moved[name]), -1).abs().amax(1) > 1e-14
            named[name].grad = grad
        optimizer.step()
    return moved


@pytest.mark.parametrize(
    "row", [row for row in ROWS if ":adjoint=" not in row.spec], ids=lambda row: row.spec
)
def test_first_order_changes_the_gradient_but_not_the_value(row: Row):
    tasks = point_tasks()
    second, first = (
        shaken(mm.make_learner(row.spec, smooth_mlp(), steps=3, lr=0.1, adjoint=adjoint))
        for adjoint in ("unrolled", "first")
    )
    first.configure(adjoint="first")
    torch.testing.assert_close(
        first.meta_loss(tasks, seeds=[0, 1]),
        second.meta_loss(tasks, seeds=[0, 1]),
        rtol=1e-12,
        atol=0,
    )
    change = relative_difference(meta_gradient(first, tasks), meta_gradient(second, tasks))
    assert change == 0 if row.one_order else change > 1e-4


def test_the_registry_lists_its_groups_one_after_the_other():
    order = [list(GROUPS).index(method.group) for method in mm.METHODS.values()]
    assert order == sorted(order)
    assert "own" not in {method.group for method in mm.METHODS.values()}
    published = [key for key, method in mm.METHODS.items() if method.group == "paper"]
    assert (published[0], published[-1], len(published)) == ("maml", "blockiaf", 8)
