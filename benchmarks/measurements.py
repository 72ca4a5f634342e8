"""Measured runs of `zloss bench`: the run that a number of a table is taken from, and where it was measured.

A quotient is of two times of one run, because times of two runs say nothing beside each other. The latest run that has
both counts.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reproduction.report.markdown import wrapped
from reproduction.report.timings import FILES, BenchRun, fastest
from reproduction.timed_parts import DEVICES, Device
from zloss_lab.records import Record, read_records

# A step to look for: "names" of heads, of which the fastest counts, and values of other fields of its record.
Step = dict[str, Any]

# Runs after those in `FILES`. A head was made faster on its own; the first benchmark of all has what was not measured
# since, in part under another name.
_OLDER_FILES = {"output": ("adaptive", "output_layer"), "gram": ("output_layer",)}
_RENAMED = {
    "dense softmax, CCE": "dense softmax, CCE, bf16",
    "dense softmax, CCE exact": "dense softmax, CCE exact, bf16",
}


@dataclass(frozen=True)
class Measurements:
    """A folder of records, one file for each run of a suite on a device."""

    folder: Path

    def runs(self, suite: str, device: str) -> Iterator[BenchRun]:
        """Yield the runs of a suite, the latest first."""
        return map(_read, self._paths(suite, device))

    def latest(self, suite: str, device: str) -> BenchRun:
        """Return the latest run of a suite, or an empty one."""
        return next(self.runs(suite, device), [])

    def records(self, suite: str, device: str) -> list[Record]:
        """Return the records of all runs, for tables that say which run a number is from."""
        return [record for run in self.runs(suite, device) for record in run]

    def time_ms(self, suite: str, step: Step) -> float | None:
        """Return the time of a step on the GPU, from the latest run that has it."""
        found = (fastest(run, **step) for run in self.runs(suite, "cuda"))
        return next((float(record["time_ms"]) for record in found if record), None)

    def quotient(self, suite: str, device: Device, above: Step, below: Step) -> float | None:
        """Return the quotient of two times, both from the latest run that has both."""
        for run in self.runs(suite, device):
            one, other = (fastest(run, **step) for step in (above, below))
            if one and other:
                return float(one["time_ms"] / other["time_ms"])
        return None

    def source(self, suite: str) -> str:
        """Return a sentence that names the machines of the latest runs."""
        notes = []
        for path in (path for device in DEVICES for path in self._paths(suite, device)[:1]):
            record = read_records(path)[0]
            versions = f"torch {record['versions']['torch']}, seed {record['seed']}"
            notes.append(f"{record['device']}, {versions}")
        return wrapped(f"Measured on {'; '.join(notes)}. Records: `benchmarks/records`.")

    def _paths(self, suite: str, device: str) -> list[Path]:
        names = (*FILES.get(suite, (suite,)), *_OLDER_FILES.get(suite, ()))
        paths = (self.folder / f"{name}.{device}.jsonl" for name in names)
        return [path for path in paths if path.exists()]


def _read(path: Path) -> BenchRun:
    records = read_records(path)
    return [record | {"name": _name(record)} for record in records]


def _name(record: Record) -> str | None:
    return _RENAMED.get(record.get("name", ""), record.get("name"))


def first(records: Iterable[Record], where: Record) -> Record:
    """Return the first record with these values; without one, a record of a step that was not run."""
    found = (record for record in records if where.items() <= record.items())
    return next(found, where | {"time_ms": None, "peak_bytes": None})
