"""Tables in Markdown, and how measured values are written in their cells."""

from collections.abc import Iterable, Sequence

from zloss_lab.bench.schema import BenchRecord
from zloss_lab.documents.document import Table
from zloss_lab.documents.markdown import table_markdown

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


def milliseconds(record: BenchRecord | None) -> str:
    """Return the time of a step."""
    time_ms = None if record is None else record.time_ms
    return NOT_RUN if time_ms is None else f"{time_ms:.2f} ms"


def ratio_by_turns(record: BenchRecord | None) -> str:
    """Return the time of a step as a multiple of the factored step that it took turns with."""
    return number(None if record is None else record.ratio_to_factored)


def gigabytes(record: BenchRecord | None) -> str:
    """Return the memory of a step; nothing where it was not measured."""
    peak_bytes = None if record is None else record.peak_bytes
    return "" if peak_bytes is None else f"{peak_bytes / 1e9:.2f} GB"
