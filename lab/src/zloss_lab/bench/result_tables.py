"""Records as tables, and as a plot of time against the number of classes."""

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from zloss_lab.durable import write_file
from zloss_lab.records import Record, read_records

# What a suite counts; a record has one of them at most.
_RATES = {"examples_per_s": "examples/s", "words_per_s": "words/s", "ngrams_per_s": "n-grams/s"}
_TEXTS = ("what", "launch")  # the other columns are numbers
_SIZES = ("launch", "B", "H", "C")
_SYMBOLS = {"suite": "", "device": "", "batch": "B = ", "hidden": "H = "}
_COLOURS, _MARKERS = 10, "osvD^x"
# What all records have, and the tables need.
_KEYS = {"suite", "name", "batch", "hidden", "classes", "time_ms", "device", "versions", "commit"}

ResultRow = dict[str, str]


def read_all(files: Iterable[Path]) -> list[Record]:
    """The records of all files; a file that has none is refused."""
    records = []
    for file in files:
        try:
            found = read_records(file)
        except ValueError as error:
            raise ValueError(f"{file} is no file of records: {error}") from error
        if not found or not all(record.keys() >= _KEYS for record in found):
            raise ValueError(f"{file} has no records of a benchmark, or not only those")
        records += found
    return records


@dataclass
class ResultTable:
    """What one suite measured on one device."""

    place: str  # suite, device, version of torch, commit
    rows: list[ResultRow] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # what was not measured, and why

    @property
    def shared(self) -> ResultRow:
        """Sizes that are the same in all rows: the title has them."""
        values = {name: {row[name] for row in self.rows} for name in _SIZES}
        return (
            {name: seen.pop() for name, seen in values.items() if len(seen) == 1}
            if len(self.rows) > 1
            else {}
        )

    @property
    def title(self) -> str:
        """Where it was measured, and what all rows share."""
        sizes = (
            value if name == "launch" else f"{name} = {value}"
            for name, value in self.shared.items()
            if value
        )
        return ", ".join([self.place, *sizes])

    @property
    def columns(self) -> list[str]:
        """Those that say something of a row."""
        names = dict.fromkeys(name for row in self.rows for name in row if name not in self.shared)
        return [name for name in names if any(row.get(name) for row in self.rows)]

    def to_rich(self) -> Table:
        """To print on a screen."""
        table = Table(title=escape(self.title), title_justify="left")
        for name in self.columns:
            table.add_column(name, justify="left" if name in _TEXTS else "right", overflow="fold")
        for row in self.rows:
            table.add_row(*(escape(row.get(name, "")) for name in self.columns))
        return table

    def to_markdown(self) -> str:
        """To paste into a document."""
        rule = "|" + "".join("---|" if name in _TEXTS else "---:|" for name in self.columns)
        lines = [
            f"| {' | '.join(row.get(name, '') for name in self.columns)} |" for row in self.rows
        ]
        left_out = [f"- not run: {line}" for line in self.left_out]
        return "\n".join(
            [self.title, "", f"| {' | '.join(self.columns)} |", rule, *lines, "", *left_out]
        ).strip()


def tables(records: Sequence[Record]) -> list[ResultTable]:
    """One table for each suite on each device."""
    found: dict[str, ResultTable] = {}
    for record in records:
        place = f"{record['suite']}: {record['device']}, torch {record['versions']['torch']}, commit {record['commit']}"
        table = found.setdefault(place, ResultTable(place))
        if record["time_ms"] is not None:
            table.rows.append(_row(record))
        elif (
            line := f"{_label(record)} ({record['launch']}): {record['missing']}"
        ) not in table.left_out:
            table.left_out.append(line)
    return list(found.values())


def launches_table(record: Record) -> Table:
    """The launches of a profile, side by side in time where their starts say so."""
    title = (
        f"B = {record['batch']:,}, H = {record['hidden']:,}, C = {record['classes']:,}: {record['time_ms']:.4g} ms; "
        f"its products alone, {record['gflop']:.3g} GFLOP at {record['product_tflops']:.3g} TFLOP/s, would take "
        f"{record['arithmetic_ms']:.3g} ms"
    )
    table = Table("launch", title=escape(title), title_justify="left")
    for name in ("start, us", "time, us"):
        table.add_column(name, justify="right")
    for launch in record["launches"]:
        table.add_row(
            escape(launch["name"]), f"{launch['start_us']:.1f}", f"{launch['time_us']:.1f}"
        )
    return table


def _row(record: Record) -> ResultRow:
    """Old records lack some of it."""
    low, high = record.get("time_ms_quartiles") or record.get("time_ms_range") or (None, None)
    row = {
        "what": _label(record),
        "launch": record.get("launch", ""),
        "B": _count(record["batch"]),
        "H": _count(record["hidden"]),
        "C": _count(record["classes"]),
        "ms": f"{record['time_ms']:.4g}",
        "spread": "" if low is None or high is None else f"{low:.3g}-{high:.3g}",
        "/ factored": f"{record['ratio_to_factored']:.3g}"
        if record.get("ratio_to_factored")
        else "",
        "GB": f"{record['peak_bytes'] / 1e9:.2f}" if record.get("peak_bytes") else "",
        "epoch, min": f"{record['epoch_s'] / 60:,.1f}" if "epoch_s" in record else "",
    }
    return row | {unit: _count(record[rate]) for rate, unit in _RATES.items() if rate in record}


def _label(record: Record) -> str:
    is_by_law = (
        record.get("targets") == "zipf" and record["suite"] != "model"
    )  # where it is always so
    return f"{record['name']}{', words by frequency' if is_by_law else ''}"


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def plot(records: Sequence[Record], output: Path) -> None:
    """Time of a step against the number of classes, both logarithmic, in a PNG: one line per head and size."""
    if output.suffix.lower() != ".png":
        raise ValueError(f"the picture is a PNG: name {output} so")
    # Here, because it takes a second, and most commands draw nothing.
    from matplotlib.figure import Figure

    lines = lines_over_classes(records)
    if not lines:
        raise ValueError(
            "nothing to draw: no record has the time of a step and a number of classes"
        )
    figure = Figure(figsize=(11, 6), layout="constrained")
    axes: Any = figure.add_subplot()
    for number, (label, points) in enumerate(lines.items()):
        marker = _MARKERS[number // _COLOURS % len(_MARKERS)]
        axes.loglog(
            *zip(*sorted(points), strict=True),
            marker=marker,
            color=f"C{number % _COLOURS}",
            label=label,
        )
    axes.set_xlabel("classes")
    axes.set_ylabel("time (ms)")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize="small")
    picture = io.BytesIO()
    figure.savefig(picture, dpi=150, format="png")
    write_file(output, picture.getvalue())


def lines_over_classes(records: Sequence[Record]) -> dict[str, list[tuple[int, float]]]:
    """Points (C, time) by label. Labels name what differs between the records; what has no hidden layer is no step."""
    measured = [record for record in records if record["time_ms"] is not None and record["hidden"]]
    varying = [name for name in _SYMBOLS if len({record[name] for record in measured}) > 1]
    lines: dict[str, list[tuple[int, float]]] = {}
    for record in measured:
        sizes = "".join(f", {_SYMBOLS[name]}{record[name]}" for name in varying)
        graph = ", CUDA graph" if record.get("launch") == "graph" else ""
        lines.setdefault(f"{_label(record)}{graph}{sizes}", []).append(
            (record["classes"], record["time_ms"])
        )
    return lines
