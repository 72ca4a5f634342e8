"""Measured runs of `zloss bench`: the run that a number of a table is taken from, and where it was measured.

A quotient is of two times of one run, because times of two runs say nothing beside each other. The latest run that has
both counts.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.training_records import LanguageModelRecord, LongRunRecord
from reproduction.report.timings import FILES, fastest, time_of
from reproduction.timed_parts import DEVICES, Device
from zloss_lab.bench.schema import (
    BenchRecord,
    HeadRecord,
    LayerRecord,
    NetworkRecord,
    RankingRecord,
)
from zloss_lab.documents.markdown import wrapped
from zloss_lab.records import AnyRecordable, read_records, read_records_as

# A step to look for: "entries" of heads, of which the fastest counts, and values of other fields of its record.
Step = dict[str, Any]
AnyBenchRecord = TypeVar("AnyBenchRecord", bound=BenchRecord)

# Runs after those in `FILES`. A head was made faster on its own. The first benchmark of all has what was not measured
# since. Some numbers of samples were measured beside other work.
_OLDER_FILES = {"output": ("adaptive", "output_layer", "samples"), "gram": ("output_layer",)}
# The kind of records of a suite, if it does not measure steps of the output layer.
_KINDS: dict[str, type[HeadRecord]] = {"model": NetworkRecord, "eval": RankingRecord}


@dataclass(frozen=True)
class Measurements:
    """A folder of records, one file for each run of a suite on a device."""

    folder: Path

    def runs(self, suite: str, device: str) -> Iterator[Sequence[HeadRecord]]:
        """Yield the runs of a suite, the latest first."""
        kind = _KINDS.get(suite, LayerRecord)
        return (read_records_as(kind, path) for path in self._paths(suite, device))

    def bench_records(
        self, kind: type[AnyBenchRecord], suite: str, device: str
    ) -> list[AnyBenchRecord]:
        """Return the records of all runs, for tables that say which run a number is from."""
        return self._records(kind, suite, device)

    def layer_runs(self, suite: str, device: str) -> Iterator[Sequence[LayerRecord]]:
        """Yield the runs of steps of the output layer, the latest first."""
        return (read_records_as(LayerRecord, path) for path in self._paths(suite, device))

    def latest(self, suite: str, device: str) -> Sequence[LayerRecord]:
        """Return the latest run of steps of the output layer, or an empty one."""
        return next(self.layer_runs(suite, device), [])

    def long_runs(self, device: str) -> list[LongRunRecord]:
        """Return the records of `benchmarks.long_run`."""
        return self._records(LongRunRecord, "long_run", device)

    def language_models(self, device: str) -> list[LanguageModelRecord]:
        """Return the records of `benchmarks.language_model`."""
        return self._records(LanguageModelRecord, "language_model", device)

    def time_ms(self, suite: str, step: Step) -> float | None:
        """Return the time of a step on the GPU, from the latest run that has it."""
        found = (fastest(run, **step) for run in self.runs(suite, "cuda"))
        return next((time_of(record) for record in found if record), None)

    def quotient(self, suite: str, device: Device, above: Step, below: Step) -> float | None:
        """Return the quotient of two times, both from the latest run that has both."""
        for run in self.runs(suite, device):
            one, other = (fastest(run, **step) for step in (above, below))
            if one and other:
                return time_of(one) / time_of(other)
        return None

    def source(self, suite: str) -> str:
        """Return a sentence that names the machines of the latest runs."""
        notes = []
        for path in (path for device in DEVICES for path in self._paths(suite, device)[:1]):
            record = read_records(path)[0]
            versions = f"torch {record['versions']['torch']}, seed {record['seed']}"
            notes.append(f"{record['device']}, {versions}")
        return wrapped(f"Measured on {'; '.join(notes)}. Records: `benchmarks/records`.")

    def _records(self, kind: type[AnyRecordable], suite: str, device: str) -> list[AnyRecordable]:
        paths = self._paths(suite, device)
        return [record for path in paths for record in read_records_as(kind, path)]

    def _paths(self, suite: str, device: str) -> list[Path]:
        names = (*FILES.get(suite, (suite,)), *_OLDER_FILES.get(suite, ()))
        paths = (self.folder / f"{name}.{device}.jsonl" for name in names)
        return [path for path in paths if path.exists()]


def first(records: Iterable[AnyBenchRecord], where: Step) -> AnyBenchRecord | None:
    """Return the first record whose fields have these values."""
    found = (
        record
        for record in records
        if all(getattr(record, field) == value for field, value in where.items())
    )
    return next(found, None)
