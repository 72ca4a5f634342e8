"""Class targets, checked once and brought into one shape.

Dense losses, output layers and rankings all take targets of the same form. The shape is `(B,)` for one target per
example, or `(B, K)` for K targets. The dtype is any integer type. An entry equal to `ignore_index` counts for nothing.
To make ragged lists of targets rectangular, pad them with `ignore_index`.

Shape letters: B examples, K targets per example.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from zloss.inputs import INTEGERS, check_whole, fault_of_tensor

IGNORE_INDEX = -100
# With more classes than this, a matrix with one column per class is multi-hot: no example has that many targets.
_MOST_TARGETS = 1000
_OF_MULTI_HOT = "of a multi-hot matrix, give the classes of its ones, padded with ignore_index"


@dataclass(frozen=True)
class Targets:
    """Targets ready for indexing: ignored entries point at class 0 and are not `valid`.

    >>> targets = parse_targets(torch.tensor([[3, -100], [1, 2]]), num_rows=2, num_classes=5, ignore_index=-100)
    >>> targets.index, targets.valid
    (tensor([[3, 0],
            [1, 2]]), tensor([[ True, False],
            [ True,  True]]))
    >>> targets.mean(torch.tensor([[1.0, 50.0], [2.0, 4.0]]))       # over the valid targets of each example
    tensor([1., 3.])
    """

    index: Tensor  # (B, K) int64, every entry in [0, num_classes)
    valid: Tensor  # (B, K) bool
    out_of_range: Tensor  # () bool, still on the device: reading it on the host would stall a GPU

    @property
    def shape(self) -> torch.Size:
        """The shape (B, K) of the index."""
        return self.index.shape

    @property
    def counted(self) -> Tensor:  # (B,) bool
        """The examples that have at least one target which is not ignored."""
        return self.valid[:, 0] if self.valid.shape[1] == 1 else self.valid.any(1)

    def mean(self, values: Tensor) -> Tensor:  # (B, K) -> (B,)
        """Average one value per target into one per example; 0 where every target is ignored."""
        values = torch.where(self.valid, values, 0)
        return (
            values[:, 0] if values.shape[1] == 1 else values.sum(1) / self.valid.sum(1).clamp_min(1)
        )

    def at(self, index: Tensor) -> "Targets":
        """Return the same targets under other numbers, such as positions in an order of the classes."""
        return replace(self, index=index)

    def without_padding(self) -> "Targets":
        """Return the targets with the valid ones first in each row, in as few columns as the fullest row needs.

        Waits for the device.
        """
        if self.shape[1] == 1:
            return self
        fullest = int(self.valid.sum(1).max()) if self.valid.any() else 1
        columns = self.valid.sort(dim=1, descending=True, stable=True).indices[:, :fullest]
        return replace(
            self, index=self.index.gather(1, columns), valid=self.valid.gather(1, columns)
        )

    def to_tensor(self, ignore_index: int) -> Tensor:  # (B,) or (B, K)
        """Return plain class indices again, for losses from outside this library."""
        target = torch.where(self.valid, self.index, ignore_index)
        return target[:, 0] if target.shape[1] == 1 else target


def parse_targets(target: Tensor, num_rows: int, num_classes: int, ignore_index: int) -> Targets:
    """Check shape and dtype of `target` and separate indices from padding, without waiting for the device.

    A value outside of the range of the classes is clamped. It sets `out_of_range`, which the caller reads later.

    Args:
        target: class indices, (B,) or (B, K).
        num_rows: B.
        num_classes: the number of classes.
        ignore_index: the target that counts for nothing.

    >>> parse_targets(torch.tensor([2, -100]), num_rows=2, num_classes=3, ignore_index=-100).valid
    tensor([[ True],
            [False]])
    """
    index = target_columns(target, num_rows, num_classes)
    valid = index != ignore_index
    index = torch.where(valid, index, 0)
    clamped = index.clamp(0, num_classes - 1)
    return Targets(index=clamped, valid=valid, out_of_range=(index != clamped).any())


def target_columns(
    target: Tensor, num_rows: int, num_classes: int
) -> Tensor:  # (B,) or (B, K) -> (B, K) int64
    """Return `target` as int64 of shape (B, K), after a check of its shape and dtype."""
    if not isinstance(target, Tensor):
        raise ValueError(f"target must be a tensor of class indices, got {type(target).__name__}")
    if target.is_nested:
        raise ValueError(
            "target is a nested tensor: give torch.nested.to_padded_tensor(target, ignore_index)"
        )
    if fault := fault_of_tensor(target, INTEGERS):
        is_multi_hot = target.dtype not in INTEGERS and target.dim() == 2
        hint = f"; {_OF_MULTI_HOT}" if is_multi_hot else ""
        raise ValueError(f"target must hold integer class indices, got {fault}{hint}")
    if target.dim() not in (1, 2) or target.shape[0] != num_rows:
        raise ValueError(
            f"target must have shape ({num_rows},) or ({num_rows}, K), one row per example, got {tuple(target.shape)}"
        )
    if target.dim() == 2 and target.shape[1] == num_classes > _MOST_TARGETS:
        raise ValueError(
            f"target has as many columns as there are classes, {num_classes}: {_OF_MULTI_HOT}"
        )
    index = target.long() if target.dim() == 2 else target.long()[:, None]
    if index.shape[1] == 0:
        raise ValueError(
            "target has no columns: give at least one per example, ignore_index where there is none"
        )
    return index


def checked_targets(
    target: Tensor | Targets, num_rows: int, num_classes: int, ignore_index: int
) -> Targets:
    """Parse targets like `parse_targets`, but raise `ValueError` at once for a value that is out of range.

    Waits for the device. `Targets` pass through: the code that parsed them has dealt with such values.
    """
    if isinstance(target, Targets):
        return target
    targets = parse_targets(target, num_rows, num_classes, ignore_index)
    if targets.out_of_range:
        wide = target.long()  # a narrow type would wrap the bounds
        bad = wide[(wide != ignore_index) & ((wide < 0) | (wide >= num_classes))]
        raise ValueError(out_of_range_message(f"target {int(bad[0])}", num_classes))
    return targets


def check_ignore_index(ignore_index: int) -> None:
    """Refuse an ignore_index that no target can have."""
    check_whole("ignore_index", ignore_index)


def out_of_range_message(what: str, num_classes: int) -> str:
    """Return the message for a target outside of the range of the classes."""
    return f"{what} is out of range: expected 0 <= target < {num_classes}, or the ignore_index"


def parse_row_ids(ids: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:  # (N,) int64, (N,) bool
    """Check the classes of rows to look up, of any shape. Returns them in the range of the classes, and misfits.

    Args:
        ids: class indices.
        weight: the weight matrix, (C, H), for C and for its device.

    >>> parse_row_ids(torch.tensor([[2, 9]]), torch.zeros(5, 3))
    (tensor([2, 4]), tensor([False,  True]))
    """
    if fault := fault_of_tensor(ids, INTEGERS):
        raise ValueError(f"ids must be a tensor of integer class indices, got {fault}")
    if ids.device != weight.device:
        raise ValueError(f"ids are on {ids.device} but the layer is on {weight.device}")
    given = ids.long().flatten()
    index = given.clamp(0, len(weight) - 1)
    return index, given != index


def checked_row_ids(ids: Tensor, weight: Tensor) -> Tensor:  # (N,) int64
    """Check ids like `parse_row_ids`, but raise `ValueError` at once where one is out of range.

    Waits for the device.
    """
    index, misfits = parse_row_ids(ids, weight)
    if misfits.any():
        bad = int(ids.flatten()[misfits][0])
        raise ValueError(row_id_message(f"id {bad}", len(weight)))
    return index


def row_id_message(what: str, num_classes: int) -> str:
    """Return the message for a row that does not exist."""
    return f"{what} is out of range: expected 0 <= id < {num_classes}"
