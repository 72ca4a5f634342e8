"""Class targets, checked once and brought into one shape.

Everything that takes targets (dense losses, output layers, rankings) takes the same ones: shape `(B,)` for one target
per example or `(B, K)` for K, of any integer type, where `ignore_index` marks a target that counts for nothing.
Ragged lists of targets become rectangular by padding with `ignore_index`.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

IGNORE_INDEX = -100
# Of more classes than that nobody has as many targets as there are classes: such a matrix is multi-hot.
_MOST_TARGETS = 1000
_OF_MULTI_HOT = "of a multi-hot matrix, give the classes of its ones, padded with ignore_index"


@dataclass(frozen=True)
class Targets:
    """Targets ready for indexing: ignored entries point at class 0 and are not `valid`."""

    index: Tensor  # (B, K) int64, every entry in [0, num_classes)
    valid: Tensor  # (B, K) bool
    out_of_range: Tensor  # () bool, still on the device: reading it on the host would stall a GPU

    @property
    def shape(self) -> torch.Size:
        """(B, K)."""
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
        """The same targets under other numbers."""
        return replace(self, index=index)

    def without_padding(self) -> "Targets":
        """For whoever takes them by rows: the valid ones first, in the columns that the fullest row needs.

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
        """Plain class indices again, for whoever knows nothing of this class."""
        target = torch.where(self.valid, self.index, ignore_index)
        return target[:, 0] if target.shape[1] == 1 else target


def parse_targets(target: Tensor, num_rows: int, num_classes: int, ignore_index: int) -> Targets:
    """Check shape and dtype of `target` and separate indices from padding, without waiting for the device.

    A value that is no class is clamped and reported through `out_of_range`, for the caller to read when it suits.

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
    """Check shape and dtype of `target`, and bring it into one of each."""
    if not isinstance(target, Tensor):
        raise ValueError(f"target must be a tensor of class indices, got {type(target).__name__}")
    if target.is_nested:
        raise ValueError(
            "target is a nested tensor: give torch.nested.to_padded_tensor(target, ignore_index)"
        )
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        hint = f"; {_OF_MULTI_HOT}" if target.dim() == 2 else ""
        raise ValueError(f"target must hold integer class indices, got dtype {target.dtype}{hint}")
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
    """`parse_targets`, and `ValueError` at once for a value that is no class. Waits for the device.

    `Targets` pass through: whoever parsed them has dealt with such values.
    """
    if isinstance(target, Targets):
        return target
    targets = parse_targets(target, num_rows, num_classes, ignore_index)
    if targets.out_of_range:
        wide = target.long()  # a narrow type would wrap the bounds
        bad = wide[(wide != ignore_index) & ((wide < 0) | (wide >= num_classes))]
        raise ValueError(out_of_range_message(f"target {int(bad[0])}", num_classes))
    return targets


def out_of_range_message(what: str, num_classes: int) -> str:
    """The one sentence for a target that is no class."""
    return f"{what} is out of range: expected 0 <= target < {num_classes}, or the ignore_index"
