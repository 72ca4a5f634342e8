"""Comparisons of two losses or models at a score, as far as their seeds can tell."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

from reproduction.report.score_texts import difference_text, score_label
from reproduction.results.schema import LargeTextResult
from reproduction.scores import is_error, top
from zloss_lab.seed_intervals import Difference, difference

ENOUGH_SEEDS = 5
_CLOSE = 0.01  # one point of error


class Standing(StrEnum):
    """The standing of the first against the second. Without an interval nothing is won or lost."""

    WON = "better"
    AHEAD = "better, one seed"
    EVEN = "within noise"
    BEHIND = "worse, one seed"
    LOST = "worse"


@dataclass(frozen=True)
class Comparison:
    """The difference of the first and the second at a score."""

    score: str
    difference: Difference

    @property
    def is_better(self) -> bool:
        """True if the mean of the first is better, whatever the interval."""
        return self.difference.mean < 0 if is_error(self.score) else self.difference.mean > 0

    @property
    def standing(self) -> Standing:
        """Better, worse or level, and how certain that is."""
        # One seed can tie, and has no interval.
        if self.difference.is_noise or self.difference.mean == 0:
            return Standing.EVEN
        if self.difference.half_width is None:
            return Standing.AHEAD if self.is_better else Standing.BEHIND
        return Standing.WON if self.is_better else Standing.LOST

    @property
    def most_behind(self) -> float:
        """The largest lead of the second that the interval allows; infinite with one seed."""
        if self.difference.half_width is None:
            return math.inf
        behind = self.difference.mean if is_error(self.score) else -self.difference.mean
        return behind + self.difference.half_width

    @property
    def needs_seeds(self) -> bool:
        """True if both are so close that fewer than five seeds should not decide."""
        return abs(self.difference.mean) < _CLOSE and self.difference.seeds < ENOUGH_SEEDS

    @property
    def doubts(self) -> list[str]:
        """The reasons for which it is not clear."""
        unclear = [str(self.standing)] if self.standing not in (Standing.WON, Standing.LOST) else []
        return unclear + ([f"needs {ENOUGH_SEEDS} seeds"] if self.needs_seeds else [])


def compare(first: Sequence[float], second: Sequence[float], score: str) -> Comparison:
    """Compare the values of two losses or models, one value a seed of each.

    >>> print(compare([0.70, 0.71, 0.72], [0.80, 0.81, 0.80], "top_1_error").standing)
    better
    """
    return Comparison(score, difference(first, second))


def compare_models(
    first: Sequence[LargeTextResult], second: Sequence[LargeTextResult], score: str
) -> Comparison:
    """Compare the test scores of two models of table 2, one training a seed of each."""
    return compare([one.test[score] for one in first], [one.test[score] for one in second], score)


def validating_best(
    models: Iterable[Sequence[LargeTextResult]], error: str = top(1)
) -> Sequence[LargeTextResult]:
    """Return the trainings of the model that has the lowest mean error on validation."""
    return min(models, key=lambda trainings: fmean(one.valid[error] for one in trainings))


def comparisons_text(comparisons: Sequence[Comparison]) -> str:
    """Return scores with differences, then every doubt once with the scores that it is about.

    >>> top_1 = compare([0.70, 0.72], [0.60, 0.61], "top_1_error")
    >>> top_5 = compare([0.5, 0.51], [0.5, 0.52], "top_5_error")
    >>> print(comparisons_text([top_1, top_5]))
    top-1 +10.50 ± 6.92, top-5 −0.50 ± 6.92; within noise: top-5; needs 5 seeds: top-5
    """
    numbers = ", ".join(
        f"{score_label(one.score)} {difference_text(one.difference, one.score)}"
        for one in comparisons
    )
    doubts: dict[str, list[str]] = {}
    for one in comparisons:
        for doubt in one.doubts:
            doubts.setdefault(doubt, []).append(score_label(one.score))
    remarks = [
        doubt if len(about) == len(comparisons) else f"{doubt}: {', '.join(about)}"
        for doubt, about in doubts.items()
    ]
    return "; ".join([numbers, *remarks])


def closest(comparisons: Iterable[Comparison]) -> Comparison:
    """Return the comparison in which the first of the two does worst."""
    order = list(Standing)

    def worth(one: Comparison) -> tuple[int, float]:
        lead = -one.difference.mean if is_error(one.score) else one.difference.mean
        return -order.index(one.standing), lead

    return min(comparisons, key=worth)
