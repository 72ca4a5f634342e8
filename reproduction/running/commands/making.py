"""The course of a command that makes records: a bar, messages, failed trainings, and Ctrl-C."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote

import typer

from reproduction.running.collecting import Collector
from zloss_lab.durable import require_writable
from zloss_lab.progress_bars import training_bar
from zloss_lab.terminal import INTERRUPTED, console, errors, print_plainly


def make_records(
    collect: Callable[[Collector], list[str]],
    records: Path,
    seeds: Sequence[int],
    at_once: int | None = None,
) -> None:
    """Let a collector make records in this folder, then name the trainings that failed and end with code 1."""
    require_writable(records)
    with resumable(), training_bar(console) as watch:
        collector = Collector(folder=records, seeds=seeds, at_once=at_once, watch=watch, tell=show)
        faults = collect(collector)
    for fault in faults:
        print_plainly(errors, f"no record: {fault}")
    if faults:
        raise typer.Exit(1)
    folder = quote(str(records))
    show(
        f"all records are in {records}; see them with: python -m reproduction report --records {folder}"
    )


def show(message: str) -> None:
    """Print a message as it is."""
    print_plainly(console, message)


@contextmanager
def resumable() -> Iterator[None]:
    """Exit on Ctrl-C with the hint that the same command goes on."""
    try:
        yield
    except KeyboardInterrupt:
        errors.print("\nstopped; the same command goes on with what is missing")
        sys.exit(INTERRUPTED)
