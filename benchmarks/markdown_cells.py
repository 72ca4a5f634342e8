"""Tables in Markdown, and how measured values are written in their cells."""

from collections.abc import Iterable, Sequence

from reproduction.report.document import Table
from reproduction.report.markdown import table_markdown
from reproduction.report.timings import by_turns
from zloss_lab.records import Record

NOT_RUN = "not run"


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown.

    >>> print(markdown_table(["head", "time"], [["factored", "0.10 ms"]]))
    | head | time |
    |---|---|
    | factored | 0.10 ms |
    """
    return table_markdown(Table(columns, list(rows), words=len(columns)))


def number(value: float | None, digits: str = ".3g") -> str:
    """Return a number, or that it was not measured."""
    return NOT_RUN if value is None else f"{value:{digits}}"


def milliseconds(record: Record | None) -> str:
    """Return the time of a step."""
    time_ms = None if record is None else record["time_ms"]
    return NOT_RUN if time_ms is None else f"{time_ms:.2f} ms"


def ratio_by_turns(record: Record) -> str:
    """Return the time of a step as a multiple of the factored step that it took turns with."""
    return number(by_turns(record))


def gigabytes(record: Record) -> str:
    """Return the memory of a step; nothing where it was not measured."""
    return "" if record["peak_bytes"] is None else f"{record['peak_bytes'] / 1e9:.2f} GB"
