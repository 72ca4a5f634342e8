"""Several processes that run one function, for tests of what they do together."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn


def in_processes(
    work: Callable[[int, Any], Any], argument: Any, folder: Path, count: int = 2
) -> list[Any]:
    """Return what `work(rank, argument)` returns in each process."""
    spawn(_join, args=(work, argument, folder, count), nprocs=count)
    return [torch.load(folder / f"{rank}.pt") for rank in range(count)]


def _join(
    rank: int, work: Callable[[int, Any], Any], argument: Any, folder: Path, count: int
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=count
    )
    torch.save(work(rank, argument), folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
