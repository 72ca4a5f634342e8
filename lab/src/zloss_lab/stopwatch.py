"""The time that is spent on one thing, with pauses for others."""

import time


class Stopwatch:
    """Seconds from start to pause, added up. It stands still until it is started.

    >>> watch = Stopwatch()
    >>> watch.lap()  # nothing has been timed yet
    0.0
    >>> watch.start()
    >>> watch.lap() < watch.lap()
    True
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds  # up to the last lap
        self._since: float | None = None

    @property
    def is_running(self) -> bool:
        """Whether time is being counted."""
        return self._since is not None

    def start(self) -> None:
        """Count from now on."""
        self._since = time.perf_counter()

    def lap(self) -> float:
        """All seconds so far."""
        if self._since is not None:
            now = time.perf_counter()
            self.seconds += now - self._since
            self._since = now
        return self.seconds

    def pause(self) -> None:
        """Count no more until the next start."""
        self.lap()
        self._since = None
