"""95 % intervals of figures that were taken on the same tasks by runs of several seeds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metamirror.training.task_results import mean_and_interval

Figures = NDArray[np.float64]
"""(seeds, tasks): seeds and tasks are crossed, since all runs are evaluated on the same tasks."""


BASELINE = "maml"
"""The method that all others are compared with."""


@dataclass(frozen=True)
class Estimate:
    """A mean and half its 95 % interval."""

    mean: float
    half: float

    @property
    def low(self) -> float:
        """The lower end of the interval."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self.mean + self.half

    @property
    def sign(self) -> str:
        """One word: "lower" or "higher" than zero; "not significant" if the interval contains zero.

        >>> Estimate(0.3, 0.5).sign, Estimate(-0.3, 0.1).sign
        ('not significant', 'lower')
        """
        if not math.isfinite(self.mean):
            return "not finite"
        if not abs(self.mean) > self.half:
            return "not significant"
        return "lower" if self.mean < 0 else "higher"


def estimate(figures: Figures) -> Estimate:
    """Return the mean over tasks and seeds, with an interval for other tasks *and* other seeds.

    With one seed this is `evaluate`'s 1.96 std / sqrt(T), which holds for that one run. With
    several, x_st = mu + seed_s + task_t + noise_st has three variances, and

        var(mean) = var_seed / S + var_task / T + var_noise / (S T)

    is estimated from the mean squares of the two-way table. The variance of the S seed means over S
    (V_S) and that of the T task means over T (V_T) both contain the noise, so it is taken off once.
    The result is never below V_T, what the tasks alone would give. The quantile is Student's, with
    Satterthwaite's degrees of freedom: three seeds that scatter say little about a fourth.
    """
    seeds, tasks = figures.shape
    if not np.isfinite(figures).all():
        return Estimate(float(figures.mean()), math.nan)
    if seeds == 1:
        return Estimate(*mean_and_interval(figures[0].tolist()))
    mean = float(figures.mean())
    by_seed, by_task = figures.mean(1), figures.mean(0)
    noise = figures - by_seed[:, None] - by_task[None, :] + mean
    of_seeds = float(by_seed.var(ddof=1)) / seeds
    of_tasks = float(by_task.var(ddof=1)) / tasks
    freedom = (seeds - 1) * (tasks - 1)
    of_noise = float(np.square(noise).sum()) / freedom / (seeds * tasks)
    parts = ((of_seeds, seeds - 1), (of_tasks, tasks - 1), (of_noise, freedom))
    return Estimate(mean, _half(max(of_seeds + of_tasks - of_noise, of_tasks), parts))


def half_of_sum(parts: Sequence[tuple[float, int]]) -> float:
    """Return half the 95 % interval of a sum of means, by their variances and degrees of freedom.

    One alone has `evaluate`'s 1.96; several have Student's quantile, as in `estimate`.
    """
    variance = sum(variance for variance, _ in parts)
    if not variance > 0:
        return variance
    return 1.96 * math.sqrt(variance) if len(parts) == 1 else _half(variance, parts)


def _half(variance: float, parts: Sequence[tuple[float, int]]) -> float:
    """Return half an interval with Satterthwaite's degrees of freedom."""
    spread = sum(part**2 / freedom for part, freedom in parts)
    return student(variance**2 / spread) * math.sqrt(variance) if spread else 0.0


def student(freedom: float) -> float:
    """Return the t with 95 % of Student's distribution in (-t, t), at any degrees of freedom.

    With t = sqrt(v) tan(a), P(|T| < t) is the integral of cos(u)^(v - 1) up to a, times a constant.

    >>> round(student(2), 3), round(student(8), 3), round(student(599), 3)
    (4.303, 2.306, 1.964)
    """
    freedom = min(max(freedom, 1.0), 1e6)
    constant = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2))
    constant *= 2 / math.sqrt(math.pi)
    low, high = 0.0, math.atan(13.0 / math.sqrt(freedom))
    for _ in range(40):
        angle = (low + high) / 2
        heights = np.cos(np.linspace(0.0, angle, 1001)) ** (freedom - 1)
        area = float(heights[1:].sum() + heights[:-1].sum()) / 2 * angle / 1000
        inside = constant * area
        low, high = (angle, high) if inside < 0.95 else (low, angle)
    return math.sqrt(freedom) * math.tan(angle)
