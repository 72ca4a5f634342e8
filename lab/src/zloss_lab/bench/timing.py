"""Times of steps, measured in bursts of many steps.

As in training, the host runs ahead of the device during a burst. It waits for the device before a burst and after it. A
burst is long, so that neither the resolution of the clock nor the wait matters. Each step of a burst has other inputs.
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

LONG_MS = 300.0  # a longer step is measured in fewer turns

# A burst has 200 captured steps of 0.1 ms, but a single step that takes seconds.
_BURST_MS = {"cuda": 20.0, "cpu": 100.0}
_MOST_STEPS = {"cuda": 200, "cpu": 20}
# Steps before the measurement. The first steps of a graph run eagerly, then it is captured, then replayed.
_WARM_UP = {"cuda": 12, "cpu": 2}


@dataclass
class Work:
    """A step, and the inputs that it gets one after the other."""

    step: Callable[..., object]
    inputs: Sequence[tuple[Any, ...]] = ((),)
    refactors: Callable[[], int] | None = None  # returns the refactors of a factored layer so far


@dataclass
class TimedWork:
    """Work that takes turns with other work, and the times of its turns."""

    work: Work
    device: torch.device
    times_ms: list[float] = field(default_factory=list)  # the time of a step in each turn
    burst: int = 1  # steps in a turn
    refactors: int = 0  # the number of refactors during these turns; they do not belong to a step

    def __post_init__(self) -> None:
        self._feed = cycle(self.work.inputs)

    def warm_up(self) -> float:
        """Take some steps that do not count, choose the length of a burst, and return the rough time of a step."""
        kind, times = self.device.type, []
        for number in range(_WARM_UP[kind]):
            times.append(self._elapsed_ms(1))
            if number > 1 and min(times) > LONG_MS:  # the first two steps may have been compiled
                break
        step_ms = min(times)  # the others may contain a refactor or the capture of a graph
        self.burst = min(max(math.ceil(_BURST_MS[kind] / step_ms), 1), _MOST_STEPS[kind])
        return step_ms

    def take_turn(self) -> None:
        """Time one burst."""
        before = self._refactors_so_far()
        self.times_ms.append(self._elapsed_ms(self.burst))
        self.refactors += self._refactors_so_far() - before

    def results(self) -> Record:
        """Return the statistics of the turns so far."""
        counted = {} if self.work.refactors is None else {"refactors": self.refactors}
        return time_statistics(self.times_ms, self.burst) | counted

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
    """Wait until the device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_statistics(times_ms: Sequence[float], burst: int) -> Record:
    """Return median, quartiles and range of times."""
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


def median_ratio(times_ms: Sequence[float], pace_ms: Sequence[float]) -> float | None:
    """Return the median of the ratios turn by turn, so that a slow minute of the machine affects both."""
    ratios = [own / pace for own, pace in zip(times_ms, pace_ms, strict=False)]
    return round(statistics.median(ratios), 4) if ratios else None
