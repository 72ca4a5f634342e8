"""The admission of batches to a head, which refuses bad batches.

On a CPU the values of a batch are checked at once. On a GPU the host would have to wait for the device in every step.
There the device itself makes a bad batch harmless. The host raises the error a few batches later, or at the next call
that reads results.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from zloss.inputs import check_hidden, check_same_device, in_dtype_of
from zloss.layers.supervisor import Fault, Supervisor
from zloss.streams import is_capturing
from zloss.targets import Targets, checked_targets, parse_targets


class Admitted(NamedTuple):
    """A batch that has been checked. If a GPU has `refused` it, `h` is 0."""

    h: Tensor  # (B, H)
    targets: Targets
    refused: Tensor | None  # () bool on the device; None on a CPU, where a bad batch raises at once

    def conclude(self, loss: Tensor) -> Tensor:
        """Return the loss; NaN for a refused batch, with gradients of exactly zero."""
        return loss if self.refused is None else torch.where(self.refused, torch.nan, loss)


class Admission:
    """The checks of the batches of one head, and the errors for batches that a GPU has refused."""

    def __init__(self, num_classes: int, ignore_index: int) -> None:
        self.ignore_index = ignore_index
        self.supervisor = Supervisor(num_classes)
        self.was_captured = False  # True if a batch was admitted since the capture of a graph began

    def admit(self, h: Tensor, target: Tensor, weight: Tensor) -> Admitted:
        """Check a batch, and return it with `h` in the dtype of the weight."""
        check_hidden(h, weight.shape[1], weight)
        check_same_device(h, target)
        h = in_dtype_of(weight, h)
        is_late = h.device.type == "cuda"
        return self._admit_later(h, target) if is_late else self._admit_now(h, target)

    def raise_faults(self) -> None:
        """Raise the error for a batch that the device has refused, if it is not reported yet. Waits for the device."""
        self.supervisor.raise_if(self.supervisor.standing_fault())

    def after_replay(self) -> None:
        """Raise the error for a batch that a replay of a captured step has refused."""
        self._raise_reported(self.supervisor.after_replay(self.supervisor.fault))

    def _admit_now(self, h: Tensor, target: Tensor) -> Admitted:
        targets = checked_targets(target, len(h), self.supervisor.num_classes, self.ignore_index)
        if not h.isfinite().all():
            raise self.supervisor.error(Fault.HIDDEN)
        return Admitted(h, targets.without_padding(), None)

    def _admit_later(self, h: Tensor, target: Tensor) -> Admitted:
        targets = parse_targets(target, len(h), self.supervisor.num_classes, self.ignore_index)
        # 0 x is 0 for a finite x, and NaN otherwise. This takes fewer launches than isfinite().
        is_bad_hidden = (h.detach() * 0).sum() != 0
        bits = Fault.HIDDEN.value * is_bad_hidden + Fault.TARGET.value * targets.out_of_range
        refused = self.supervisor.note(bits)
        if is_capturing():
            self.was_captured = True  # `after_replay` reports the faults of replays
        else:
            self._raise_reported(self.supervisor.arrived())
            self.supervisor.send(self.supervisor.fault)
        return Admitted(torch.where(refused, 0, h), targets, refused)

    def _raise_reported(self, report: Tensor | None) -> None:
        if report is not None:
            self.supervisor.raise_if(Fault(int(report)))
