"""Intervals against tables of Student's distribution and against worked examples."""

import math
import statistics

import pytest
import torch

from reproduction.report.comparisons import Standing, closest, compare
from zloss_lab.seed_intervals import difference, estimate, student_t

# From printed tables, four or five digits.
TABLE = {
    1: 12.7062,
    2: 4.3027,
    3: 3.1824,
    4: 2.7764,
    9: 2.2622,
    30: 2.0423,
    120: 1.9799,
    1000: 1.9623,
}


@pytest.mark.parametrize("freedom", TABLE)
def test_quantiles_are_those_of_the_tables(freedom: int) -> None:
    assert student_t(freedom) == pytest.approx(TABLE[freedom], abs=6e-5)


def test_degrees_of_freedom_need_not_be_whole() -> None:
    # With two degrees of freedom there is a formula; between whole numbers the quantile falls smoothly.
    assert student_t(2) == pytest.approx(0.95 * math.sqrt(2 / (1 - 0.95**2)), rel=1e-9)
    assert student_t(2) > student_t(2.5) > student_t(3)


def test_an_interval_holds_the_mean_as_often_as_it_says() -> None:
    chance = torch.Generator().manual_seed(0)
    samples = torch.randn(4000, 3, generator=chance, dtype=torch.float64).tolist()
    found = [estimate(sample) for sample in samples]
    share = statistics.fmean(abs(one.mean) <= (one.half_width or 0) for one in found)
    assert share == pytest.approx(0.95, abs=0.014)  # four standard deviations of a share of 4000


def test_one_seed_has_no_interval() -> None:
    assert estimate([0.5]).half_width is None
    assert difference([0.5, 0.6], [0.5]).half_width is None
    assert not difference([0.5, 0.6], [0.5]).is_noise


def test_welch_by_hand() -> None:
    first, second = [27.5, 21.0, 19.0, 23.6], [27.1, 22.0, 20.8, 23.4, 23.4]
    parts = [statistics.variance(values) / len(values) for values in (first, second)]
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / 3 + parts[1] ** 2 / 4)
    found = difference(first, second)
    assert found.mean == pytest.approx(statistics.fmean(first) - statistics.fmean(second))
    assert found.half_width == pytest.approx(student_t(freedom) * math.sqrt(sum(parts)))
    assert (found.seeds, found.is_noise) == (4, True)


def test_equal_seeds_make_a_certain_difference() -> None:
    assert difference([0.5, 0.5], [0.4, 0.4]).half_width == 0
    assert not difference([0.5, 0.5], [0.4, 0.4]).is_noise
    assert difference([0.5, 0.5], [0.5, 0.5]).is_noise


def test_outcomes_mind_which_direction_is_better() -> None:
    low, high = [0.30, 0.301, 0.299], [0.40, 0.401, 0.399]
    assert compare(low, high, "top_1_error").standing is Standing.WON
    assert compare(low, high, "mrr").standing is Standing.LOST
    assert compare(low, [0.2, 0.3, 0.41], "mrr").standing is Standing.EVEN
    assert compare([0.3], [0.4], "top_1_error").standing is Standing.AHEAD
    assert compare([0.3], [0.4], "mrr").standing is Standing.BEHIND
    for score in ("top_1_error", "mrr"):
        assert compare([0.3], [0.3], score).standing is Standing.EVEN, "a tie is not worse"


def test_close_calls_need_five_seeds() -> None:
    assert compare([0.300, 0.301], [0.305, 0.306], "top_1_error").needs_seeds
    assert not compare([0.30, 0.301], [0.32, 0.321], "top_1_error").needs_seeds
    assert not compare([0.300, 0.301] * 3, [0.305, 0.306] * 3, "top_1_error").needs_seeds


def test_the_closest_comparison_is_the_least_favourable() -> None:
    own = [0.30, 0.301, 0.299]
    comparisons = [
        compare(own, [value, value + 0.001, value - 0.001], "top_1_error")
        for value in (0.4, 0.31, 0.29, 0.35)
    ]
    assert closest(comparisons) is comparisons[2]
    assert closest(comparisons[:2]) is comparisons[1]
