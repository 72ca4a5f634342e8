"""Which of two is better at a score, as far as their seeds can tell."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from reproduction.report.intervals import Difference, difference
from reproduction.report.scores import is_error, label, shown_difference

ENOUGH_SEEDS = 5
_CLOSE = 0.01  # one point of error


class Outcome(StrEnum):
    """Of the first against the second. Without an interval nothing is won or lost."""

    WON = "better"
    AHEAD = "better, one seed"
    EVEN = "within noise"
    BEHIND = "worse, one seed"
    LOST = "worse"


@dataclass(frozen=True)
class Duel:
    """The first minus the second at a score."""

    score: str
    difference: Difference

    @property
    def is_better(self) -> bool:
        """By the means alone."""
        return self.difference.mean < 0 if is_error(self.score) else self.difference.mean > 0

    @property
    def outcome(self) -> Outcome:
        """Whether the first is better."""
        if (
            self.difference.is_noise or self.difference.mean == 0
        ):  # one seed can tie, and has no interval
            return Outcome.EVEN
        if self.difference.half_width is None:
            return Outcome.AHEAD if self.is_better else Outcome.BEHIND
        return Outcome.WON if self.is_better else Outcome.LOST

    @property
    def most_behind(self) -> float:
        """By how much the first may be worse, at the end of the interval; with one seed by anything."""
        if self.difference.half_width is None:
            return math.inf
        behind = self.difference.mean if is_error(self.score) else -self.difference.mean
        return behind + self.difference.half_width

    @property
    def needs_seeds(self) -> bool:
        """Whether both are so close that fewer than five seeds should not decide."""
        return abs(self.difference.mean) < _CLOSE and self.difference.seeds < ENOUGH_SEEDS

    @property
    def doubts(self) -> list[str]:
        """What keeps it from being clear."""
        unclear = [str(self.outcome)] if self.outcome not in (Outcome.WON, Outcome.LOST) else []
        return unclear + ([f"needs {ENOUGH_SEEDS} seeds"] if self.needs_seeds else [])


def duel(first: Sequence[float], second: Sequence[float], score: str) -> Duel:
    """From one value a seed of each.

    >>> print(duel([0.70, 0.71, 0.72], [0.80, 0.81, 0.80], "top_1_error").outcome)
    better
    """
    return Duel(score, difference(first, second))


def told(duels: Sequence[Duel]) -> str:
    """Scores with differences, then every doubt once with the scores that it is about.

    >>> print(told([duel([0.70, 0.72], [0.60, 0.61], "top_1_error"), duel([0.5, 0.51], [0.5, 0.52], "top_5_error")]))
    top-1 +10.50 ± 6.92, top-5 −0.50 ± 6.92; within noise: top-5; needs 5 seeds: top-5
    """
    numbers = ", ".join(
        f"{label(one.score)} {shown_difference(one.difference, one.score)}" for one in duels
    )
    doubts: dict[str, list[str]] = {}
    for one in duels:
        for doubt in one.doubts:
            doubts.setdefault(doubt, []).append(label(one.score))
    remarks = [
        doubt if len(about) == len(duels) else f"{doubt}: {', '.join(about)}"
        for doubt, about in doubts.items()
    ]
    return "; ".join([numbers, *remarks])


def closest(duels: Iterable[Duel]) -> Duel:
    """Of one against many: the one that says least in its favour."""
    order = list(Outcome)

    def worth(one: Duel) -> tuple[int, float]:
        lead = -one.difference.mean if is_error(one.score) else one.difference.mean
        return -order.index(one.outcome), lead

    return min(duels, key=worth)
