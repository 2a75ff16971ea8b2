"""Tasks by address, and the sinusoids."""

from __future__ import annotations

import math

import pytest
import torch

import metamirror as mm
from metamirror.data.addressing import SPLITS, noise_seed, task_generator
from metamirror.testing.streams import same_tasks


def stream(split: str = "train", **options):
    return mm.tasks("sinusoid", split, **{"shots": 10, "queries": 15, "batch": 4, **options})


def amplitude_and_phase(batch: mm.Batch) -> tuple[float, float, float]:
    """A and p of y = A sin(x - p) by least squares, and the largest residual."""
    x, y = (t.double() for t in batch)
    basis = torch.cat([torch.sin(x), torch.cos(x)], 1)
    a, b = torch.linalg.lstsq(basis, y).solution.flatten().tolist()
    residual = (basis @ torch.tensor([[a], [b]], dtype=torch.float64) - y).abs().max()
    return math.hypot(a, b), math.atan2(-b, a), float(residual)


@pytest.mark.parametrize("batch", [1, 2, 7])
def test_tasks_do_not_depend_on_how_many_stand_beside_them(batch: int):
    few, many = stream(batch=batch), stream(batch=9)
    for index in range(batch):
        assert same_tasks(few.task(3, index), many.task(3, index))
    assert few.seeds(3) == many.seeds(3)[:batch]


def addresses() -> list[tuple[int, str, int, int]]:
    numbers = (0, 1, 2, 1000, 2**40)
    return [
        (seed, split, step, index)
        for seed in numbers
        for split in SPLITS
        for step in numbers
        for index in numbers
    ]


def test_different_addresses_are_different_tasks():
    draws = {tuple(task_generator(*address).uniform(size=4)) for address in addresses()}
    assert len(draws) == len(addresses())


def test_different_addresses_have_different_noise():
    seeds = {noise_seed(*address) for address in addresses()}
    assert len(seeds) == len(addresses())
    assert all(0 <= seed < 2**62 for seed in seeds)


def test_noise_is_not_the_first_draw_of_the_task():
    for address in addresses():
        first = int(task_generator(*address).bit_generator.random_raw()) >> 2
        assert noise_seed(*address) != first


@pytest.mark.parametrize(
    "other",
    [stream(seed=1)[0], stream("val")[0], stream("test")[0], stream()[1]],
    ids=["seed", "val", "test", "step"],
)
def test_no_two_stacks_share_a_point(other: mm.Task):
    points = torch.cat([b.x.flatten() for b in (*stream()[0], *other)])
    assert len(points.unique()) == len(points)


def test_support_and_query_share_their_function_but_no_point():
    for index in range(20):
        support, query = stream().task(0, index)
        (a, p, _), (b, q, _) = amplitude_and_phase(support), amplitude_and_phase(query)
        assert a == pytest.approx(b, abs=1e-4)
        assert p == pytest.approx(q, abs=1e-3)
        assert not set(support.x.flatten().tolist()) & set(query.x.flatten().tolist())


def test_amplitude_phase_and_inputs_fill_their_ranges():
    tasks = [stream().task(step, 0) for step in range(500)]
    both = [mm.Batch(torch.cat([s.x, q.x]), torch.cat([s.y, q.y])) for s, q in tasks]
    amplitudes, phases, residuals = zip(*map(amplitude_and_phase, both), strict=True)
    x = torch.cat([b.x for b in both])
    assert max(residuals) < 1e-5
    for values, low, high in (
        (torch.tensor(amplitudes), 0.1, 5.0),
        (torch.tensor(phases), 0.0, math.pi),
        (x, -5.0, 5.0),
    ):
        margin, spread = 1e-4, high - low
        assert low - margin <= values.min() < low + 0.02 * spread
        assert high - 0.02 * spread < values.max() <= high + margin
        # Uniform: the mean in the middle, the deviation that of a box.
        assert values.mean().item() == pytest.approx((low + high) / 2, abs=0.06 * spread)
        assert values.std().item() == pytest.approx(spread / math.sqrt(12), rel=0.1)


def test_shapes_and_types():
    support, query = stream(shots=3, queries=7, batch=2)[0]
    assert support.x.shape == support.y.shape == (2, 3, 1)
    assert query.x.shape == query.y.shape == (2, 7, 1)
    assert {t.dtype for t in (*support, *query)} == {torch.float32}


def test_a_model_can_be_built_from_what_a_stream_says():
    tasks = stream()
    (inputs,) = tasks.example_shape
    model = mm.models.MLP(inputs, tasks.outputs)
    assert model(tasks.task(0, 0).query.x).shape == tasks.task(0, 0).query.y.shape


MISTAKES = {
    "no such split": (lambda: stream("dev"), r"'dev'.*train, val, test"),
    "no shots": (lambda: stream(shots=0), "shots is 0.*at least 1"),
    "no queries": (lambda: stream(queries=0), "queries is 0.*at least 1"),
    "no tasks": (lambda: stream(batch=0), "batch is 0.*at least 1"),
    "a negative seed": (lambda: stream(seed=-1), "seed is -1"),
    "a seed too large": (lambda: stream(seed=2**63), f"seed is {2**63}"),
    "a negative step": (lambda: stream()[-1], "step is -1"),
    "a negative index": (lambda: stream().task(0, -1), "index is -1"),
    "no such data set": (lambda: mm.tasks("cosine"), "'cosine'.*sinusoid, glyphs.*folder:PATH"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(mistake: str):
    ask, words = MISTAKES[mistake]
    with pytest.raises(ValueError, match=words):
        ask()
