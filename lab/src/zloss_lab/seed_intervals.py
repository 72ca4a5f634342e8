"""Means over seeds with their 95 % intervals, and differences of two means with theirs.

The interval of a mean is Student's. It says how much the same recipe varies from one training to the next. The interval
of a difference of two recipes is Welch's, which does not assume that both vary alike.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

_SHARE = 0.475  # of a symmetric distribution, between its middle and the end of the 95 % interval
_LARGEST = 13.0  # no quantile is larger: that of one degree of freedom is 12.7
_HALVINGS = 60


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds."""

    mean: float
    half_width: float | None  # of its 95 % interval; None with one seed
    seeds: int


@dataclass(frozen=True)
class Difference:
    """The first mean minus the second."""

    mean: float
    half_width: float | None  # None where one of both has one seed
    seeds: int  # of the one that has fewer

    @property
    def is_noise(self) -> bool:
        """True if the interval contains 0; false without an interval."""
        return self.half_width is not None and abs(self.mean) <= self.half_width


def estimate(values: Sequence[float]) -> Estimate:
    """Return mean and interval of one value a seed.

    >>> estimate([1.0, 2.0, 3.0])  # doctest: +ELLIPSIS
    Estimate(mean=2.0, half_width=2.484..., seeds=3)
    """
    seeds = len(values)
    if seeds < 2:
        return Estimate(statistics.fmean(values), None, seeds)
    half_width = student_t(seeds - 1) * statistics.stdev(values) / math.sqrt(seeds)
    return Estimate(statistics.fmean(values), half_width, seeds)


def difference(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Return the mean of the first minus the mean of the second, with Welch's interval.

    >>> difference([5.0, 6.0, 7.0], [1.0, 2.0, 3.0])  # doctest: +ELLIPSIS
    Difference(mean=4.0, half_width=2.266..., seeds=3)
    """
    mean, seeds = statistics.fmean(first) - statistics.fmean(second), min(len(first), len(second))
    if seeds < 2:
        return Difference(mean, None, seeds)
    parts = [
        (statistics.variance(values) / len(values), len(values) - 1) for values in (first, second)
    ]
    total = sum(variance for variance, _ in parts)
    if total == 0:
        return Difference(mean, 0.0, seeds)
    freedom = total**2 / sum(variance**2 / freedom for variance, freedom in parts)
    return Difference(mean, student_t(freedom) * math.sqrt(total), seeds)


@cache
def student_t(freedom: float) -> float:
    """Return the 97.5 % quantile of Student's distribution with this many degrees of freedom, 1 or more.

    With t = sqrt(freedom) tan(u), the density of u is proportional to cos(u)^(freedom - 1). It is smooth, and u lies in
    a finite interval. So a Gauss rule integrates it to all digits, and bisection finds the quantile.

    >>> round(student_t(4), 4)
    2.7764
    """
    nodes, weights = np.polynomial.legendre.leggauss(64)
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)

    def share_below(end: float) -> float:
        return float(
            scale * end / 2 * np.dot(weights, np.cos(end / 2 * (nodes + 1)) ** (freedom - 1))
        )

    low, high = 0.0, math.atan(_LARGEST / math.sqrt(freedom))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if share_below(middle) < _SHARE else (low, middle)
    return math.sqrt(freedom) * math.tan(high)
