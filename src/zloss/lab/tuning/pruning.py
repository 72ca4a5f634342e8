"""Which trials to stop early: those that lie behind the middle of the complete ones.

This is the median rule of Google's Vizier (Golovin et al. 2017): a trial is stopped when the best that it has shown is
worse than the median of what complete trials had shown at the same validation. It is asked for all trials of a round at
once; Optuna's own pruners would read the storage anew for each.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence

from zloss.lab.tuning.trials import Scores, Trial, cost

# Validations that every trial gets, and complete trials that are there to compare with, before any is stopped.
LEAST_VALIDATIONS, LEAST_TRIALS = 2, 8


def behind(curves: Mapping[int, Sequence[Scores]], trials: Iterable[Trial], score: str) -> set[int]:
    """The numbers of those curves that lie behind complete trials.

    >>> complete = [Trial(0, "complete", {}, [{"mrr": 0.1}, {"mrr": 0.3}], "", None)] * LEAST_TRIALS
    >>> behind({8: [{"mrr": 0.2}, {"mrr": 0.2}], 9: [{"mrr": 0.2}, {"mrr": 0.4}]}, complete, "mrr")
    {8}
    """
    complete = [trial.curve for trial in trials if trial.state == "complete"]
    if len(complete) < LEAST_TRIALS:
        return set()
    return {number for number, curve in curves.items() if _is_behind(curve, complete, score)}


def _is_behind(curve: Sequence[Scores], complete: Sequence[Sequence[Scores]], score: str) -> bool:
    count = len(curve)
    others = [cost(other[count - 1], score) for other in complete if len(other) >= count]
    if count < LEAST_VALIDATIONS or not others:
        return False
    return min(cost(scores, score) for scores in curve) > statistics.median(others)
