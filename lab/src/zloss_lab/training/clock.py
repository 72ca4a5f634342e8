"""The time that a training has taken, by which budgets end and curves are compared."""

from zloss_lab.stopwatch import Stopwatch

# They compile kernels and capture the step.
UNTIMED_STEPS = 5


class TrainingClock:
    """The seconds of training steps: validations, checkpoints and the first steps after each start do not count.

    After a resume each of these first steps counts for the mean step before it. Else a run that was stopped often would
    look faster than it is.

    Args:
        seconds: the time of the steps before a resume.
        step: the number of these steps.
    """

    def __init__(self, seconds: float = 0.0, step: int = 0) -> None:
        self._watch = Stopwatch(seconds)
        self._timed_from = step + UNTIMED_STEPS
        self._pace = seconds / max(step - UNTIMED_STEPS, 1)

    @property
    def seconds(self) -> float:
        """The time up to the last reading."""
        return self._watch.seconds

    def read(self) -> float:
        """Return the time so far."""
        return self._watch.lap()

    def tick(self, step: int) -> None:
        """Count a step that was not timed; it was the last of `step` steps."""
        if not self._watch.is_running and step <= self._timed_from:
            self._watch.seconds += self._pace

    def pause(self) -> None:
        """Stop before something that is not a training step."""
        self._watch.pause()

    def go_on(self, step: int) -> None:
        """Run before the next step, once the first steps are over; `step` steps have been taken."""
        if not self._watch.is_running and step >= self._timed_from:
            self._watch.start()
