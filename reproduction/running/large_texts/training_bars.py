"""Bars of trainings that run at the same time, and lines about their validations and ends."""

import math
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from reproduction.running.messages import Tell
from zloss_lab.score_table import in_a_line
from zloss_lab.training import TrainingProgress


class TrainingBars:
    """A bar for each training with its name, the time left, the epoch, the loss and words per second.

    Each validation and each end is a line. Without a terminal there are only these lines.
    """

    def __init__(self, console: Console, tell: Tell) -> None:
        self.tell = tell
        columns = (
            TextColumn("{task.description}"),
            BarColumn(None),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
        )
        self._bars = Bars(
            *columns, console=console, expand=True, transient=True, disable=not console.is_terminal
        )
        self._tasks: dict[str, TaskID] = {}
        self._epochs: dict[str, float] = {}

    def __enter__(self) -> "TrainingBars":
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._bars.stop()

    def begin(self, name: str) -> None:
        """Add a bar for a training that has begun."""
        self._tasks[name] = self._bars.add_task(name, total=None, figures="starting")

    def show(self, name: str, progress: TrainingProgress) -> None:
        """Move the bar of a training, or print the scores of its validation."""
        self._epochs[name] = progress.epoch
        if progress.validation is not None:
            self.tell(f"{name}, epoch {progress.epoch:.2f}: {in_a_line(progress.validation)}")
            return
        figures = f"epoch {progress.epoch:.2f}  loss {progress.loss:.3f}  {progress.words_per_second:,.0f} words/s"
        steps = progress.steps if math.isfinite(progress.steps) else None
        self._bars.update(self._tasks[name], completed=progress.step, total=steps, figures=figures)

    def end(self, name: str, how: str) -> None:
        """Remove the bar of a training, and print how it ended."""
        self._bars.remove_task(self._tasks.pop(name))
        place = f", epoch {self._epochs[name]:.2f}" if name in self._epochs else ""
        self.tell(f"{name}{place}: {how}")
