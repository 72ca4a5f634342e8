"""The gradient that waits for a step: its mark, its scale, and the ways in which it ends."""

import pytest
import torch

from tests.layers.dense_problems import Problem, assert_exact
from zloss.layers.gradient import PendingGradient, all_places, nonzero_places
from zloss.layers.mark import GradientMark


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("trains", [True, False])
def test_a_mark_is_like_its_weight(dtype: torch.dtype, trains: bool) -> None:
    weight = torch.nn.Parameter(torch.randn(3, 4, dtype=dtype), requires_grad=trains)
    mark = GradientMark.like(weight)
    assert (mark.shape, mark.dtype, mark.requires_grad) == ((2,), dtype, trains)
    assert isinstance(mark, GradientMark)
    assert not mark.any()


def facts(pending: PendingGradient) -> tuple[bool, bool, bool]:
    """Return whether a gradient waits, whether its mark has one, and whether a scale was divided out."""
    return pending.exists(), pending.mark.grad is not None, pending.is_unscaled


def test_pending_records_are_scaled_used_up_and_dropped() -> None:
    record = Problem(3, 4).record
    mark = GradientMark.like(torch.nn.Parameter(torch.zeros(1)))
    pending = PendingGradient(mark)
    assert not pending.exists()
    assert pending.gradient() is None
    pending.record(record)
    assert pending.exists()
    assert mark.grad is not None
    assert 0 < float(mark.grad.norm()) < 1e-18  # too small for any norm of gradients
    pending.scale_(0.25)
    pending.is_unscaled = True
    gradient = pending.gradient()
    assert gradient is not None
    assert_exact(gradient.mean_grad, record.mean_grad / 4)
    pending.record(record)
    assert facts(pending) == (True, True, False)
    both = pending.gradient()
    assert both is not None
    assert len(both.h) == 6
    assert pending.gradient() is both  # concatenated once
    pending.fit_refactored()
    refactored = pending.gradient()
    assert refactored is not None
    assert refactored.hu is None
    pending.is_unscaled = True
    pending.drop()
    assert facts(pending) == (False, False, False)
    pending.record(record)
    mark.grad = None  # zero_grad() of another optimizer
    assert not pending.exists()
    pending.record(record)
    alone = pending.gradient()
    assert alone is not None
    assert len(alone.h) == 3
    pending.use_up()
    assert not pending.exists()


def pending_gradient() -> tuple[PendingGradient, GradientMark]:
    mark = GradientMark.like(torch.nn.Parameter(torch.zeros(1)))
    return PendingGradient(mark), mark


def test_a_mark_that_somebody_has_set_does_no_harm() -> None:
    pending, mark = pending_gradient()
    assert not pending.is_unscaled
    mark.grad = torch.ones(2)
    pending.record(Problem(3, 4).record)
    assert pending.gradient() is not None  # and no warning of a change in place


def test_a_gradient_that_was_changed_in_place_warns() -> None:
    pending, mark = pending_gradient()
    pending.record(Problem(3, 4).record)
    assert mark.grad is not None
    mark.grad.mul_(0.5)
    with pytest.warns(UserWarning, match="changed in place"):
        pending.gradient()


def test_a_gradient_that_is_zeroed_too_soon_warns_once() -> None:
    pending, mark = pending_gradient()
    pending.warn_if_zeroed_too_soon()  # nothing was recorded
    pending.record(Problem(3, 4).record)
    mark.grad = None
    with pytest.warns(UserWarning, match="take all steps first"):
        pending.warn_if_zeroed_too_soon()
    pending.warn_if_zeroed_too_soon()


def test_a_gradient_that_is_overwritten_warns_while_it_exists() -> None:
    pending, _ = pending_gradient()
    pending.warn_if_overwritten()
    pending.record(Problem(3, 4).record)
    with pytest.warns(UserWarning, match="step first"):
        pending.warn_if_overwritten()


def test_a_copy_has_no_gradient_and_waits_for_its_mark() -> None:
    pending, _ = pending_gradient()
    pending.record(Problem(3, 4).record)
    state = pending.__getstate__()
    assert (state["mark"], state["_records"], state["_written_mark"]) == (None, [], None)
    assert (state["written_norm"], state["_appliers"]) == (None, None)
    assert state.keys() == vars(pending).keys()
    assert pending.exists()


def test_a_mark_is_made_anew_after_a_write() -> None:
    pending, mark = pending_gradient()
    pending.record(Problem(3, 4).record)
    first = mark.grad
    assert first is not None
    pending.drop()
    pending.record(Problem(3, 4).record)
    assert mark.grad is first  # in a graph, to make another would delay every step
    first.mul_(2)
    pending.drop()
    pending.record(Problem(3, 4).record)
    assert mark.grad is not first
    pending.mark = GradientMark.like(torch.nn.Parameter(torch.zeros(1, dtype=torch.float64)))
    pending.record(Problem(3, 4).record)
    assert pending.mark.grad is not None
    assert pending.mark.grad.dtype == torch.float64


def test_a_mark_that_was_zeroed_in_place_drops_the_gradient() -> None:
    pending, mark = pending_gradient()
    for zero in ("zero_", "data.zero_"):
        pending.record(Problem(3, 4).record)
        assert pending.exists()
        assert mark.grad is not None
        (mark.grad if zero == "zero_" else mark.grad.data).zero_()
        assert not pending.exists()
        assert pending.gradient() is None


def test_places_of_values() -> None:
    values = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    assert nonzero_places(values).tolist() == [1, 2]
    assert all_places(values).tolist() == [0, 1, 2, 3]
