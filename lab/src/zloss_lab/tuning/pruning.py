"""Which trials to stop early: successive halving (Li et al. 2018), asynchronously.

After 2, 4, 8, ... validations a trial goes on if the best that it has shown is in the better half of what all trials
had shown by then, be they running, complete or stopped. So most of the time goes to the better ones, and even the first
trials of a study can be compared: with each other, when they are trained side by side. It is asked for all trials of a
round at once; Optuna's own pruners would read the storage anew for each.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence

FIRST_RUNG = 2  # validations that every trial gets
LEAST_TRIALS = 8  # that must have come so far before one of them is stopped


def behind(numbers: Iterable[int], costs: Mapping[int, Sequence[float]]) -> set[int]:
    """Which of these trials to stop, given what all trials have shown at their validations, to be made small.

    >>> costs = {number: [0.9, number / 10] for number in range(8)}
    >>> sorted(behind(range(8), costs))
    [4, 5, 6, 7]
    >>> behind(range(8), {number: [cost[1]] for number, cost in costs.items()})     # too early
    set()
    """
    return {
        number
        for number in numbers
        if _is_rung(len(costs[number])) and _is_behind(costs[number], costs.values())
    }


def _is_rung(validations: int) -> bool:
    """Whether it is the first one, or twice a rung."""
    return validations % FIRST_RUNG == 0 and (validations // FIRST_RUNG).bit_count() == 1


def _is_behind(own: Sequence[float], all_costs: Iterable[Sequence[float]]) -> bool:
    count = len(own)
    reached = [min(costs[:count]) for costs in all_costs if len(costs) >= count]
    return len(reached) >= LEAST_TRIALS and min(own) > statistics.median(reached)
