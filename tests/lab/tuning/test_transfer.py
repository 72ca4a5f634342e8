"""The comparison of early scores with final ones, for orders that are known."""

from typing import Any

import numpy as np
import pytest

from zloss_lab.runs import RunError
from zloss_lab.tuning.transfer import rank_correlation, transfers
from zloss_lab.tuning.trials import Trial, ValidationScores


def trial(number: int, *errors: float, state: Any = "complete") -> Trial:
    curve: list[ValidationScores] = [
        {"epoch": epoch, "top_1_error": error, "mrr": 1 - error}
        for epoch, error in enumerate(errors, start=1)
    ]
    return Trial(number, state, {}, curve, "", None)


def test_rank_correlation_with_ties() -> None:
    """The expected ranks, by hand, are 1.5, 1.5, 3, 4 and 1, 2, 3, 4."""
    x, y = np.array([5.0, 5.0, 7.0, 9.0]), np.array([1.0, 2.0, 3.0, 40.0])
    assert rank_correlation(x, y) == pytest.approx(
        np.corrcoef([1.5, 1.5, 3, 4], [1, 2, 3, 4])[0, 1]
    )
    assert rank_correlation(x, -x) == pytest.approx(-1)


def test_early_order_against_the_end() -> None:
    """Trial 0 is ahead after the first validation and ends third. After the second one the order is final."""
    trials = [
        trial(0, 0.5, 0.45, 0.4),
        trial(1, 0.6, 0.4, 0.3),
        trial(2, 0.7, 0.35, 0.2),
        trial(3, 0.1, state="pruned"),
    ]
    found = {(one.score, one.epochs): one for one in transfers(trials)}
    assert found.keys() == {
        (score, epochs) for score in ("top_1_error", "mrr") for epochs in (1.0, 2.0)
    }
    for score in ("top_1_error", "mrr"):
        first, second = found[score, 1.0], found[score, 2.0]
        assert first.trials == second.trials == 3
        assert first.rank_correlation == pytest.approx(-1)
        assert second.rank_correlation == pytest.approx(1)
        assert first.regret == pytest.approx(0.2)
        assert second.regret == 0


def test_trials_that_end_earlier_are_left_out_of_later_comparisons() -> None:
    trials = [trial(number, *[0.5] * length) for number, length in enumerate((2, 3, 3, 3))]
    assert [(one.epochs, one.trials) for one in transfers(trials, ["mrr"])] == [(1.0, 4), (2.0, 3)]


def test_too_little_to_compare() -> None:
    with pytest.raises(RunError, match="it takes 3 complete trials"):
        transfers([trial(0, 0.5, 0.4), trial(1, 0.5, 0.4), trial(2, 0.5, 0.4, state="pruned")])


@pytest.mark.parametrize("same", [0.5, np.inf])
def test_what_is_the_same_for_all_has_no_order(same: float) -> None:
    """The correlation is None, because JSON cannot hold NaN."""
    assert rank_correlation(np.full(3, same), np.array([1.0, 2.0, 3.0])) is None
    assert rank_correlation(np.array([1.0, 2.0, 3.0]), np.full(3, same)) is None
