"""Targets: they have one shape, padding differs from classes, and no target is out of range."""

import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zloss.targets import IGNORE_INDEX, Targets, checked_targets, parse_targets

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
CLASSES = 9
RAGGED = torch.nested.nested_tensor([torch.tensor([1, 2]), torch.tensor([3])], layout=torch.jagged)


def test_the_default_ignore_index_is_that_of_pytorch() -> None:
    assert torch.nn.CrossEntropyLoss().ignore_index == IGNORE_INDEX


@pytest.mark.parametrize("dtype", INTEGERS)
def test_targets_become_int64_columns(dtype: torch.dtype, device: torch.device) -> None:
    target = torch.tensor([3, 0, 8], dtype=dtype, device=device)
    for shaped in (target, target[:, None]):
        targets = checked_targets(shaped, 3, CLASSES, IGNORE_INDEX)
        assert targets.index.dtype == torch.int64
        assert targets.index.device == device
        assert targets.index.tolist() == [[3], [0], [8]]
        assert targets.valid.tolist() == [[True]] * 3


@given(
    target=st.lists(
        st.lists(st.integers(-3, CLASSES + 2), min_size=2, max_size=2), min_size=1, max_size=6
    ),
    ignore_index=st.integers(-3, CLASSES + 2),
)
@settings(deadline=None, max_examples=200)
def test_every_value_is_a_class_or_ignored_or_out_of_range(
    target: list[list[int]], ignore_index: int
) -> None:
    targets = parse_targets(torch.tensor(target), len(target), CLASSES, ignore_index)
    assert targets.valid.tolist() == [[c != ignore_index for c in row] for row in target]
    bad = [c for row in target for c in row if c != ignore_index and not 0 <= c < CLASSES]
    assert bool(targets.out_of_range) == bool(bad)
    # The index is safe for any target.
    assert targets.index.min() >= 0
    assert targets.index.max() < CLASSES
    if bad:
        with pytest.raises(ValueError, match=f"target {bad[0]} is out of range"):
            checked_targets(torch.tensor(target), len(target), CLASSES, ignore_index)
    else:
        assert targets.index.tolist() == [
            [0 if c == ignore_index else c for c in row] for row in target
        ]


def test_parsing_leaves_the_verdict_on_the_device(device: torch.device) -> None:
    targets: Targets = parse_targets(
        torch.tensor([0, CLASSES], device=device), 2, CLASSES, IGNORE_INDEX
    )
    assert targets.out_of_range.device == device
    assert targets.out_of_range.shape == ()
    assert targets.out_of_range.item() is True


def test_a_multi_hot_matrix_is_told_by_its_columns() -> None:
    """Its zeros and ones would be valid classes. With few classes it looks like targets that repeat."""
    with pytest.raises(
        ValueError, match="as many columns as there are classes, 2000: of a multi-hot matrix"
    ):
        parse_targets(torch.eye(2, 2000, dtype=torch.long), 2, 2000, IGNORE_INDEX)
    assert parse_targets(torch.eye(2, 1999, dtype=torch.long), 2, 2000, IGNORE_INDEX).shape == (
        2,
        1999,
    )
    assert parse_targets(
        torch.eye(2, CLASSES, dtype=torch.long), 2, CLASSES, IGNORE_INDEX
    ).shape == (2, CLASSES)


def test_no_rows_are_fine() -> None:
    targets = checked_targets(torch.zeros(0, dtype=torch.long), 0, CLASSES, IGNORE_INDEX)
    assert targets.index.shape == targets.valid.shape == (0, 1)


# Narrow integers wrap a number that they cannot hold: -100 is 156 in uint8, and 200 is -56 in int8.
@pytest.mark.parametrize(
    ("dtype", "target", "num_classes", "ignore_index", "culprit"),
    [
        (torch.uint8, [3, 156], 100, -100, 156),
        (torch.int8, [5, -3], 200, -100, -3),
        (torch.int8, [5, -24], 100, 1000, -24),
        (torch.int64, [5, 2**40], 100, -100, 2**40),
    ],
)
def test_the_message_names_the_culprit_in_every_integer_type(
    dtype: torch.dtype, target: list[int], num_classes: int, ignore_index: int, culprit: int
) -> None:
    message = f"target {culprit} is out of range: expected 0 <= target < {num_classes}, or the ignore_index"
    with pytest.raises(ValueError, match=re.escape(message)):
        checked_targets(torch.tensor(target, dtype=dtype), 2, num_classes, ignore_index)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (None, "target must be a tensor of class indices, got NoneType"),
        (1, "got int"),
        (torch.zeros(2), "target must hold integer class indices, got dtype torch.float32"),
        (torch.zeros(2, dtype=torch.complex64), "got dtype torch.complex64"),
        (torch.zeros(2, dtype=torch.bool), "got dtype torch.bool"),
        (torch.tensor(0), "target must have shape (2,) or (2, K), one row per example, got ()"),
        (torch.zeros(3, dtype=torch.long), "got (3,)"),
        (torch.zeros(1, 2, dtype=torch.long), "got (1, 2)"),
        (torch.zeros(2, 1, 1, dtype=torch.long), "got (2, 1, 1)"),
        (RAGGED, "torch.nested.to_padded_tensor(target, ignore_index)"),
        (
            torch.zeros(2, 0, dtype=torch.long),
            "target has no columns: give at least one per example",
        ),
    ],
)
def test_what_is_no_target_is_refused(target: Any, message: str) -> None:
    for check in (parse_targets, checked_targets):
        with pytest.raises(ValueError, match=re.escape(message)):
            check(target, 2, CLASSES, IGNORE_INDEX)
