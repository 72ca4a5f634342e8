"""Reduction, row weights, ignored rows and several targets per example, which are the same for every loss."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.losses.registry import LossCase, every_loss, every_loss_reduced_here

CLASSES = 6
IGNORED = -100
# A few terms of size 10 in float64: rounding is below 1e-14, and any slip in a formula is far above 1e-12.
assert_close = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)


def random_logits(rows: int, device: torch.device | None = None) -> Tensor:
    """Return the same numbers on every device and in every drawn example."""
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(rows, CLASSES, dtype=torch.float64, generator=generator)
        .to(device)
        .requires_grad_()
    )


def gradient(value: Tensor, logits: Tensor) -> Tensor:
    return torch.autograd.grad(value, logits, retain_graph=True)[0]


@every_loss
def test_mean_and_sum_reduce_the_rows_that_count(case: LossCase, device: torch.device) -> None:
    logits, target = (
        random_logits(5, device),
        torch.tensor([0, IGNORED, 2, 5, IGNORED], device=device),
    )
    rows = case.make(reduction="none")(logits, target)
    assert rows.shape == (5,)
    assert_close(case.make(reduction="sum")(logits, target), rows[[0, 2, 3]].sum())
    assert_close(case.make(reduction="mean")(logits, target), rows[[0, 2, 3]].mean())
    assert_close(case.make()(logits, target), rows[[0, 2, 3]].mean())


@pytest.mark.parametrize("ignore_index", [IGNORED, -1, 0, 4, 1000])
@every_loss
def test_an_ignored_row_counts_for_nothing(case: LossCase, ignore_index: int) -> None:
    logits = random_logits(4)
    target = torch.tensor([1, ignore_index, 5, ignore_index])
    rows = case.make(reduction="none", ignore_index=ignore_index)(logits, target)
    assert rows[[1, 3]].tolist() == [0, 0]
    assert_close(rows[[0, 2]], case.make(reduction="none")(logits[[0, 2]], target[[0, 2]]))
    per_row = gradient(rows.sum(), logits).abs().amax(1)
    assert per_row[[1, 3]].tolist() == [0, 0]
    assert per_row[[0, 2]].min() > 0


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("shape", [(3,), (3, 2)])
@every_loss_reduced_here
def test_a_batch_without_targets_is_zero(
    case: LossCase, shape: tuple[int, ...], reduction: str
) -> None:
    logits = random_logits(3)
    value = case.make(reduction=reduction)(logits, torch.full(shape, IGNORED))
    assert value.count_nonzero() == 0
    assert value.isfinite().all()
    assert gradient(value.sum(), logits).count_nonzero() == 0


@every_loss_reduced_here
def test_a_batch_without_rows_is_zero(case: LossCase) -> None:
    value = case.make()(torch.zeros(0, CLASSES), torch.zeros(0, dtype=torch.long))
    assert value.item() == 0


@every_loss_reduced_here
def test_weights_multiply_rows_before_the_reduction(case: LossCase, device: torch.device) -> None:
    logits, target = random_logits(4, device), torch.tensor([0, 3, IGNORED, 5], device=device)
    weight = torch.tensor([0.5, 0.0, 7.0, 3.0], dtype=torch.float64, device=device)
    rows = case.make(reduction="none")(logits, target) * weight
    assert_close(case.make(reduction="none")(logits, target, weight=weight), rows)
    assert_close(case.make(reduction="sum")(logits, target, weight=weight), rows.sum())
    # The mean is over the three rows that are not ignored, for any weights.
    assert_close(case.make()(logits, target, weight=weight), rows.sum() / 3)


@every_loss_reduced_here
def test_weights_are_upstream_gradients(case: LossCase) -> None:
    logits, target = random_logits(4), torch.tensor([0, 3, IGNORED, 5])
    weight = torch.tensor([0.5, 2.0, 7.0, -3.0], dtype=torch.float64)
    rows = case.make(reduction="none")(logits, target)
    upstream = torch.autograd.grad(rows, logits, grad_outputs=weight)[0]
    weighted = gradient(case.make(reduction="sum")(logits, target, weight=weight), logits)
    assert_close(weighted, upstream)
    assert weighted[2].count_nonzero() == 0


@every_loss_reduced_here
def test_the_weight_of_an_ignored_row_does_not_matter(case: LossCase) -> None:
    logits, target = random_logits(2), torch.tensor([1, IGNORED])
    value = case.make()(logits, target, weight=torch.tensor([1.0, math.nan]))
    assert_close(value, case.make()(logits, target))
    assert gradient(value, logits).isfinite().all()


ragged_targets = st.integers(1, 4).flatmap(
    lambda columns: st.lists(
        st.lists(st.sampled_from([IGNORED, *range(CLASSES)]), min_size=columns, max_size=columns),
        min_size=1,
        max_size=5,
    )
)


def mean_by_definition(case: LossCase, o: list[float], targets: list[int]) -> float:
    values = [case.definition(o, c) for c in targets if c != IGNORED]
    return math.fsum(values) / max(len(values), 1)


@every_loss_reduced_here
@given(targets=ragged_targets)
@settings(deadline=None, max_examples=25)
def test_several_targets_are_averaged_over_the_valid_ones(
    case: LossCase, targets: list[list[int]]
) -> None:
    logits = random_logits(len(targets))
    expected = [
        mean_by_definition(case, *row) for row in zip(logits.tolist(), targets, strict=True)
    ]
    value = case.make(reduction="none")(logits, torch.tensor(targets))
    assert_close(value, torch.tensor(expected, dtype=torch.float64))
    empty = torch.tensor([set(row) == {IGNORED} for row in targets])
    assert gradient(value.sum(), logits)[empty].count_nonzero() == 0


@every_loss_reduced_here
def test_padding_changes_nothing(case: LossCase, device: torch.device) -> None:
    logits, target = random_logits(3, device), torch.tensor([1, 5, IGNORED], device=device)
    padded = torch.stack([torch.full_like(target, IGNORED), target], 1)
    bare = case.make()(logits, target)
    for shaped in (target[:, None], padded):
        value = case.make()(logits, shaped)
        assert_close(value, bare)
        assert_close(gradient(value, logits), gradient(bare, logits))


@every_loss_reduced_here
def test_the_mean_is_over_rows_and_not_over_targets(case: LossCase) -> None:
    logits = random_logits(3)
    target = torch.tensor([[0, 1, 2], [3, IGNORED, IGNORED], [IGNORED, IGNORED, IGNORED]])
    rows = case.make(reduction="none")(logits, target)
    assert_close(case.make()(logits, target), (rows[0] + rows[1]) / 2)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
@every_loss_reduced_here
def test_targets_may_have_any_integer_type(case: LossCase, dtype: torch.dtype) -> None:
    logits, target = random_logits(3), torch.tensor([0, 5, 2])
    assert torch.equal(case.make()(logits, target.to(dtype)), case.make()(logits, target))


@every_loss
def test_a_loss_has_nothing_to_train_or_to_save(case: LossCase) -> None:
    loss: nn.Module = case.make()
    assert list(loss.parameters()) == []
    assert loss.state_dict() == {}
