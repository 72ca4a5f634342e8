"""A checkpoint: a folder with the tensors and the state of one step, all of it covered by checksums.

    tensors.safetensors    the weights, the states of the optimizers and of the random numbers
    state.json             the rest of the state, and for each tensor its type, its shape and its checksum

The state has a checksum of its own, so that a flipped bit in either file is noticed. Checkpoints are read by
`read_checkpoint` alone, which returns them whole or raises an error that says what is wrong.
"""

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from zloss_lab.checksums import checksum_of, sealed, unsealed
from zloss_lab.configuration import from_table, to_table
from zloss_lab.json_text import read_json_object
from zloss_lab.metrics_file import MetricsMark

TENSORS, STATE = "tensors.safetensors", "state.json"
_STEP = re.compile("[0-9]{9,18}")
_HASHING_THREADS = min(4, os.cpu_count() or 1)


def steps_in(folder: Path) -> list[int]:
    """Return the steps of all checkpoints in a folder, in ascending order."""
    folders = folder.iterdir() if folder.exists() else iter(())
    names = {place.name for place in folders if place.is_dir()}
    steps = (int(name) for name in names if _STEP.fullmatch(name))
    return sorted(step for step in steps if folder_name(step) in names)  # not with more zeros


def folder_name(step: int) -> str:
    """Return the name of the folder of a checkpoint."""
    return f"{step:09d}"


@dataclass(kw_only=True)
class ScheduleState:
    """The factor of the learning rates, and the validation scores that led to it."""

    factor: float = 1.0  # of the learning rates
    best: float | None = None  # a score where lower is better; may be infinite
    best_step: int | None = None
    waiting: int = 0  # validations since the best
    lowered: int = 0  # times since the best

    def __post_init__(self) -> None:
        if not 0 < self.factor <= 1:
            raise ValueError(f"factor must be above 0 and at most 1, got {self.factor}")
        for name in ("best_step", "waiting", "lowered"):
            _require_at_least(0, name, getattr(self, name))
        if self.best is not None and self.best_step is None:
            raise ValueError("best is the score of the step best_step, which is missing")


@dataclass(frozen=True, kw_only=True)
class CheckpointState:
    """Everything but tensors that training needs to continue, or a user to apply the network."""

    step: int
    seconds: float  # of training steps
    schedule: ScheduleState
    classes: int
    vocabulary: str  # checksum of the vocabulary
    config: dict[str, Any]  # table of the experiment

    def __post_init__(self) -> None:
        for name, least in (("step", 0), ("seconds", 0), ("classes", 1)):
            _require_at_least(least, name, getattr(self, name))
        if self.schedule.best_step is not None and self.schedule.best_step > self.step:
            raise ValueError(
                f"schedule.best_step is {self.schedule.best_step}, after the step {self.step} itself"
            )


@dataclass(frozen=True, kw_only=True)
class TensorMark:
    """A tensor as state.json remembers it."""

    dtype: str
    shape: tuple[int, ...]
    checksum: str


@dataclass(frozen=True, kw_only=True)
class StateFile(CheckpointState):
    """The content of state.json: the state, and what the other files were when it was written."""

    metrics: MetricsMark
    tensors: dict[str, TensorMark]


@dataclass(frozen=True)
class RunCheckpoint:
    """The content of a checkpoint."""

    tensors: dict[str, Tensor]
    state: CheckpointState

    @property
    def step(self) -> int:
        """The number of steps that were taken before it."""
        return self.state.step


def write_checkpoint(folder: Path, checkpoint: RunCheckpoint, metrics: MetricsMark) -> None:
    """Write the two files of a checkpoint into an empty folder."""
    tensors = {
        name: tensor.detach().contiguous().cpu() for name, tensor in checkpoint.tensors.items()
    }
    with _marking(tensors) as marks:  # while the file is written
        save_file(tensors, folder / TENSORS)
    # Safetensors makes a file that only its owner can read.
    (folder / TENSORS).chmod(0o644)
    table = _without_infinity(to_table(checkpoint.state))
    table |= {
        "metrics": to_table(metrics),
        "tensors": {name: to_table(mark.result()) for name, mark in marks.items()},
    }
    (folder / STATE).write_text(json.dumps(sealed(table), allow_nan=False) + "\n")


def read_state(folder: Path) -> StateFile:
    """Return the state of the checkpoint in a folder. `ValueError` or `OSError` says what is wrong with it."""
    path = folder / STATE
    try:
        state = from_table(StateFile, unsealed(read_json_object(path)))
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if folder_name(state.step) != folder.name:
        raise ValueError(f"{path} cannot be read: it is of step {state.step}")
    if state.schedule.best is None and state.schedule.best_step is not None:
        state.schedule.best = math.inf
    return state


def read_checkpoint(folder: Path, device: str) -> RunCheckpoint:
    """Return the checkpoint in a folder, with its tensors on a device, after a check of all checksums.

    `ValueError`, `OSError` or `SafetensorError` says what is wrong with it.
    """
    state = read_state(folder)
    tensors = load_file(folder / TENSORS)
    with _marking(tensors) as marks:
        found = {name: mark.result() for name, mark in marks.items()}
    for name in sorted(state.tensors.keys() | found.keys()):
        if state.tensors.get(name) != found.get(name):
            raise ValueError(
                f"{folder / TENSORS} is not what was written: {name} differs from its checksum"
            )
    return RunCheckpoint({name: tensor.to(device) for name, tensor in tensors.items()}, state)


@contextmanager
def _marking(tensors: Mapping[str, Tensor]) -> Iterator[dict[str, Future[TensorMark]]]:
    """Compute the marks of tensors on the CPU in other threads during the block; they are there when it ends."""
    with ThreadPoolExecutor(_HASHING_THREADS) as threads:
        yield {name: threads.submit(_mark, tensor) for name, tensor in tensors.items()}


def _mark(tensor: Tensor) -> TensorMark:
    content = tensor.reshape(-1).view(torch.uint8).numpy()
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorMark(dtype=dtype, shape=tuple(tensor.shape), checksum=checksum_of(content))


def _without_infinity(table: dict[str, Any]) -> dict[str, Any]:
    """Return the table with null for an infinite score: JSON has no infinity. `read_state` puts it back."""
    schedule = table["schedule"]
    is_infinite = schedule["best"] is not None and math.isinf(schedule["best"])
    return table | {"schedule": schedule | {"best": None}} if is_infinite else table


def _require_at_least(least: int, name: str, value: float | None) -> None:
    if value is not None and not value >= least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
