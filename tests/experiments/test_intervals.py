"""Intervals over tasks and seeds, against hand computation, scipy and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from metamirror.experiments.comparison.table import difference
from metamirror.experiments.statistics import estimate, student
from metamirror.training.task_results import mean_and_interval


@pytest.mark.parametrize("freedom", [1, 2, 3.7, 8, 41.5, 599, 1e5])
def test_the_quantile_is_students(freedom: float):
    assert student(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-5)


def test_one_seed_gives_the_interval_of_evaluate():
    values = [40.0, 50.0, 70.0, 20.0]
    found = estimate(np.array([values]))
    assert (found.mean, found.half) == mean_and_interval(values)


def test_two_seeds_by_hand():
    """Two seeds, three tasks: seed means 2 and 4, task means 2, 3, 4, and a residual of ±0.5."""
    found = estimate(np.array([[0.5, 2.5, 3.0], [3.5, 3.5, 5.0]]))
    of_seeds = ((2 - 3) ** 2 + (4 - 3) ** 2) / 1 / 2
    of_tasks = ((2 - 3) ** 2 + 0 + (4 - 3) ** 2) / 2 / 3
    residuals = [0.5 - 1, 2.5 - 2, 3 - 3, 3.5 - 3, 3.5 - 4, 5 - 5]
    of_noise = sum(r * r for r in residuals) / 2 / 6
    variance = of_seeds + of_tasks - of_noise
    freedom = variance**2 / (of_seeds**2 / 1 + of_tasks**2 / 2 + of_noise**2 / 2)
    assert found.mean == pytest.approx(3)
    assert found.half == pytest.approx(stats.t.ppf(0.975, freedom) * math.sqrt(variance), rel=1e-5)


def test_the_interval_covers_the_mean_for_other_tasks_and_other_seeds():
    random = np.random.default_rng(0)
    covered = 0
    for _ in range(150):
        seeds, tasks = random.normal(size=(3, 1)), 4 * random.normal(size=(1, 40))
        found = estimate(7 + seeds + tasks + 3 * random.normal(size=(3, 40)))
        covered += found.low <= 7 <= found.high
    assert 0.9 <= covered / 150 <= 0.99


def test_equal_figures_have_no_interval():
    found = estimate(np.full((3, 5), 20.0))
    assert (found.mean, found.half) == (20.0, 0.0)


def test_what_is_not_finite_has_no_interval():
    assert math.isnan(estimate(np.array([[1.0, math.nan]])).half)


# Differences


def test_a_difference_is_paired_by_task():
    """Tasks differ by tens, the methods by one: only pairing sees it."""
    tasks = np.array([10.0, 50.0, 90.0, 30.0])
    found = difference({0: tasks + np.array([1.0, 1.1, 0.9, 1.0])}, {0: tasks})
    mean, half = mean_and_interval([1.0, 1.1, 0.9, 1.0])
    assert found is not None
    assert found["mean"] == pytest.approx(mean)
    assert (found["low"], found["high"]) == pytest.approx((mean - half, mean + half))
    assert found["seeds"] == 1


def test_a_difference_takes_common_seeds_alone():
    base = {0: np.array([1.0, 2.0]), 1: np.array([5.0, 5.0])}
    found = difference({1: np.array([6.0, 7.0]), 2: np.array([90.0, 90.0])}, base)
    assert found is not None
    assert (found["mean"], found["seeds"]) == (1.5, 1)
    assert difference({2: np.array([1.0, 1.0])}, base) is None


def test_what_was_not_trained_is_paired_with_every_seed():
    base = {0: np.array([1.0, 2.0]), 1: np.array([3.0, 4.0])}
    found = difference({None: np.array([0.0, 0.0])}, base)
    assert found is not None
    assert (found["mean"], found["seeds"]) == (-2.5, 2)
