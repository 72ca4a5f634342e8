"""Ctrl-C at a good moment."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Ctrl-C is noted instead of raised, for the block to ask for at a good moment; a second one is raised at once.

    In the middle of a step some layers would have moved and others not.
    """
    asked: list[bool] = []

    def note(_signal: int, _frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(True)

    if threading.current_thread() is not threading.main_thread():  # which alone hears of signals
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, before)
