"""Decisions on the numbers of a report: when a layer refactors and when it warns of that, up to the limits."""

import math
import warnings

import pytest
import torch

from zloss.layers.supervisor import Conditioning, Health

FLOATS = [(torch.float32, 30.0), (torch.float64, 1e4)]  # how much one direction may shrink


def health(*, condition: float = 1.0, scale: float = 1.0) -> Health:
    return Health(fault=0, safe_lr=1.0, condition=condition, scale=scale)


@pytest.mark.parametrize("width", [1, 4, 256])
@pytest.mark.parametrize(("dtype", "shrinkage"), FLOATS)
def test_the_limit_is_that_of_an_identity_with_one_shrunk_direction(
    dtype: torch.dtype, shrinkage: float, width: int
) -> None:
    limit = Conditioning(None).limit(width, dtype)
    assert limit == math.sqrt(1 + shrinkage**2 / width)
    assert Conditioning(7.5).limit(width, dtype) == 7.5


def test_factors_are_sound_up_to_the_limits() -> None:
    conditioning = Conditioning(3.0)

    def is_sound(**numbers: float) -> bool:
        return conditioning.is_sound(health(**numbers), 4, torch.float32)

    assert is_sound(condition=3.0)
    assert not is_sound(condition=math.nextafter(3.0, 4))
    assert not is_sound(condition=math.nan)
    for limit, beyond in ((1e6, math.inf), (1e-6, 0.0)):
        assert is_sound(scale=limit)
        assert not is_sound(scale=math.nextafter(limit, beyond))
    assert not is_sound(scale=math.nan)
    assert not is_sound(condition=4.0, scale=1e7)


def test_max_condition_is_more_than_what_a_refactor_restores() -> None:
    assert Conditioning(math.nextafter(1, 2)).max_condition is not None
    for wrong in (1.0, 0.0, -3.0, math.nan):
        with pytest.raises(ValueError, match="max_condition must be greater than 1"):
            Conditioning(wrong)


@pytest.mark.parametrize("parts", [1, 3])
def test_a_report_is_read(parts: int) -> None:
    """The squared norms of U and of its inverse may each be in several parts."""
    U_squares, inverse_squares = [4.0 / parts] * parts, [9.0 / parts] * parts
    report = torch.tensor([4.0, 0.25, *U_squares, *inverse_squares], dtype=torch.float64)
    read = Health.read(report, width=5)
    assert (read.fault, read.safe_lr) == (4, 0.25)
    assert type(read.fault) is int
    assert read.condition == pytest.approx(math.sqrt(36) / 5, rel=1e-12)
    assert read.scale == pytest.approx(math.sqrt(9 / 5), rel=1e-12)


def test_a_refactor_is_counted() -> None:
    conditioning = Conditioning(None)
    assert (conditioning.refactors, conditioning.drift) == (0, None)
    assert conditioning.steps_since_refactor == 0
    conditioning.steps_since_refactor = 8
    drift = torch.tensor(0.5)
    conditioning.note_refactor(drift)
    conditioning.note_refactor(drift)
    assert (conditioning.refactors, conditioning.steps_since_refactor) == (2, 0)
    assert conditioning.drift is drift


def refactor(
    conditioning: Conditioning,
    *,
    steps: int,
    num_rows: int = 100_000,
    safe_lr: float = 8.0,
    lr: float = 4.0,
) -> list[str]:
    """Refactor this number of steps after the last time, and return the warnings."""
    conditioning.note_step(lr, batch_rows=30, num_rows=num_rows, width=20)
    conditioning.steps_since_refactor = steps
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        conditioning.warn_if_hasty(safe_lr)
    conditioning.note_refactor(torch.tensor(0.0))
    return [str(one.message) for one in caught]


def test_the_fifth_of_five_hasty_refactors_warns_once() -> None:
    conditioning = Conditioning(None)
    told = [refactor(conditioning, steps=9) for _ in range(7)]
    assert [len(one) for one in told] == [0, 0, 0, 0, 1, 0, 0]
    assert "5 refactors within 10 steps of each other" in told[4][0]


def test_a_refactor_after_ten_steps_is_not_hasty() -> None:
    conditioning = Conditioning(None)
    assert not any(refactor(conditioning, steps=9) for _ in range(4))
    assert not refactor(conditioning, steps=10)
    assert [len(refactor(conditioning, steps=1)) for _ in range(5)] == [0, 0, 0, 0, 1]


@pytest.mark.parametrize(("num_rows", "warns"), [(999, False), (1000, True)])
def test_a_refactor_that_costs_no_more_than_the_steps_is_not_hasty(
    num_rows: int, warns: bool
) -> None:
    """A pass over C rows costs C / (4 (B + H)) steps: with 1,000 of them here five, this one included."""
    conditioning = Conditioning(None)
    told = [refactor(conditioning, steps=4, num_rows=num_rows) for _ in range(5)]
    assert any(told) == warns


def test_nothing_is_named_for_a_rate_of_zero() -> None:
    conditioning = Conditioning(None)
    for _ in range(6):
        assert not refactor(conditioning, steps=1, lr=0.0)


def test_the_named_rate_is_a_quarter_of_what_makes_refactors_rare() -> None:
    """Two steps would become ten with a fifth of the rate of 4, if W were as large as now."""
    conditioning = Conditioning(None)
    told = [refactor(conditioning, steps=steps) for steps in (9, 1, 5, 9, 9)][-1]
    assert "about 0.05 times the present rate would be safe, which is lr=0.2" in told[0]
    conditioning = Conditioning(None)
    told = [refactor(conditioning, steps=9, safe_lr=0.4) for _ in range(5)][-1]
    assert "about 0.025 times the present rate would be safe, which is lr=0.1" in told[0]


@pytest.mark.parametrize("width", [4, 256])
def test_a_device_takes_steps_up_to_a_multiple_of_the_limit(width: int) -> None:
    conditioning = Conditioning(None)
    limit = conditioning.limit(width, torch.float32)
    assert conditioning.most(width, torch.float32) == 16 * limit
    assert Conditioning(2.5).most(width, torch.float64) == 40


def test_a_host_runs_ahead_by_a_sixteenth_of_the_steps_that_went_well() -> None:
    conditioning = Conditioning(None)
    ahead = {}
    for steps in (0, 15, 31, 32, 33, 160, 16 * 32 - 1, 16 * 32, 10_000):
        conditioning.steps_since_refactor = steps
        ahead[steps] = conditioning.steps_ahead
    assert ahead == {0: 1, 15: 1, 31: 1, 32: 2, 33: 2, 160: 10, 511: 31, 512: 32, 10_000: 32}
