"""The rule of successive halving."""

import math

import pytest

from zloss_lab.tuning.pruning import FIRST_RUNG, LEAST_TRIALS, behind


def curves(validations: int, trials: int = 16) -> dict[int, list[float]]:
    """Return costs of trials; a trial with a higher number is worse."""
    return {number: [float(number)] * validations for number in range(trials)}


@pytest.mark.parametrize("validations", range(1, 33))
def test_the_worse_half_is_stopped_at_every_rung_and_nowhere_else(validations: int) -> None:
    is_rung = validations in (2, 4, 8, 16, 32)
    assert behind(range(16), curves(validations)) == (set(range(8, 16)) if is_rung else set())


def test_few_trials_are_left_alone() -> None:
    few = range(LEAST_TRIALS - 1)
    # These have fewer validations.
    others = {number: [0.0] * (FIRST_RUNG - 1) for number in range(LEAST_TRIALS, 16)}
    assert not behind(few, curves(FIRST_RUNG, len(few)) | others)


def test_what_others_showed_later_does_not_count() -> None:
    others = {number: [1.0, 2.0, 0.0, 0.0] for number in range(1, 16)}
    assert behind([0], {0: [3.0, 3.0]} | others) == {0}
    assert not behind([0], {0: [0.5, 3.0]} | others), "their best by then is compared with its own"


def test_what_is_not_finite_is_behind() -> None:
    assert 3 in behind([3], curves(2) | {3: [math.inf, math.inf]})
