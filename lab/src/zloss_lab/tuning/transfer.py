"""Whether the first validations of a training tell who wins in the end, from the curves of complete trials.

For every score, and after the first validation, the second, the fourth and so on: the rank correlation (Spearman)
between the score then and the best score of the whole training, and the regret, by how much the trial that was ahead
then is worse in the end than the best one. With a correlation near 1 and no regret, a search needs no more than that.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zloss_lab.runs import RunError
from zloss_lab.tuning.trials import Trial, cost, score_names

LEAST_TRIALS = 3  # two are always in perfect order, or in perfect disorder


@dataclass(frozen=True)
class Transfer:
    """What the order of trials at an early moment is worth."""

    score: str
    epochs: float  # after which the trials were compared
    trials: int
    rank_correlation: float | None  # None where one of the two is the same for all trials
    regret: float  # in units of the score


def transfers(trials: Sequence[Trial], scores: Sequence[str] = ()) -> list[Transfer]:
    """For some scores, by default all, at validations 1, 2, 4 and so on."""
    complete = [trial for trial in trials if trial.state == "complete"]
    found = [
        transfer
        for score in scores or score_names(complete)
        for validations in _moments(complete)
        if (transfer := _transfer(complete, score, validations)) is not None
    ]
    if not found:
        raise RunError(
            f"there is nothing to compare: it takes {LEAST_TRIALS} complete trials with two validations or more; the "
            f"study has {len(complete)} complete trials"
        )
    return found


def _moments(trials: Sequence[Trial]) -> Iterator[int]:
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
    if len(going_on) < LEAST_TRIALS:
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
    """Spearman's: the correlation of the ranks. None where one of the two is constant.

    >>> rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([10.0, 30.0, 20.0]))
    0.5
    """
    if min(len(np.unique(x)), len(np.unique(y))) == 1:
        return None
    return float(np.corrcoef(_ranks(x), _ranks(y))[0, 1])


def _ranks(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """From 1 on; equal values share the mean of theirs."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: npt.NDArray[np.float64] = (counts.cumsum() - (counts - 1) / 2)[places]
    return ranks
