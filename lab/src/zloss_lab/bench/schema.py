"""The schema of the records of `zloss bench`: a dataclass for each kind of measurement.

The suites write instances of these classes, and every table, plot and report reads them. A record names its head by the
key on the command line. `head_title` has the names for readers.

The first benchmark, whose suite is `output_layer`, had fewer fields. Therefore these fields may be absent from a file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from zloss_lab.bench.entries import ProductPrecision, Tuning, head_title
from zloss_lab.bench.random_inputs import Law
from zloss_lab.bench.steps import Launch
from zloss_lab.networks import TrunkPrecision
from zloss_lab.records import Recordable, RecordKey, read_records, read_records_as

RankingTask = Literal["rank", "topk", "refactor"]
DataTask = Literal["preparation", "batches"]
DATA_TITLES: Mapping[DataTask, str] = {
    "preparation": "preparation",
    "batches": "batches of n-grams",
}


@dataclass(frozen=True, kw_only=True)
class BenchRecord(Recordable):
    """The part that the records of all suites have: one case, its time and memory, and where it was measured."""

    suite: str
    head: str | None  # the name of the head in its config; None if no head is measured
    loss: str | None
    batch: int
    hidden: int | None  # None if there is no hidden layer
    classes: int
    launch: Launch
    seed: int
    time_ms: float | None  # None if the case was not run
    time_ms_quartiles: tuple[float, float] | None = None  # None in the first benchmark
    time_ms_range: tuple[float, float] | None = None  # None if the case was not run, as below
    repeats: int | None = None
    burst: int | None = None  # None in the first benchmark
    refactors: int | None = None  # None if there is no factored layer, or in older records
    ratio_to_factored: float | None = None  # None without turns with a factored step, as on a GPU
    peak_bytes: int | None = None  # None if memory was not measured
    missing: str | None = None  # the reason why the case was not run
    device: str
    versions: Mapping[str, str]
    commit: str
    driver: str | None = None  # None on a CPU, and in the first benchmark

    def __post_init__(self) -> None:
        for name in ("classes", "time_ms", "ratio_to_factored"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be a number above 0, got {value!r}")

    @property
    def key(self) -> RecordKey:
        """The suite, the sizes and the launch; each kind of record adds what it varies besides."""
        return self.suite, self.batch, self.hidden, self.classes, self.launch

    @property
    def title(self) -> str:
        """The name of the case in tables and plots."""
        raise NotImplementedError(f"{type(self).__name__} has no title")


@dataclass(frozen=True, kw_only=True)
class HeadRecord(BenchRecord):
    """A measurement of a head."""

    hidden: int
    entry: str  # the key of the head on the command line
    options: Mapping[str, Any]
    precision: ProductPrecision
    tuning: Tuning | None = None  # None in the first benchmark

    @property
    def key(self) -> RecordKey:
        return *super().key, self.entry

    @property
    def title(self) -> str:
        return head_title(self.entry)


@dataclass(frozen=True, kw_only=True)
class StepRecord(HeadRecord):
    """A training step of a head, with targets by some law."""

    targets: Law

    @property
    def key(self) -> RecordKey:
        return *super().key, self.targets

    @property
    def title(self) -> str:
        return f"{super().title}{', words by frequency' if self.targets == 'zipf' else ''}"


@dataclass(frozen=True, kw_only=True)
class LayerRecord(StepRecord):
    """A step of the output layer alone."""

    suite: Literal["output", "scaling", "output_layer"]


@dataclass(frozen=True, kw_only=True)
class NetworkRecord(StepRecord):
    """A step of a whole network. The words of all cases occur by Zipf's law, so that titles do not say so."""

    suite: Literal["model"]
    network: str
    trunk_precision: TrunkPrecision
    ngrams_per_s: int | None = None
    epoch_s: float | None = None

    @property
    def key(self) -> RecordKey:
        return *super().key, self.network, self.trunk_precision

    @property
    def title(self) -> str:
        return f"{self.network}, {head_title(self.entry)}"


@dataclass(frozen=True, kw_only=True)
class RankingRecord(HeadRecord):
    """The ranks or the best classes of many examples, or one refactor."""

    suite: Literal["eval"]
    task: RankingTask
    top: int | None = None  # the number of best classes that were searched for
    examples_per_s: int | None = None

    @property
    def key(self) -> RecordKey:
        return *super().key, self.task

    @property
    def title(self) -> str:
        return f"{super().title}, {self.task}"


@dataclass(frozen=True, kw_only=True)
class DataRecord(BenchRecord):
    """The preparation of a text, or batches of n-grams from it."""

    suite: Literal["data"]
    task: DataTask
    words: int  # of the text
    words_per_s: int | None = None
    batches_per_s: int | None = None
    ngrams_per_s: int | None = None

    @property
    def key(self) -> RecordKey:
        return *super().key, self.task, self.words

    @property
    def title(self) -> str:
        return DATA_TITLES[self.task]


@dataclass(frozen=True, kw_only=True)
class LaunchTime:
    """The start and the duration of a launch in a captured step."""

    name: str
    start_us: float
    time_us: float


@dataclass(frozen=True, kw_only=True)
class ProfileRecord(StepRecord):
    """All launches of a captured step, and the time that its products alone would take."""

    suite: Literal["profile"]
    time_ms: float
    gflop: float
    product_tflops: float
    arithmetic_ms: float
    launches: tuple[LaunchTime, ...]


KINDS: Mapping[str, type[BenchRecord]] = {
    "output": LayerRecord,
    "scaling": LayerRecord,
    "output_layer": LayerRecord,
    "model": NetworkRecord,
    "eval": RankingRecord,
    "data": DataRecord,
    "profile": ProfileRecord,
}


def read_bench_records(path: Path) -> Sequence[BenchRecord]:
    """Return the records of a file. The suite of its first line says of which kind they are."""
    suite = next((str(record.get("suite")) for record in read_records(path)), "")
    if suite not in KINDS:
        raise ValueError(f'"suite" of line 1 must be one of {", ".join(KINDS)}, got {suite!r}')
    return read_records_as(KINDS[suite], path)
