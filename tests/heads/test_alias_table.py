"""The tables of Walker's alias method give every class its probability."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor

from zloss.heads.samplers import (
    alias_table,
)


def distribution_of(keep: Tensor, alias: Tensor) -> Tensor:
    """Return the distribution of a table. Each class is hit with probability 1/C, and kept or replaced by its alias."""
    return keep.clone().index_add_(0, alias, 1 - keep) / len(keep)


def assert_table_is_right(weights: Tensor) -> None:
    keep, alias = alias_table(weights)
    assert ((keep >= 0) & (keep <= 1)).all()
    q = distribution_of(keep, alias)
    # The prefix sums reach at most C, with C roundings of relative size 1e-16 each. With C < 10,000 their error is at
    # most 1e-8 in units of 1/C. The expected error is some 1e-16 * sqrt(C) * C = 1e-10 of these units, which is 1e-14.
    torch.testing.assert_close(
        q, weights.double() / weights.sum(dtype=torch.float64), rtol=0, atol=1e-12
    )
    assert (q[weights == 0] == 0).all(), "exactly: a class without count must never be drawn"


WEIGHTS: dict[str, Tensor] = {
    "zipf": 1 / torch.arange(1, 10_000, dtype=torch.float64),
    "zipf upwards": (1 / torch.arange(1, 10_000, dtype=torch.float64)).flip(0),
    "uniform": torch.full((999,), 0.3),
    "nearly uniform": 1
    + 1e-15 * torch.randint(3, (999,), generator=Generator().manual_seed(0)).double(),
    "one class": torch.ones(1),
    "one of many": (torch.arange(100) == 37).double(),
    "two of many": (torch.arange(100) % 50 == 7).double(),
    "half of them": torch.arange(100) % 2 * 3.0,
    "one giant": torch.cat([torch.tensor([1e9]), torch.ones(5000)]),
    "one dwarf": torch.cat([torch.tensor([1e-9]), torch.ones(5000)]),
    "over many orders of magnitude": torch.logspace(-30, 5, 2000, dtype=torch.float64),
    "integers": torch.arange(1000),
}


@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS.keys())
def test_alias_table(weights: Tensor) -> None:
    assert_table_is_right(weights)


@given(
    st.lists(
        st.one_of(st.just(0.0), st.floats(1e-12, 1e12), st.integers(1, 9)), min_size=1, max_size=200
    )
)
@settings(deadline=None, max_examples=300)
def test_alias_table_of_any_counts(counts: list[float]) -> None:
    weights = torch.tensor(counts, dtype=torch.float64)
    if weights.any():
        assert_table_is_right(weights)


def test_the_test_of_the_table_sees_a_wrong_one() -> None:
    weights = WEIGHTS["zipf"]
    keep, alias = alias_table(weights)
    wrong = distribution_of(keep, alias.roll(1))
    assert (wrong - weights / weights.sum()).abs().max() > 1e-6, "a million times the tolerance"


def test_a_table_for_a_million_classes() -> None:
    weights = 1 / torch.arange(1, 1_000_001, dtype=torch.float64)
    q = distribution_of(*alias_table(weights))
    # The sums reach 1e6 with a resolution of 1e-10. The error is relative to a weight of at least 1.
    torch.testing.assert_close(q, weights / weights.sum(), rtol=1e-6, atol=0)
