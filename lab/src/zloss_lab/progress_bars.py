"""Bars on a screen for work that takes time."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)

from zloss_lab.corpora.fetching import ByteWatcher
from zloss_lab.evaluation import CountWatcher
from zloss_lab.score_table import in_a_line
from zloss_lab.training.progress import TrainingProgress, TrainingWatcher


@contextmanager
def training_bar(console: Console) -> Iterator[TrainingWatcher]:
    """A bar with the time left, words a second, loss, learning rate and the condition of the factors."""
    columns = (
        SpinnerColumn(),
        BarColumn(None),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}"),
    )
    with _once_used(Progress(*columns, console=console, expand=True)) as bar:
        task = bar.add_task(
            "", total=None, figures="", visible=False
        )  # until there is something to see

        def watch(progress: TrainingProgress) -> None:
            bar.start()
            if progress.validation is not None:
                bar.print(
                    f"epoch {progress.epoch:.2f}  {in_a_line(progress.validation)}", soft_wrap=True
                )
                return
            condition = (
                "" if progress.condition is None else f"  condition {progress.condition:.2f}"
            )
            pace = f"{progress.words_per_second:,.0f} words/s"
            figures = f"{pace}  loss {progress.loss:.3f}  lr {progress.lr:.3g}{condition}"
            bar.update(task, completed=progress.step, figures=figures, visible=True)
            # By `update` none would mean the total of before.
            bar.tasks[0].total = progress.steps if math.isfinite(progress.steps) else None

        yield watch


@contextmanager
def byte_bar(console: Console) -> Iterator[ByteWatcher]:
    """A bar over bytes of text."""
    with _once_used(
        Progress(
            TextColumn("{task.description}"),
            BarColumn(None),
            TimeRemainingColumn(),
            console=console,
        )
    ) as bar:
        task = bar.add_task("", total=None, visible=False)

        def watch(stage: str, done: int, total: int) -> None:
            bar.start()
            bar.update(task, description=stage, completed=done, total=total, visible=True)

        yield watch


@contextmanager
def count_bar(console: Console, what: str) -> Iterator[CountWatcher]:
    """A bar over things that are counted."""
    columns = (TextColumn(what), BarColumn(None), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def _once_used(bar: Progress) -> Iterator[Progress]:
    """A bar that leaves no trace where it is never started: mistakes are found first, and say so in one line."""
    try:
        yield bar
    finally:
        if bar.live.is_started:
            bar.stop()
