"""A stopwatch that can be paused."""

import time


class Stopwatch:
    """The sum of the seconds between `start` and `pause`. A new stopwatch is not running.

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
        """True while the stopwatch is running."""
        return self._since is not None

    def start(self) -> None:
        """Start to count seconds."""
        self._since = time.perf_counter()

    def lap(self) -> float:
        """Return the number of seconds so far."""
        if self._since is not None:
            now = time.perf_counter()
            self.seconds += now - self._since
            self._since = now
        return self.seconds

    def pause(self) -> None:
        """Stop until the next `start`."""
        self.lap()
        self._since = None
