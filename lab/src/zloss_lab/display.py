"""What the lab shows on a screen: tables of scores and runs, and bars for work that takes time."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar
from rich.table import Table

from zloss_lab.corpora import Corpus
from zloss_lab.evaluation import Evaluation
from zloss_lab.runs import Run, RunError
from zloss_lab.training import Progress, Watcher

_LEAST_NAME = 14  # for the name of a run, and what is around a table
_IN_A_LINE = ("top 1 error", "top 10 error", "mrr", "perplexity")


def corpus_table(corpus: Corpus) -> Table:
    """Words of every split, and the vocabulary."""
    title = f"{escape(corpus.name)}: {len(corpus.vocabulary):,} words in the vocabulary"
    table = Table("split", title=title, min_width=50)
    table.add_column("words", justify="right")
    for name, split in corpus.manifest["splits"].items():
        table.add_row(name, f"{split['words']:,}")
    return table


def evaluation_table(results: dict[str, Evaluation]) -> Table:
    """One column per model, with half-widths of 95 % intervals where a sample was taken."""
    columns = {name: formatted(result) for name, result in results.items()}
    table = Table("")
    for name in columns:
        table.add_column(name, justify="right")
    for score in dict.fromkeys(score for cells in columns.values() for score in cells):
        table.add_row(score, *(cells.get(score, "") for cells in columns.values()))
    return table


def formatted(result: Evaluation, *, with_widths: bool = True) -> dict[str, str]:
    """Its scores to read, each with the half-width of its interval where it is one of a sample."""
    record = result.to_record()
    cells = {}
    for name in (*(f"top_{k}_error" for k in result.top_k_error), "mrr", "mean_rank", "perplexity"):
        if name in record:
            width = record.get(f"{name}_half_width") if with_widths else None
            style = ".1%" if name.endswith("error") else ".3f" if name == "mrr" else ",.1f"
            cells[name.replace("_", " ")] = f"{record[name]:{style}}" + (
                "" if width is None else f" ± {width:{style}}"
            )
    return cells


def in_a_line(result: Evaluation) -> str:
    """Those of its scores that fit in one."""
    scores = formatted(result, with_widths=False)
    return "  ".join(f"{name} {scores[name]}" for name in _IN_A_LINE if name in scores)


def run_row(run: Run) -> dict[str, Any]:
    """What a table of runs shows of one."""
    head, metrics = _head(run), run.metrics()
    validations = [record for record in metrics if record["kind"] == "validation"]
    best = next((record for record in validations if record["step"] == run.best_step), None)
    return {
        "run": str(run.folder),
        "head": head["head"],
        "loss": head["loss"],
        "step": max(
            [0, *run.steps()[-1:], *(record["step"] for record in metrics[-1:])]
        ),  # Ctrl-C saves between lines
    } | {
        score: best and best.get(score)
        for score in ("top_1_error", "top_10_error", "mrr", "perplexity")
    }


def _head(run: Run) -> dict[str, Any]:
    """The table of its head. Other programs have files of the name config.json too."""
    try:
        head = run.config["network"]["head"]
        return {name: head[name] for name in ("head", "loss")}
    except (KeyError, TypeError) as error:
        raise RunError(
            f"{run.folder / 'config.json'} is not the config of a run: it names no head and loss"
        ) from error


def runs_table(rows: list[dict[str, Any]], width: int) -> Table:
    """Runs side by side, at their best validation.

    Long names of folders are broken. Columns at the end that find no room are left out: a number that is cut off is
    another number.
    """
    cells = {name: [_shown(row[name]) for row in rows] for name in rows[0]}
    room = width - _LEAST_NAME
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name, column in cells.items():
        if name != "run":
            room -= 2 + max(map(len, (*heading(name).splitlines(), *column)))
        if name == "run" or room >= 0:
            side: Literal["left", "right"] = "left" if name in ("run", "head", "loss") else "right"
            table.add_column(heading(name), justify=side, overflow="fold", no_wrap=name != "run")
    for row in zip(*list(cells.values())[: len(table.columns)], strict=True):
        table.add_row(*map(escape, row))
    if hidden := list(cells)[len(table.columns) :]:
        table.caption = f"no room for {', '.join(hidden)}: --json has all"
    return table


def _shown(cell: Any) -> str:
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell if cell is not None else "")


def heading(name: str) -> str:
    """A name above its column, narrow enough for tables with many.

    >>> heading("top_10_error")
    'top 10\\nerror'
    """
    return "\n".join(name.rsplit("_", 1)).replace("_", " ")


def rows_table(rows: list[dict[str, Any]]) -> Table:
    """Rows that have the same keys."""
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(escape(str(value)) for value in row.values()))
    return table


@contextmanager
def training_bar(console: Console) -> Iterator[Watcher]:
    """A bar with the time left, words a second, loss, learning rate and the condition of the factors."""
    columns = (
        SpinnerColumn(),
        BarColumn(None),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}"),
    )
    with _once_used(Bar(*columns, console=console, expand=True)) as bar:
        task = bar.add_task(
            "", total=None, figures="", visible=False
        )  # until there is something to see

        def watch(progress: Progress) -> None:
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
def byte_bar(console: Console) -> Iterator[Any]:
    """A bar over bytes of text."""
    with _once_used(
        Bar(
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
def count_bar(console: Console, what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar over things that are counted."""
    columns = (TextColumn(what), BarColumn(None), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def _once_used(bar: Bar) -> Iterator[Bar]:
    """A bar that leaves no trace where it is never started: mistakes are found first, and say so in one line."""
    try:
        yield bar
    finally:
        if bar.live.is_started:
            bar.stop()
