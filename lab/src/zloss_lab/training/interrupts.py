"""Ctrl-C that waits until a step is complete."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Catch Ctrl-C during the block, and yield a function that returns whether it was pressed.

    The block can then stop after a complete step. In the middle of a step some layers are updated and others are not.
    A second Ctrl-C raises `KeyboardInterrupt` at once.
    """
    asked: list[bool] = []

    def note(_signal: int, _frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(True)

    # Only the main thread gets signals.
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, before)
