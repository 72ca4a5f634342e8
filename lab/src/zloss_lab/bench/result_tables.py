"""Records of benchmarks as tables."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from zloss_lab.bench.schema import BenchRecord, ProfileRecord, read_bench_records

# Rates that a record may have, at most one of them.
_RATES = {"examples_per_s": "examples/s", "words_per_s": "words/s", "ngrams_per_s": "n-grams/s"}
_TEXTS = ("what", "launch")  # the other columns are numbers
_SIZES = ("launch", "B", "H", "C")

ResultRow = dict[str, str]


def read_all(files: Iterable[Path]) -> list[BenchRecord]:
    """Return the records of all files. `ValueError` for a file with other records or none."""
    records: list[BenchRecord] = []
    for file in files:
        try:
            records += read_bench_records(file)
        except ValueError as error:
            raise ValueError(
                f"{file} has no records of a benchmark, or not only those: {error}"
            ) from error
    return records


@dataclass
class ResultTable:
    """The results of one suite on one device."""

    place: str  # suite, device, version of torch, commit
    rows: list[ResultRow] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # cases without a time, and the reasons

    @property
    def shared(self) -> ResultRow:
        """The sizes that are equal in all rows, which stand in the title."""
        values = {name: {row[name] for row in self.rows} for name in _SIZES}
        return (
            {name: seen.pop() for name, seen in values.items() if len(seen) == 1}
            if len(self.rows) > 1
            else {}
        )

    @property
    def title(self) -> str:
        """The title: the suite and its device, and the sizes that all rows share."""
        sizes = (
            value if name == "launch" else f"{name} = {value}"
            for name, value in self.shared.items()
            if value
        )
        return ", ".join([self.place, *sizes])

    @property
    def columns(self) -> list[str]:
        """The names of columns that are not empty and not in the title."""
        names = dict.fromkeys(name for row in self.rows for name in row if name not in self.shared)
        return [name for name in names if any(row.get(name) for row in self.rows)]

    def to_rich(self) -> Table:
        """Return the table for a screen."""
        table = Table(title=escape(self.title), title_justify="left")
        for name in self.columns:
            table.add_column(name, justify="left" if name in _TEXTS else "right", overflow="fold")
        for row in self.rows:
            table.add_row(*(escape(row.get(name, "")) for name in self.columns))
        return table

    def to_markdown(self) -> str:
        """Return the table as Markdown, for a document."""
        rule = "|" + "".join("---|" if name in _TEXTS else "---:|" for name in self.columns)
        lines = [
            f"| {' | '.join(row.get(name, '') for name in self.columns)} |" for row in self.rows
        ]
        left_out = [f"- not run: {line}" for line in self.left_out]
        return "\n".join(
            [self.title, "", f"| {' | '.join(self.columns)} |", rule, *lines, "", *left_out]
        ).strip()


def tables(records: Sequence[BenchRecord]) -> list[ResultTable]:
    """Return one table for each suite on each device."""
    found: dict[str, ResultTable] = {}
    for record in records:
        place = f"{record.suite}: {record.device}, torch {record.versions['torch']}, commit {record.commit}"
        table = found.setdefault(place, ResultTable(place))
        if record.time_ms is not None:
            table.rows.append(_row(record, record.time_ms))
        elif (line := f"{record.title} ({record.launch}): {record.missing}") not in table.left_out:
            table.left_out.append(line)
    return list(found.values())


def launches_table(record: ProfileRecord) -> Table:
    """Return a table of the launches of a profile, with their starts and durations."""
    title = (
        f"B = {record.batch:,}, H = {record.hidden:,}, C = {record.classes:,}: {record.time_ms:.4g} ms; "
        f"its products alone, {record.gflop:.3g} GFLOP at {record.product_tflops:.3g} TFLOP/s, would take "
        f"{record.arithmetic_ms:.3g} ms"
    )
    table = Table("launch", title=escape(title), title_justify="left")
    for name in ("start, us", "time, us"):
        table.add_column(name, justify="right")
    for launch in record.launches:
        table.add_row(escape(launch.name), f"{launch.start_us:.1f}", f"{launch.time_us:.1f}")
    return table


def _row(record: BenchRecord, time_ms: float) -> ResultRow:
    """Return the row of a record. The published records of `output_layer` have a range of times but no quartiles."""
    spread = record.time_ms_quartiles or record.time_ms_range
    ratio, epoch_s = record.ratio_to_factored, getattr(record, "epoch_s", None)
    row = {
        "what": record.title,
        "launch": record.launch,
        "B": _count(record.batch),
        "H": _count(record.hidden),
        "C": _count(record.classes),
        "ms": f"{time_ms:.4g}",
        "spread": "" if spread is None else f"{spread[0]:.3g}-{spread[1]:.3g}",
        "/ factored": f"{ratio:.3g}" if ratio else "",
        "GB": f"{record.peak_bytes / 1e9:.2f}" if record.peak_bytes else "",
        "epoch, min": "" if epoch_s is None else f"{epoch_s / 60:,.1f}",
    }
    return row | {unit: _count(getattr(record, rate, None)) for rate, unit in _RATES.items()}


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"
