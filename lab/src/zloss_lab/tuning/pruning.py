"""Pruning: asynchronous successive halving (Li et al. 2018) stops bad trials early.

After 2, 4, 8, ... validations, the best cost of a trial so far is compared with the best cost that every other trial
had after as many validations. Trials that run, that are complete and that were stopped all count. A trial of the worse
half is stopped.

So most of the time goes to the better trials. Even the first trials of a study can be compared if they are trained side
by side: with each other. All trials of a round are judged in one call, because Optuna's own pruners would read the
storage anew for each.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence

FIRST_RUNG = 2  # the number of validations that every trial gets
# A trial is stopped only if this number of trials have as many validations as it has.
LEAST_TRIALS = 8


def behind(numbers: Iterable[int], costs: Mapping[int, Sequence[float]]) -> set[int]:
    """Return the trials to stop.

    Args:
        numbers: of the trials in question.
        costs: of all trials by number, one for each validation; smaller is better.

    >>> costs = {number: [0.9, number / 10] for number in range(8)}
    >>> sorted(behind(range(8), costs))
    [4, 5, 6, 7]
    >>> behind(range(8), {number: [cost[1]] for number, cost in costs.items()})     # one validation is too early
    set()
    """
    return {
        number
        for number in numbers
        if _is_rung(len(costs[number])) and _is_behind(costs[number], costs.values())
    }


def _is_rung(validations: int) -> bool:
    """Return whether trials are compared after this number of validations: FIRST_RUNG times a power of two."""
    return validations % FIRST_RUNG == 0 and (validations // FIRST_RUNG).bit_count() == 1


def _is_behind(own: Sequence[float], all_costs: Iterable[Sequence[float]]) -> bool:
    count = len(own)
    reached = [min(costs[:count]) for costs in all_costs if len(costs) >= count]
    return len(reached) >= LEAST_TRIALS and min(own) > statistics.median(reached)
