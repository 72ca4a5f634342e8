"""How much memory work needs at most, and how much there is."""

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
_SHARE = 0.75  # of what is free; the rest is for what an estimate leaves out


@contextmanager
def gpu_peak(device: torch.device) -> Iterator[list[int]]:
    """Most memory in use at a time by torch's count, over what is in use now; the list has it when the block is left.

    Empty on a CPU, where a process of its own has to find out.
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
    """Most memory in use during two steps, by a process of its own; None on systems that do not say."""
    if not _STATUS.exists():
        return None
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(_own_peak, case).result()


def _own_peak(case: Case) -> int:
    """The high-water mark of this process over what it needed to start."""
    start = _field_bytes(_STATUS, "VmRSS")
    with case.prepared(torch.device("cpu")) as work:
        for arguments in islice(cycle(work.inputs), 2):
            work.step(*arguments)
    return _field_bytes(_STATUS, "VmHWM") - start


def release(device: torch.device) -> None:
    """Give back what is no longer used, so that others can have it."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def room_bytes(device: torch.device) -> int | None:
    """What may be used of the free memory; None where the system does not say."""
    if device.type == "cuda":
        return int(_SHARE * torch.cuda.mem_get_info(device)[0])
    if not _MACHINE.exists():
        return None
    return int(_SHARE * min(_field_bytes(_MACHINE, "MemAvailable"), _left_of_container()))


def _left_of_container() -> float:
    """What the control group may still use, if there is one with a limit; files that it has read count as used."""
    most, used = (_CONTAINER / name for name in ("memory.max", "memory.current"))
    if not most.exists() or most.read_text().strip() == "max":
        return math.inf
    return int(most.read_text()) - int(used.read_text())


def _field_bytes(path: Path, field: str) -> int:
    lines = path.read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))
