"""CUDA streams: is a graph being recorded, may the host wait, and branches of a graph.

This module keeps no state: it asks torch every time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import torch

_ERROR = 2  # torch's sync debug mode in which an operation that waits for the device is an error


def is_capturing() -> bool:
    """Return True while operations on the current stream are recorded instead of run."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def must_not_wait() -> bool:
    """Return True while the host must not wait for the device: during a capture, and during its rehearsal.

    Operations of a rehearsal do run. Code that depends on this difference asks `is_capturing` instead.
    """
    return is_capturing() or waiting_is_an_error()


def waiting_is_an_error() -> bool:
    """Return True while torch refuses operations that wait for the device, as in a rehearsal."""
    return torch.cuda.is_initialized() and torch.cuda.get_sync_debug_mode() == _ERROR


class Branch:
    """A branch beside the main line of the CUDA graph that is being captured; without a capture, the same line.

    Both lines may use a tensor only while somebody refers to it: memory without an owner is used again. Every branch
    that was opened has to be joined before the capture ends, also after an error. `with Branch() as branch:` does that.
    """

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream() if is_capturing() else None
        self._has_begun = False

    @contextmanager
    def open(self) -> Iterator[None]:
        """Go on beside the main line, after everything that was done on it so far."""
        if self._stream is None:
            yield
            return
        self._has_begun = True
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield

    def follow(self, other: "Branch") -> None:
        """Make later work on this branch wait for all work on the other branch so far."""
        if self._stream is not None and other._stream is not None:
            self._has_begun = True
            self._stream.wait_stream(other._stream)

    def join(self) -> None:
        """Make later work on the main line wait for all work on this branch."""
        if self._stream is not None and self._has_begun:
            torch.cuda.current_stream().wait_stream(self._stream)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.join()
