"""Times of steps, in bursts: as in training, where the host runs ahead of the device, and where clocks are too coarse.

Every burst is long enough that neither the clock nor the wait at its end matters, and each of its steps has inputs of
its own. The host waits for the device before a burst and after it.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any

import torch

from zloss_lab.records import Record

LONG_MS = 300.0  # a step that takes longer is taken less often

# A captured step of 0.1 ms comes 200 times in a burst, one of seconds once.
_BURST_MS = {"cuda": 20.0, "cpu": 100.0}
_MOST_STEPS = {"cuda": 200, "cpu": 20}
# The first steps of a graph run eagerly, then it is captured, then replayed.
_WARM_UP = {"cuda": 12, "cpu": 2}


@dataclass
class Work:
    """A step, and inputs to give it one after the other."""

    step: Callable[..., object]
    inputs: Sequence[tuple[Any, ...]] = ((),)
    refactors: Callable[[], int] | None = None  # so far, of a factored layer


@dataclass
class TimedWork:
    """Work that takes turns with other work, and the times of its turns."""

    work: Work
    device: torch.device
    times_ms: list[float] = field(default_factory=list)  # of a step, turn by turn
    burst: int = 1
    refactors: int = 0  # that fell into these turns: they are no part of a step

    def __post_init__(self) -> None:
        self._feed = cycle(self.work.inputs)

    def warm_up(self) -> float:
        """Some steps that do not count, and the length of a burst; returns about how long a step takes."""
        kind, times = self.device.type, []
        for number in range(_WARM_UP[kind]):
            times.append(self._elapsed_ms(1))
            if (
                number > 1 and min(times) > LONG_MS
            ):  # more than one may have been compiled on the way
                break
        step_ms = min(times)  # any of them may have met a refactor, or have been captured
        self.burst = min(max(math.ceil(_BURST_MS[kind] / step_ms), 1), _MOST_STEPS[kind])
        return step_ms

    def take_turn(self) -> None:
        """Time one burst."""
        before = self._refactors_so_far()
        self.times_ms.append(self._elapsed_ms(self.burst))
        self.refactors += self._refactors_so_far() - before

    def results(self) -> Record:
        """What its turns have come to."""
        counted = {} if self.work.refactors is None else {"refactors": self.refactors}
        return summary(self.times_ms, self.burst) | counted

    def _refactors_so_far(self) -> int:
        return 0 if self.work.refactors is None else self.work.refactors()

    def _elapsed_ms(self, steps: int) -> float:
        step, inputs = self.work.step, list(islice(self._feed, steps))
        wait_for(self.device)
        start = time.perf_counter()
        for arguments in inputs:
            step(*arguments)
        wait_for(self.device)
        return 1000 * (time.perf_counter() - start) / steps


def wait_for(device: torch.device) -> None:
    """Wait until the device has done all that it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def summary(times_ms: Sequence[float], burst: int) -> Record:
    """Median and spread."""
    values = sorted(times_ms)
    quartiles = (
        statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    )
    return {
        "time_ms": round(quartiles[1], 5),
        "time_ms_quartiles": [round(quartiles[0], 5), round(quartiles[2], 5)],
        "time_ms_range": [round(values[0], 5), round(values[-1], 5)],
        "repeats": len(values),
        "burst": burst,
    }


def ratio(times_ms: Sequence[float], pace_ms: Sequence[float]) -> float | None:
    """Median of the ratios turn by turn, so that a slow minute of the machine hits both."""
    ratios = [own / pace for own, pace in zip(times_ms, pace_ms, strict=False)]
    return round(statistics.median(ratios), 4) if ratios else None
