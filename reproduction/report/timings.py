"""Epochs and ratios of table 1, from the records of `zloss bench`.

The paper timed some thousand batches of 200 n-grams and multiplied, and so does this module. Both times of a ratio are
from one run. On a CPU it is the median over turns, on a GPU the quotient of medians. Every loss is taken as it runs
fastest in that run.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from reproduction.timed_parts import DEVICES, PARTS, Device, Part
from zloss_lab.bench.model_suite import BATCHES, EPOCH_NGRAMS
from zloss_lab.bench.output_suite import ONE_BILLION_WORD
from zloss_lab.records import Record, read_records

FILES: Mapping[str, tuple[str, ...]] = {  # the latest first
    "model": ("model",),
    "output": ("output", "speed"),
    "scaling": ("scaling", "output", "speed"),
}
# The names of the steps of each loss. Softmax has every form that is exact. Cut cross-entropy leaves out small
# gradients, so it is not among them.
STEP_NAMES = {
    "softmax": (
        "dense softmax",
        "dense softmax, TF32",
        "dense softmax, bf16",
        "dense softmax, TF32, compiled",
        "dense softmax, bf16, compiled",
        "dense softmax, linear_cross_entropy, tuned",
        "dense softmax, linear_cross_entropy, tuned, TF32",
        "dense softmax, CCE exact, bf16",
    ),
    "hierarchical": ("hierarchical softmax",),
    "z_loss": ("factored",),
}
_BATCH, _HIDDEN = BATCHES["net1"], 512

_KINDS: dict[str, tuple[type, str]] = {  # of the values that every line has
    "name": (str, "text"),
    "device": (str, "text"),
    "versions": (dict, "an object"),
    "commit": (str, "text"),
}

BenchRun = list[Record]  # the records of one file


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

    def step(self, part: Part, loss: str, device: Device) -> Record | None:
        """Return the fastest step of this loss at the size of One Billion Word."""
        return _fastest(self._run(part, device), part, loss)

    def epoch_s(self, part: Part, loss: str, device: Device) -> float | None:
        """Return the time that an epoch of One Billion Word would take."""
        step = self.step(part, loss, device)
        return None if step is None else step["time_ms"] / 1000 * EPOCH_NGRAMS / _BATCH

    def ratio(self, part: Part, loss: str, device: Device) -> float | None:
        """Return the time of a step of this loss, divided by the time of a step of the Z-loss."""
        return ratio_to_z_loss(
            self.step(part, loss, device), self.step(part, "z_loss", device), device
        )

    def growth(self, loss: str, device: Device) -> Growth | None:
        """Return the growth of a step over the widest range of classes that one run has."""
        found = [growth for run in self._runs("scaling", device) if (growth := _growth(run, loss))]
        return max(found, key=lambda growth: growth.many / growth.few, default=None)

    def used(self) -> list[Record]:
        """Return one record of every run that counts."""
        runs = [self._run(part, device) for device in DEVICES for part in PARTS]
        for device, loss in product(DEVICES, STEP_NAMES):
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
    run = read_records(path)
    for number, record in enumerate(run, start=1):
        if fault := _fault(record):
            raise ValueError(f"{path}, line {number}: {fault}")
    return run


def _fault(record: Record) -> str | None:
    """Return the fault of a line that a table cannot use. A step that could not run has null for its time."""
    for name, (kind, wanted) in _KINDS.items():
        if not isinstance(record.get(name), kind):
            return f'"{name}" must be {wanted}, got {record.get(name)!r}'
    if "time_ms" not in record:
        return '"time_ms" is missing'
    for name in ("classes", "time_ms", "ratio_to_factored"):
        value, may_be_none = record.get(name), name != "classes"
        if not (_is_positive(value) or (value is None and may_be_none)):
            return f'"{name}" must be a finite number above 0, got {value!r}'
    return None


def _is_positive(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value > 0
    )


def fastest(run: Iterable[Record], names: Collection[str], **where: Any) -> Record | None:
    """Return the fastest step of these heads in a run, however it is launched.

    >>> run = [{"name": "factored", "batch": 200, "time_ms": time_ms} for time_ms in (4.6, 0.1, None)]
    >>> fastest(run, ["factored"], batch=200)
    {'name': 'factored', 'batch': 200, 'time_ms': 0.1}
    """
    named = (
        record
        for record in run
        if record.get("name") in names and record.get("time_ms") is not None
    )
    found = [
        record for record in named if all(record.get(key) == value for key, value in where.items())
    ]
    return min(found, key=lambda record: float(record["time_ms"]), default=None)


def ratio_to_z_loss(own: Record | None, pace: Record | None, device: Device) -> float | None:
    """Return the time of a step divided by the time of the Z-loss in the same run, where both were measured.

    On a CPU it is the ratio by turns.
    """
    if own is None or pace is None:
        return None
    return by_turns(own) if device == "cpu" else float(own["time_ms"] / pace["time_ms"])


def by_turns(step: Record) -> float | None:
    """Return the ratio to the factored step that this step took turns with; None without turns, as on a GPU."""
    found = step.get("ratio_to_factored")
    return None if found is None else float(found)


def _fastest(
    run: BenchRun, part: Part, loss: str, classes: int = ONE_BILLION_WORD
) -> Record | None:
    """Return the fastest step, with words by their frequency if the run has such steps.

    The time of hierarchical softmax depends on the frequencies.
    """
    names = [f"net1, {name}" if part == "model" else name for name in STEP_NAMES[loss]]
    where = {"batch": _BATCH, "hidden": _HIDDEN, "classes": classes}
    return fastest(run, names, targets="zipf", **where) or fastest(run, names, **where)


def _growth(run: BenchRun, loss: str) -> Growth | None:
    """Return the growth with words by their frequency, if two sizes have such steps; else with other targets.

    A mixture of both would take an effect of the targets for an effect of the size.
    """
    of_words = [record for record in run if record.get("targets") == "zipf"]
    return _growth_of(of_words, loss) or _growth_of(
        [record for record in run if record not in of_words], loss
    )


def _growth_of(run: BenchRun, loss: str) -> Growth | None:
    sizes = sorted({record["classes"] for record in run if record.get("name") in STEP_NAMES[loss]})
    times = {
        size: step["time_ms"] for size in sizes if (step := _fastest(run, "output", loss, size))
    }
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
