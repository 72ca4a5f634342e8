"""Transfer: a comparison of early scores with final ones, from the curves of complete trials.

Scores are compared after the first validation, the second, the fourth and so on. A comparison has two numbers:

- the rank correlation (Spearman) of the early scores with the best scores of the whole trainings,
- the regret: the trial that was ahead early is worse in the end than the best trial by this much.

If the correlation is near 1 and the regret near 0, trials may end at this early moment: the search finds the same.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zloss_lab.runs import RunError
from zloss_lab.tuning.trials import Trial, cost, score_names

_LEAST_COMPARED = 3  # two are always in perfect order, or in perfect disorder


@dataclass(frozen=True)
class Transfer:
    """The comparison of an early order of trials with their final order, by one score."""

    score: str
    epochs: float  # after which the trials were compared
    trials: int
    rank_correlation: float | None  # None where the early scores, or the final ones, are all equal
    regret: float  # in units of the score


def transfers(trials: Sequence[Trial], scores: Sequence[str] = ()) -> list[Transfer]:
    """Return the comparisons for some scores, by default all, after 1, 2, 4 and so on validations."""
    complete = [trial for trial in trials if trial.state == "complete"]
    found = [
        transfer
        for score in scores or score_names(complete)
        for validations in _early_validations(complete)
        if (transfer := _transfer(complete, score, validations)) is not None
    ]
    if not found:
        raise RunError(
            f"there is nothing to compare: it takes {_LEAST_COMPARED} complete trials with two validations or more; "
            f"the study has {len(complete)} complete trials"
        )
    return found


def _early_validations(trials: Sequence[Trial]) -> Iterator[int]:
    longest, validations = max((len(trial.curve) for trial in trials), default=0), 1
    while validations < longest:
        yield validations
        validations *= 2


def _transfer(trials: Sequence[Trial], score: str, validations: int) -> Transfer | None:
    going_on = [
        trial
        for trial in trials
        if len(trial.curve) > validations and trial.best(score) is not None
    ]
    if len(going_on) < _LEAST_COMPARED:
        return None
    early = np.array([cost(trial.curve[validations - 1], score) for trial in going_on])
    final = np.array([cost(trial.best(score) or {}, score) for trial in going_on])
    return Transfer(
        score=score,
        epochs=float(np.median([trial.curve[validations - 1]["epoch"] for trial in going_on])),
        trials=len(going_on),
        rank_correlation=rank_correlation(early, final),
        regret=float(final[early.argmin()] - final.min()),
    )


def rank_correlation(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> float | None:
    """Return Spearman's correlation: that of the ranks. It is None where one of the two is constant.

    >>> rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([10.0, 30.0, 20.0]))
    0.5
    """
    if min(len(np.unique(x)), len(np.unique(y))) == 1:
        return None
    return float(np.corrcoef(_ranks(x), _ranks(y))[0, 1])


def _ranks(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return ranks from 1 on. Equal values have the mean of their ranks."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: npt.NDArray[np.float64] = (counts.cumsum() - (counts - 1) / 2)[places]
    return ranks
