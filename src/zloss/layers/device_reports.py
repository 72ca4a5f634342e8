"""Reports on their way from a GPU to the host, which does not wait for them unless it is too far ahead."""

from collections import deque

import torch
from torch import Tensor

MOST_AHEAD = 32  # steps that a host may be ahead of its GPU


class DeviceReports:
    """Small tensors on their way from a GPU to the host, which does not wait for them.

    A copy is queued behind the work that it reports on and read once it has arrived, a few steps later. The host waits
    only when it would be too many steps ahead, which leaves the GPU with work to do.
    """

    DEPTH = 8  # reports under way; several replays share one, as they are shorter than the host needs for it

    def __init__(self) -> None:
        self._pending: deque[tuple[Tensor, torch.cuda.Event]] = deque()
        # Pinned memory is slow to come by: it is used again.
        self._idle: list[tuple[Tensor, torch.cuda.Event]] = []
        self._replays = 0

    def push(self, report: Tensor) -> None:
        """Send a report on its way."""
        unused = self._idle.pop() if self._idle else (_pinned_like(report), torch.cuda.Event())
        landing, event = unused
        landing.copy_(report, non_blocking=True)
        event.record(torch.cuda.current_stream(report.device))
        self._pending.append((landing, event))

    def latest(self, ahead: int) -> Tensor | None:
        """Return the newest report that has arrived, or None. It is valid until the next `push`.

        Waits if reports on as many steps as the host may be `ahead` are under way.
        """
        if len(self._pending) >= min(self.DEPTH, ahead):
            self._pending[0][1].synchronize()
        newest = None
        while self._pending and self._pending[0][1].query():
            newest = self._pending.popleft()
            self._idle.append(newest)
        return None if newest is None else newest[0]

    def after_replay(self, report: Tensor, ahead: int) -> Tensor | None:
        """Send the report that a replayed step has written and return the newest, every few times."""
        self._replays += 1
        if self._replays % max(1, ahead // self.DEPTH):
            return None
        self.push(report)
        return self.latest(ahead)

    def forget(self) -> None:
        """Pass over what is under way."""
        self._pending.clear()


def _pinned_like(report: Tensor) -> Tensor:
    # Whatever torch's default device is: only memory of the host can be pinned. It is used again, so training has to
    # be able to write to memory that a validation in inference mode has made.
    with torch.inference_mode(False):
        return torch.empty(report.shape, dtype=report.dtype, device="cpu", pin_memory=True)
