"""What an output layer is given, checked: the hidden batch and, beside it, the targets.

Values are checked where the host has them anyway, on a CPU. On a GPU that would mean waiting for the device on every
step, so bad values are noted there, the batch that has them is made harmless, and the host raises when word of it has
come back: a few batches later, or at the next call that reads results.
"""

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zloss.capture import is_capturing, note_captured
from zloss.layers.faults import DeviceReports, Fault, fault_error
from zloss.targets import Targets, checked_targets, parse_targets

_BATCH_FAULTS = (Fault.TARGET, Fault.HIDDEN)


def check_sizes(in_features: int, num_classes: int) -> None:
    """Refuse a layer that there cannot be."""
    are_whole = all(
        isinstance(size, Integral) for size in (in_features, num_classes)
    )  # numpy's too, but not 1e6
    if not are_whole or in_features < 1 or num_classes < 2:
        raise ValueError(
            f"expected whole numbers in_features >= 1 and num_classes >= 2, got {in_features!r} and {num_classes!r}"
        )


def check_hidden(h: Tensor, in_features: int, weight: Tensor) -> None:
    """Refuse a hidden batch of the wrong kind, shape, device or dtype for a layer with this weight."""
    if not isinstance(h, Tensor) or not h.is_floating_point():
        got = f"dtype {h.dtype}" if isinstance(h, Tensor) else type(h).__name__
        raise ValueError(
            f"h must be a floating-point tensor of shape (B, {in_features}), got {got}"
        )
    if h.dim() != 2 or h.shape[1] != in_features:
        hint = (
            "; flatten leading dimensions first, and those of the target with them"
            if h.dim() > 2
            else ""
        )
        raise ValueError(f"h must have shape (B, {in_features}), got {tuple(h.shape)}{hint}")
    if h.device != weight.device:
        raise ValueError(f"h is on {h.device} but the layer is on {weight.device}")
    if torch.promote_types(h.dtype, weight.dtype) != weight.dtype:
        raise ValueError(
            f"h has dtype {h.dtype} but the layer holds {weight.dtype}: convert one of them"
        )


def check_same_device(h: Tensor, target: Any) -> None:
    """Refuse targets that are elsewhere."""
    if isinstance(target, Tensor) and target.device != h.device:
        raise ValueError(f"h and target must be on one device, got {h.device} and {target.device}")


class Admitted(NamedTuple):
    """A batch that may go in. Where it is `refused`, on a GPU, `h` is 0."""

    h: Tensor  # (B, H)
    targets: Targets
    refused: Tensor | None  # () bool on the device; None on a CPU, where a bad batch raises at once

    def conclude(self, loss: Tensor) -> Tensor:
        """NaN in place of the loss of a refused batch, with gradients of exactly zero."""
        return loss if self.refused is None else torch.where(self.refused, torch.nan, loss)


class Doorkeeper:
    """Lets batches in, and raises for those that it had to refuse on a GPU."""

    def __init__(self, num_classes: int, ignore_index: int) -> None:
        self.num_classes, self.ignore_index = num_classes, ignore_index
        self._faults: Tensor | None = (
            None  # (2,) bool on the device: which of `_BATCH_FAULTS` have occurred
        )
        self._reports = DeviceReports()

    def admit(self, h: Tensor, target: Tensor, weight: Tensor) -> Admitted:
        """Check a batch; `h` comes back in the dtype of the layer."""
        check_hidden(h, weight.shape[1], weight)
        check_same_device(h, target)
        # Autocast converts both sides of a product, but leaves float64 alone.
        if not torch.is_autocast_enabled(h.device.type) or weight.dtype == torch.float64:
            h = h.to(weight.dtype)
        return (
            self._admit_later(h, target) if h.device.type == "cuda" else self._admit_now(h, target)
        )

    def raise_faults(self) -> None:
        """Raise the error of a batch that was refused on the device and not reported yet. Waits for it."""
        if self._faults is not None:
            self._raise_first(self._faults.tolist())

    def _admit_now(self, h: Tensor, target: Tensor) -> Admitted:
        targets = checked_targets(target, len(h), self.num_classes, self.ignore_index)
        self._raise_first([False, not h.isfinite().all()])
        return Admitted(h, targets.without_padding(), None)

    def _admit_later(self, h: Tensor, target: Tensor) -> Admitted:
        targets = parse_targets(target, len(h), self.num_classes, self.ignore_index)
        # 0 x is 0 for every finite x, and NaN for all else: fewer launches than isfinite().
        bad_hidden = (h.detach() * 0).sum() != 0
        faults = torch.stack([targets.out_of_range, bad_hidden])
        self._report(faults)
        refused = faults.any()
        return Admitted(torch.where(refused, 0, h), targets, refused)

    def _report(self, faults: Tensor) -> None:
        if self._faults is None or self._faults.device != faults.device:
            with torch.inference_mode(
                False
            ):  # or training could not write to them, where a validation comes first
                self._faults, self._reports = (
                    torch.zeros_like(faults),
                    DeviceReports(),
                )  # both belong to a device
        self._faults.logical_or_(faults)
        if is_capturing():
            note_captured(self)  # replays leave their faults there, for `after_replay` to find
            return
        if (report := self._reports.latest()) is not None:
            self._raise_first(report.tolist())
        self._reports.push(self._faults)

    def after_replay(self) -> None:
        """Look for faults that the replays of a captured step have left."""
        if (
            self._faults is not None
            and (report := self._reports.after_replay(self._faults)) is not None
        ):
            self._raise_first(report.tolist())

    def _raise_first(self, faults: Sequence[float]) -> None:
        for fault, is_there in zip(_BATCH_FAULTS, faults, strict=True):
            if is_there:
                if self._faults is not None:
                    self._faults.zero_()  # in place: a captured graph goes on writing there
                self._reports.forget()
                raise fault_error(fault, math.nan, self.num_classes)

    def __getstate__(self) -> dict[str, Any]:
        # A copy has no part in what the original has under way on a device.
        return self.__dict__ | {"_faults": None, "_reports": DeviceReports()}
