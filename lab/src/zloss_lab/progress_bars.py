"""Progress bars in the terminal."""

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
    """Show the progress of a training, and yield the function that updates it.

    The bar has the time left, words per second, loss, learning rate and the condition number of the factors. Under a
    Z-loss it has the softness a, and the share of the latest batch whose z-scores are beyond b.
    """
    columns = (
        SpinnerColumn(),
        BarColumn(None),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}"),
    )
    with _once_used(Progress(*columns, console=console, expand=True)) as bar:
        # Invisible until the first report.
        task = bar.add_task("", total=None, figures="", visible=False)

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
            z = progress.z_scores
            z_scores = "" if z is None else f"  a {z.a:.3g}  z > b {z.beyond_b:.0%}"
            figures = f"{pace}  loss {progress.loss:.3f}  lr {progress.lr:.3g}{z_scores}{condition}"
            bar.update(task, completed=progress.step, figures=figures, visible=True)
            # `update(total=None)` would keep the old total.
            bar.tasks[0].total = progress.steps if math.isfinite(progress.steps) else None

        yield watch


@contextmanager
def byte_bar(console: Console) -> Iterator[ByteWatcher]:
    """Show the progress in bytes, and yield the function that updates it."""
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
    """Show the progress in things that `what` names, and yield the function that updates it."""
    columns = (TextColumn(what), BarColumn(None), MofNCompleteColumn(), TimeRemainingColumn())
    with _once_used(Progress(*columns, console=console, transient=True)) as bar:
        task = bar.add_task("", total=None, visible=False)

        def watch(done: int, total: int) -> None:
            bar.start()
            bar.update(task, completed=done, total=total, visible=True)

        yield watch


@contextmanager
def _once_used(bar: Progress) -> Iterator[Progress]:
    """Stop a progress bar after the block if it was started.

    A bar that was never started leaves no trace, so a mistake that is found first shows one line of error only.
    """
    try:
        yield bar
    finally:
        if bar.live.is_started:
            bar.stop()
