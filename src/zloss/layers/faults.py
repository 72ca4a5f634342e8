"""What can be wrong with a batch or a step, as bits that a GPU can raise without stopping.

On a CPU a fault is a `ValueError` at once. On a GPU that would mean waiting for the device on every step, so the layer
sets a bit there, takes no further step while any bit is set, and raises the same `ValueError` when the host next has
the bits at hand: a few steps later, or at the next call that reads results anyway.
"""

import math
from collections import deque
from enum import IntFlag

import torch
from torch import Tensor

from zloss.targets import out_of_range_message


class Fault(IntFlag):
    """Why a batch or a step was refused."""

    TARGET = 1  # a target is no class
    HIDDEN = 2  # h has a NaN or an infinity
    GRADIENT = 4  # the upstream gradient has, or the step would overflow
    SINGULAR = 8  # P is singular or nearly so


class RefusedStepError(ValueError):
    """A step that was not taken; the layer is as it was before. `safe_lr` is a learning rate that would do."""

    def __init__(self, message: str, safe_lr: float) -> None:
        super().__init__(message)
        self.safe_lr = safe_lr


def fault_error(fault: Fault, safe_lr: float, num_classes: int) -> ValueError:
    """The error for the first of the bits that are set."""
    if Fault.TARGET in fault:
        return ValueError(out_of_range_message("a target", num_classes))
    if Fault.HIDDEN in fault:
        return ValueError(
            "h has a NaN or an infinity (or activations that overflow): check the layers below, and whether the "
            "weights of this one are finite"
        )
    if Fault.GRADIENT in fault:
        stable = (
            f" (with lr <= {safe_lr:.3g} this step is stable)" if 0 < safe_lr < math.inf else ""
        )
        return RefusedStepError(
            "step refused, the layer is unchanged: the gradient has a NaN or an infinity, or the step would overflow "
            f"the weights; lower the learning rate{stable}, clip the gradient, or drop it with zero_grad() and go on",
            safe_lr,
        )
    return RefusedStepError(
        "step refused, the layer is unchanged: with so large a learning rate the update matrix is nearly singular; "
        f"use lr <= {safe_lr:.3g}, or FactoredLinear(..., synchronous=True), which applies such steps another way; "
        "without CapturedStep only steps much nearer to singular are refused",
        safe_lr,
    )


class DeviceReports:
    """Carries small tensors from a GPU to the host without waiting for it.

    A copy is queued behind the work that it reports on and read once it has arrived, a few steps later. The host waits
    only when it is `DEPTH` reports ahead, which leaves the GPU with work to do; so a report is never older than that.
    """

    DEPTH = 8
    REPLAYS = 4  # of a captured step to a report: the step is shorter than the host needs for one

    def __init__(self) -> None:
        self._pending: deque[tuple[Tensor, torch.cuda.Event]] = deque()
        self._idle: list[
            tuple[Tensor, torch.cuda.Event]
        ] = []  # pinned memory is slow to come by: it is used again
        self._replays = 0

    def push(self, report: Tensor) -> None:
        """Send a report on its way."""
        landing, event = (
            self._idle.pop() if self._idle else (_pinned_like(report), torch.cuda.Event())
        )
        landing.copy_(report, non_blocking=True)
        event.record(torch.cuda.current_stream(report.device))
        self._pending.append((landing, event))

    def latest(self) -> Tensor | None:
        """The newest report that has arrived, until the next one is sent on its way; or None."""
        if len(self._pending) >= self.DEPTH:
            self._pending[0][1].synchronize()
        newest = None
        while self._pending and self._pending[0][1].query():
            newest = self._pending.popleft()
            self._idle.append(newest)
        return None if newest is None else newest[0]

    def after_replay(self, report: Tensor) -> Tensor | None:
        """After a replay of the step that writes this report: send it and return the newest, every few times."""
        self._replays += 1
        if self._replays % self.REPLAYS:
            return None
        self.push(report)
        return self.latest()

    def forget(self) -> None:
        """Pass over what is under way."""
        self._pending.clear()


def _pinned_like(report: Tensor) -> Tensor:
    # Whatever torch's default device is: only memory of the host can be pinned. It is used again, so that training has
    # to be able to write to what a validation in inference mode has made.
    with torch.inference_mode(False):
        return torch.empty(report.shape, dtype=report.dtype, device="cpu", pin_memory=True)
