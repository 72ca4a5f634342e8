"""Epochs and ratios of table 1, from the records of `zloss bench`.

The paper timed some thousand batches of 200 n-grams and multiplied; so do these. A ratio is of one run: on a CPU the
median over turns, on a GPU the quotient of medians. Every loss is taken as it runs fastest in that run.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

from zloss_lab.bench.layer_suite import ONE_BILLION_WORD
from zloss_lab.bench.model_suite import BATCHES, EPOCH_NGRAMS
from zloss_lab.records import Record, read_records

Device = Literal["cpu", "cuda"]
Part = Literal["model", "output"]  # the whole of net1, or its output layer alone
DEVICES: tuple[Device, ...] = ("cpu", "cuda")
PARTS: tuple[Part, ...] = ("model", "output")

FILES: Mapping[str, tuple[str, ...]] = {  # the latest first
    "model": ("model",),
    "output": ("output", "speed"),
    "scaling": ("scaling", "output", "speed"),
}
# Softmax by every way that computes it exactly. Cut cross-entropy leaves out small gradients, and is not among them.
HEADS = {
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

_KINDS: dict[str, tuple[type, str]] = {  # of what every line has
    "name": (str, "text"),
    "device": (str, "text"),
    "versions": (dict, "an object"),
    "commit": (str, "text"),
}

Run = list[Record]  # the records of one file


@dataclass(frozen=True)
class Growth:
    """How the step of the output layer changes from few classes to many."""

    few: int
    many: int
    factor: float


@dataclass(frozen=True)
class Timings:
    """Measured steps, by file name without its ending, such as "output.cuda"."""

    runs: Mapping[str, Run]

    @classmethod
    def read(cls, folder: Path) -> "Timings":
        """The files of a folder; those that are not there are empty."""
        names = {
            f"{name}.{device}" for files in FILES.values() for name in files for device in DEVICES
        }
        return cls({name: _read(folder / f"{name}.jsonl") for name in sorted(names)})

    def step(self, part: Part, loss: str, device: Device) -> Record | None:
        """The fastest step of this loss at the size of One Billion Word."""
        return _fastest(self._run(part, device), part, loss)

    def epoch_s(self, part: Part, loss: str, device: Device) -> float | None:
        """What an epoch of One Billion Word would take."""
        step = self.step(part, loss, device)
        return None if step is None else step["time_ms"] / 1000 * EPOCH_NGRAMS / _BATCH

    def ratio(self, part: Part, loss: str, device: Device) -> float | None:
        """The time of this loss in steps of the Z-loss."""
        return ratio(self.step(part, loss, device), self.step(part, "z_loss", device), device)

    def growth(self, loss: str, device: Device) -> Growth | None:
        """Of a step, over the widest range of classes that one run has."""
        found = [growth for run in self._runs("scaling", device) if (growth := _growth(run, loss))]
        return max(found, key=lambda growth: growth.many / growth.few, default=None)

    def used(self) -> list[Record]:
        """A record of every run that counts."""
        runs = [self._run(part, device) for device in DEVICES for part in PARTS]
        for device, loss in product(DEVICES, HEADS):
            growth = self.growth(loss, device)
            runs += [
                run
                for run in self._runs("scaling", device)
                if growth and _growth(run, loss) == growth
            ]
        return list({id(run): run[0] for run in runs if run}.values())

    def _run(self, part: Part, device: Device) -> Run:
        """The latest one that has the Z-loss."""
        return next((run for run in self._runs(part, device) if _fastest(run, part, "z_loss")), [])

    def _runs(self, suite: str, device: Device) -> Iterator[Run]:
        return (self.runs.get(f"{name}.{device}", []) for name in FILES[suite])


def _read(path: Path) -> Run:
    if not path.exists():
        return []
    try:
        run = read_records(path)
    except ValueError as error:
        raise ValueError(f"{path} is no file of records: {error}") from error
    for number, record in enumerate(run, start=1):
        if fault := _fault(record):
            raise ValueError(f"{path}, line {number}: {fault}")
    return run


def _fault(record: Record) -> str | None:
    """What of a line is not as a table needs it; a step that could not run has null for its time."""
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
    """The fastest step of these heads in a run, however it is launched.

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


def ratio(own: Record | None, pace: Record | None, device: Device) -> float | None:
    """The time of a step in steps of the Z-loss of the same run, where both were measured; on a CPU by turns."""
    if own is None or pace is None:
        return None
    return by_turns(own) if device == "cpu" else float(own["time_ms"] / pace["time_ms"])


def by_turns(step: Record) -> float | None:
    """Its ratio to the factored step that it took turns with; None where it took none, as on a GPU."""
    found = step.get("ratio_to_factored")
    return None if found is None else float(found)


def _fastest(run: Run, part: Part, loss: str, classes: int = ONE_BILLION_WORD) -> Record | None:
    """Hierarchical softmax sees how often words occur, and is timed with words that do."""
    names = [f"net1, {name}" if part == "model" else name for name in HEADS[loss]]
    where = {"batch": _BATCH, "hidden": _HIDDEN, "classes": classes}
    return fastest(run, names, targets="zipf", **where) or fastest(run, names, **where)


def _growth(run: Run, loss: str) -> Growth | None:
    """With words as they occur, where two sizes have such steps: other targets would pass for other sizes."""
    of_words = [record for record in run if record.get("targets") == "zipf"]
    return _growth_of(of_words, loss) or _growth_of(
        [record for record in run if record not in of_words], loss
    )


def _growth_of(run: Run, loss: str) -> Growth | None:
    sizes = sorted({record["classes"] for record in run if record.get("name") in HEADS[loss]})
    times = {
        size: step["time_ms"] for size in sizes if (step := _fastest(run, "output", loss, size))
    }
    if len(times) < 2:
        return None
    few, many = min(times), max(times)
    return Growth(few, many, times[many] / times[few])


def duration(seconds: float, digits: int = 3) -> str:
    """In the unit that reads best.

    >>> duration(10.88 * 3600, digits=4), duration(84.123), duration(0.97 * 86400)
    ('10.88 h', '1.4 min', '0.97 days')
    """
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 0.9 * size:
            number = f"{seconds / size:.{digits}g}"
            return f"{number} {'day' if (number, unit) == ('1', 'days') else unit}"
    return f"{seconds:.{digits}g} s"
