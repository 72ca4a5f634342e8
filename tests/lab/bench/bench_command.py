"""The command `zloss bench` for tests, at small sizes."""

from pathlib import Path
from typing import Any

from tests.lab import command_line
from zloss_lab.bench.schema import read_bench_records
from zloss_lab.records import read_records

FIELDS = {
    "suite",
    "head",
    "loss",
    "device",
    "batch",
    "hidden",
    "classes",
    "time_ms",
    "peak_bytes",
    "versions",
    "commit",
}
SMALL = ("--device", "cpu", "--repeats", 2, "--no-memory")
RECORDS = Path(__file__).parents[3] / "benchmarks" / "records"


def bench(*arguments: object) -> int:
    """Run a command, and return its exit code."""
    return command_line.zloss("bench", *arguments)


def records_of(folder: Path, suite: str, *options: object) -> list[dict[str, Any]]:
    """Run the command of a suite, and return its records."""
    file = folder / "records.jsonl"
    assert bench(suite, *SMALL, *options, "--output", file) == 0
    records = read_records(file)
    assert all(record.keys() >= FIELDS and record["suite"] == suite for record in records)
    assert [one.to_record() for one in read_bench_records(file)] == records
    return records
