"""One learning rate serves start and map at every width."""

import pytest
import torch

import metamirror as mm
from metamirror.linalg.tensor_stacks import flat
from metamirror.mirror_maps.base import spread

WIDTHS = (8, 16, 32, 64, 128)
RATE = 1e-3


def noise_task(seed: int) -> mm.Task:
    random = torch.Generator().manual_seed(seed)
    images = [torch.rand(1, 5 * n, 1, 28, 28, generator=random) for n in (1, 5)]
    labels = [torch.arange(5).repeat_interleave(n).unsqueeze(0) for n in (1, 5)]
    return mm.Task(*(mm.Batch(x, y) for x, y in zip(images, labels, strict=True)))


def ends(learner: mm.Learner, task: mm.Task) -> list[torch.Tensor]:
    """phi^(0) and phi^(K), as vectors."""
    support = mm.Batch(*(tensor[0] for tensor in task.support))
    path = learner.adapt(support, keep=True).path
    return [flat(path.points[0]), flat(path.phi)]


def moves(method: str, width: int, part: str) -> list[float]:
    """The mean over three networks and tasks of what `move` finds."""
    found = [move(method, width, part, seed) for seed in range(3)]
    return [sum(each) / len(found) for each in zip(*found, strict=True)]


def move(method: str, width: int, part: str, seed: int) -> list[float]:
    """How far one step of Adam on a part of the learner moves phi^(0) and phi^(K), relatively."""
    torch.manual_seed(seed)
    model = mm.models.Conv4(ways=5, channels=1, image_size=28, width=width)
    learner = mm.make_learner(method, model, steps=1, lr=0.1)
    task = noise_task(seed)
    before = ends(learner, task)
    learned = [
        p for name, p in learner.named_parameters() if name.startswith(part) and p.requires_grad
    ]
    optimizer = torch.optim.Adam(learned, lr=RATE)
    for p, gradient in zip(learned, learner.meta_gradient(task, learned)[1], strict=True):
        p.grad = gradient
    optimizer.step()
    after = ends(learner, task)
    return [float((a - b).norm() / b.norm()) for a, b in zip(after, before, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["blockiaf", "blockiaf:mixing=kronecker", "gradnet", "gradnet:scaling=diagonal"]
)
def test_a_step_of_the_map_moves_as_much_at_every_width_and_no_more_than_one_of_the_start(method):
    adapted = []
    for width in WIDTHS:
        start, adapted_by_map = moves(method, width, "geometry.")
        assert start == 0
        assert adapted_by_map <= 2 * moves(method, width, "model.")[1]
        adapted.append(adapted_by_map)
    assert max(adapted) <= 2 * min(adapted)


@pytest.mark.parametrize("method", ["blockiaf:start=dual", "gradnet:start=dual"])
def test_with_a_dual_start_the_first_point_moves_no_further_in_wider_networks(method):
    first = [moves(method, width, "geometry.")[0] for width in WIDTHS]
    assert max(first[2:]) <= 2 * min(first[:2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_unit_of_a_parameter_is_its_size_where_its_entries_hardly_differ(dtype):
    """A spread far below the size would blow up what an encoder reads."""
    near = 0.1 + 1e-5 * torch.randn(50, generator=torch.Generator().manual_seed(0))
    for values in (torch.full((7,), 0.1), near):
        assert spread(values.to(dtype)) == pytest.approx(0.1, rel=1e-3)
    assert spread(torch.zeros(7, dtype=dtype)) == 1.0
    wide = torch.randn(50, generator=torch.Generator().manual_seed(0))
    assert spread(wide.to(dtype)) == pytest.approx(float(wide.std()))


def test_a_flow_reads_and_shifts_a_parameter_in_units_of_its_spread():
    model = mm.models.MLP(3, 2, hidden=(4,))
    g = mm.make_learner("blockiaf", model).geometry.g
    spread = {name: float(p.detach().std()) for name, p in model.named_parameters()}
    first, last = "blocks.0.linear.weight", "head.weight"
    encoders, decoders = (
        modules[groups.places[name][0]]
        for modules, groups, name in (
            (g.encoders, g.encoded, first),
            (g.decoders, g.decoded, last),
        )
    )
    assert encoders.layers[0].units.item() == pytest.approx(1 / spread[first], rel=1e-6)
    assert decoders.mu.units.item() == pytest.approx(spread[last], rel=1e-6)
