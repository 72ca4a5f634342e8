"""Epochs and ratios of table 1, from the records of `zloss bench`.

The paper timed some thousand batches of 200 n-grams and multiplied, and so does this module. Both times of a ratio are
from one run. On a CPU it is the median over turns, on a GPU the quotient of medians. Every loss is taken as it runs
fastest in that run.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from reproduction.timed_parts import DEVICES, PARTS, Device, Part
from zloss_lab.bench.model_suite import BATCHES, EPOCH_NGRAMS
from zloss_lab.bench.output_suite import ONE_BILLION_WORD
from zloss_lab.bench.schema import (
    BenchRecord,
    HeadRecord,
    LayerRecord,
    NetworkRecord,
    StepRecord,
)
from zloss_lab.records import read_records_as

FILES: Mapping[str, tuple[str, ...]] = {  # the latest first
    "model": ("model",),
    "output": ("output", "speed"),
    "scaling": ("scaling", "output", "speed"),
}
# The keys of the heads of each loss. Softmax has every form that is exact. Cut cross-entropy leaves out small
# gradients, so it is not among them.
HEADS_OF_LOSS = {
    "softmax": (
        "dense",
        "dense-tf32",
        "dense-bf16",
        "dense-compiled",
        "dense-bf16-compiled",
        "lce-tuned",
        "lce-tuned-tf32",
        "cce-exact",
    ),
    "hierarchical": ("hierarchical",),
    "z_loss": ("factored",),
}
_BATCH, _HIDDEN = BATCHES["net1"], 512

BenchRun = Sequence[StepRecord]  # the records of one file
AnyRecord = TypeVar("AnyRecord", bound=HeadRecord)


@dataclass(frozen=True)
class Growth:
    """The growth of the time of a step of the output layer from few classes to many."""

    few: int
    many: int
    factor: float


@dataclass(frozen=True)
class Timings:
    """Measured steps, by file name without its ending, such as "output.cuda"."""

    runs: Mapping[str, BenchRun]

    @classmethod
    def read(cls, folder: Path) -> "Timings":
        """Read the files of a folder; a missing file is empty."""
        names = {
            f"{name}.{device}" for files in FILES.values() for name in files for device in DEVICES
        }
        return cls({name: _read(folder / f"{name}.jsonl") for name in sorted(names)})

    def step(self, part: Part, loss: str, device: Device) -> StepRecord | None:
        """Return the fastest step of this loss at the size of One Billion Word."""
        return _fastest(self._run(part, device), part, loss)

    def epoch_s(self, part: Part, loss: str, device: Device) -> float | None:
        """Return the time that an epoch of One Billion Word would take."""
        step = self.step(part, loss, device)
        return None if step is None else time_of(step) / 1000 * EPOCH_NGRAMS / _BATCH

    def ratio(self, part: Part, loss: str, device: Device) -> float | None:
        """Return the time of a step of this loss, divided by the time of a step of the Z-loss."""
        return ratio_to_z_loss(
            self.step(part, loss, device), self.step(part, "z_loss", device), device
        )

    def growth(self, loss: str, device: Device) -> Growth | None:
        """Return the growth of a step over the widest range of classes that one run has."""
        found = [growth for run in self._runs("scaling", device) if (growth := _growth(run, loss))]
        return max(found, key=lambda growth: growth.many / growth.few, default=None)

    def used(self) -> list[StepRecord]:
        """Return one record of every run that counts."""
        runs = [self._run(part, device) for device in DEVICES for part in PARTS]
        for device, loss in product(DEVICES, HEADS_OF_LOSS):
            growth = self.growth(loss, device)
            runs += [
                run
                for run in self._runs("scaling", device)
                if growth and _growth(run, loss) == growth
            ]
        return list({id(run): run[0] for run in runs if run}.values())

    def _run(self, part: Part, device: Device) -> BenchRun:
        """Return the latest run that has the Z-loss."""
        return next((run for run in self._runs(part, device) if _fastest(run, part, "z_loss")), [])

    def _runs(self, suite: str, device: Device) -> Iterator[BenchRun]:
        return (self.runs.get(f"{name}.{device}", []) for name in FILES[suite])


def _read(path: Path) -> BenchRun:
    if not path.exists():
        return []
    kind = NetworkRecord if path.name.startswith("model.") else LayerRecord
    return read_records_as(kind, path)


def fastest(run: Iterable[AnyRecord], entries: Collection[str], **where: Any) -> AnyRecord | None:
    """Return the fastest step of the heads with these keys in a run, however it is launched.

    `where` has the values of other fields.

    >>> from types import SimpleNamespace
    >>> times = (4.6, 0.1, None)
    >>> run = [SimpleNamespace(entry="factored", batch=200, time_ms=time_ms) for time_ms in times]
    >>> fastest(run, ["factored"], batch=200).time_ms
    0.1
    """
    found = [
        record
        for record in run
        if record.entry in entries
        and record.time_ms is not None
        and all(getattr(record, field) == value for field, value in where.items())
    ]
    return min(found, key=time_of, default=None)


def time_of(record: BenchRecord) -> float:
    """Return the time of a case in milliseconds, which must have been measured."""
    assert record.time_ms is not None
    return record.time_ms


def ratio_to_z_loss(
    own: StepRecord | None, pace: StepRecord | None, device: Device
) -> float | None:
    """Return the time of a step divided by the time of the Z-loss in the same run, where both were measured.

    On a CPU it is the ratio by turns.
    """
    if own is None or pace is None:
        return None
    return own.ratio_to_factored if device == "cpu" else time_of(own) / time_of(pace)


def _fastest(
    run: BenchRun, part: Part, loss: str, classes: int = ONE_BILLION_WORD
) -> StepRecord | None:
    """Return the fastest step, with words by their frequency if the run has such steps.

    The time of hierarchical softmax depends on the frequencies.
    """
    entries = HEADS_OF_LOSS[loss]
    where: dict[str, Any] = {"batch": _BATCH, "hidden": _HIDDEN, "classes": classes}
    if part == "model":
        where["network"] = "net1"
    return fastest(run, entries, targets="zipf", **where) or fastest(run, entries, **where)


def _growth(run: BenchRun, loss: str) -> Growth | None:
    """Return the growth with words by their frequency, if two sizes have such steps; else with other targets.

    A mixture of both would take an effect of the targets for an effect of the size.
    """
    of_words = [record for record in run if record.targets == "zipf"]
    others = [record for record in run if record.targets != "zipf"]
    return _growth_of(of_words, loss) or _growth_of(others, loss)


def _growth_of(run: BenchRun, loss: str) -> Growth | None:
    sizes = sorted({record.classes for record in run if record.entry in HEADS_OF_LOSS[loss]})
    times = {size: time_of(step) for size in sizes if (step := _fastest(run, "output", loss, size))}
    if len(times) < 2:
        return None
    few, many = min(times), max(times)
    return Growth(few, many, times[many] / times[few])


def duration(seconds: float, digits: int = 3) -> str:
    """Return a time in the unit that reads best.

    >>> duration(10.88 * 3600, digits=4), duration(84.123), duration(0.97 * 86400)
    ('10.88 h', '1.4 min', '0.97 days')
    """
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 0.9 * size:
            number = f"{seconds / size:.{digits}g}"
            return f"{number} {'day' if (number, unit) == ('1', 'days') else unit}"
    return f"{seconds:.{digits}g} s"
