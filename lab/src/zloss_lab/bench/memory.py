"""Memory: the peak that work needs, and the room that is left on the device."""

import gc
import math
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path

import torch

from zloss_lab.bench.cases import Case

_STATUS, _MACHINE, _CONTAINER = (
    Path("/proc/self/status"),
    Path("/proc/meminfo"),
    Path("/sys/fs/cgroup"),
)
_USABLE_SHARE = 0.75  # of the free memory; the rest is for what estimates leave out


@contextmanager
def gpu_peak(device: torch.device) -> Iterator[list[int]]:
    """Measure the peak of memory in the block, by torch's count and beyond what was in use before.

    After the block, the list has the peak in bytes. On a CPU it stays empty: see `cpu_peak_bytes`.
    """
    peak: list[int] = []
    if device.type != "cuda":
        yield peak
        return
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    yield peak
    peak.append(torch.cuda.max_memory_allocated(device) - before)


def cpu_peak_bytes(case: Case) -> int | None:
    """Return the peak of memory during two steps, run in a separate process; None if the system does not say."""
    if not _STATUS.exists():
        return None
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(_own_peak, case).result()


def _own_peak(case: Case) -> int:
    """Return the peak of this process during two steps, beyond what it used before."""
    start = _field_bytes(_STATUS, "VmRSS")
    with case.prepared(torch.device("cpu")) as work:
        for arguments in islice(cycle(work.inputs), 2):
            work.step(*arguments)
    return _field_bytes(_STATUS, "VmHWM") - start


def release(device: torch.device) -> None:
    """Free all memory that is no longer used, torch's cache included."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def room_bytes(device: torch.device) -> int | None:
    """Return how many bytes of the free memory a heat may use; None if the system does not say."""
    if device.type == "cuda":
        return int(_USABLE_SHARE * torch.cuda.mem_get_info(device)[0])
    if not _MACHINE.exists():
        return None
    return int(_USABLE_SHARE * min(_field_bytes(_MACHINE, "MemAvailable"), _left_of_container()))


def _left_of_container() -> float:
    """Return the bytes that the container may still use; cached files count as used. Infinite without a limit."""
    most, used = (_CONTAINER / name for name in ("memory.max", "memory.current"))
    if not most.exists() or most.read_text().strip() == "max":
        return math.inf
    return int(most.read_text()) - int(used.read_text())


def _field_bytes(path: Path, field: str) -> int:
    lines = path.read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))
