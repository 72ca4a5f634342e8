"""A run: one folder with everything that a training run leaves behind, readable by whoever gets it.

    config.json               what was asked for, every field
    metrics.jsonl             one object a line: training and validation, with the step
    events.out.tfevents...    the same for TensorBoard
    checkpoints/000012000/    tensors.safetensors and state.json, complete or not there

No file here needs pickle. Checkpoints and config are written in whole or not at all; lines of metrics beyond the
checkpoint that a run resumes from are cut off, because they will come again.

Which checkpoint is the best is known by the last one (`schedule.best_step` in its state.json). That of the best step is
written with that mark in it, so that no moment is a bad one to be killed at.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from zloss_lab.durable import is_full_disk, is_partial, locked, new_folder, sync, tidied, write_file

_TENSORS, _STATE = "tensors.safetensors", "state.json"


class RunError(ValueError):
    """Something about a run folder that its user has to know or to change."""


@dataclass(frozen=True)
class Checkpoint:
    """Everything needed to go on, or to use the network."""

    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]


class Run:
    """The folder of a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._events: Any = None  # TensorBoard's writer, once there is something to write
        self._resumed_at: int | None = None

    def create(self, config: Mapping[str, Any]) -> "Run":
        """Begin a new run; an existing one is never overwritten."""
        self.require_new()
        with self._explained("the config"):
            write_file(self.folder / "config.json", json.dumps(config, indent=2) + "\n")
        return self

    def require_new(self) -> None:
        """Refuse a folder that has something in it, or a name that cannot be used."""
        require_utf8(str(self.folder))
        if self.folder.exists() and not self.folder.is_dir():
            raise RunError(f"{self.folder} is a file, a run is a folder: choose another name")
        if self.folder.is_dir() and not all(
            map(is_partial, self.folder.iterdir())
        ):  # as one that was killed leaves
            raise RunError(
                f"{self.folder} is not empty: resume the run that is there, or choose another folder"
            )

    @classmethod
    def open(cls, folder: Path) -> "Run":
        """A run that exists."""
        if not (folder / "config.json").is_file():
            raise RunError(f"{folder} is not a run: there is no config.json in it")
        return cls(folder)

    @property
    def config(self) -> dict[str, Any]:
        """The table of its configuration."""
        return _read_json(self.folder / "config.json")

    # ---- metrics -----------------------------------------------------------------------------------------------------

    def log(self, record: Mapping[str, Any]) -> None:
        """Add a line of metrics, of a `kind` and a `step`, and the same for TensorBoard, but for what is None."""
        with self._explained("the metrics"), self._metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        with self._explained("the events for TensorBoard"):
            if self._events is None:
                self._events = _event_writer(self.folder, self._resumed_at)
            for name, value in record.items():
                if name not in ("kind", "step") and value is not None:
                    self._events.add_scalar(f"{record['kind']}/{name}", value, record["step"])

    def close(self) -> None:
        """Let go of the files that are written to."""
        if self._events is not None:
            events, self._events = self._events, None
            with self._explained("the events for TensorBoard"):
                events.close()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes from training in this folder; refuse where one does."""
        with tidied(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            with locked(self.folder, waits=False) as is_ours:
                if not is_ours:
                    raise RunError(
                        f"another process is training in {self.folder}: wait for it, or choose another folder"
                    )
                yield

    def metrics(self) -> list[dict[str, Any]]:
        """All lines of metrics so far. A last line that a killed process left half-written does not count."""
        records = []
        for number, line in enumerate(self._metrics_text().split("\n")[:-1], start=1):
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise RunError(
                    f"{self._metrics}, line {number}, is no JSON ({error.msg}): delete the line"
                ) from error
            if not _is_metrics(record):
                raise RunError(
                    f"{self._metrics}, line {number}, is no metrics with kind, step and epoch: delete the line"
                )
            records.append(record)
        return records

    @property
    def _metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    def _metrics_text(self) -> str:
        """With a mark for bytes that are no text, by which the line is found that has them."""
        try:
            return self._metrics.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise RunError(f"{self._metrics} cannot be read: {error.strerror}") from error

    def forget_after(self, step: int) -> None:
        """Drop the metrics of later steps: training resumes here, and they will come again."""
        kept = [record for record in self.metrics() if record["step"] <= step]
        with self._explained("the metrics"):
            write_file(self._metrics, "".join(json.dumps(record) + "\n" for record in kept))
        self._resumed_at = step

    # ---- checkpoints -------------------------------------------------------------------------------------------------

    def save(self, checkpoint: Checkpoint, *, keep: int) -> None:
        """Write a checkpoint; of the older ones the last `keep - 1` and the best stay."""
        place, what = self._place(checkpoint.step), f"the checkpoint of step {checkpoint.step}"
        if self._metrics.exists():  # those of the steps before: no checkpoint is there without them
            with self._explained("the metrics"):
                sync(self._metrics)
        with self._explained(what), new_folder(place) as folder:
            save_file(
                {name: tensor.contiguous() for name, tensor in checkpoint.tensors.items()},
                folder / _TENSORS,
            )
            (folder / _TENSORS).chmod(0o644)  # safetensors has it for its owner alone
            (folder / _STATE).write_text(json.dumps(checkpoint.state) + "\n")
        self.drop_old(keep=keep)

    def drop_old(self, *, keep: int) -> None:
        """Remove all checkpoints but the newest and the best, and what a process left that was killed here."""
        best = self.best_step
        for step in self.steps()[:-keep]:
            if step != best:
                shutil.rmtree(self._place(step))

    @property
    def best_step(self) -> int | None:
        """The step of the best checkpoint, once there is one."""
        steps, before = self.steps(), self.folder / "best.json"  # where early versions noted it
        schedule = self._state_of(steps[-1]).get("schedule", {}) if steps else {}
        if "best_step" not in schedule and before.exists():
            return int(_read_json(before)["step"])
        best: int | None = schedule.get("best_step")
        return best

    def steps(self) -> list[int]:
        """The steps of the checkpoints that are there, in order."""
        place = self.folder / "checkpoints"
        folders = place.iterdir() if place.exists() else iter(())
        return sorted(int(folder.name) for folder in folders if folder.name.isdigit())

    def load(self, step: int | None = None, *, device: str = "cpu") -> Checkpoint:
        """The checkpoint of a step, by default the last one."""
        step = self._present(step)
        try:
            return Checkpoint(
                step, load_file(self._place(step) / _TENSORS, device=device), self._state_of(step)
            )
        except (OSError, SafetensorError) as error:
            raise self.unusable(step, error) from error

    def state(self) -> dict[str, Any]:
        """What the last checkpoint has beside its tensors."""
        return self._state_of(self._present(None))

    def _state_of(self, step: int) -> dict[str, Any]:
        try:
            return _read_json(self._place(step) / _STATE)
        except RunError as error:
            raise self.unusable(step, error) from error

    def unusable(self, step: int, why: object) -> RunError:
        """What to do about a checkpoint that is damaged, or that a later version has written."""
        before = [one for one in self.steps() if one < step]
        way = f"remove its folder to go on from step {before[-1]}" if before else "start a new run"
        return RunError(
            f"the checkpoint {self._place(step)} cannot be used: {why}. It is damaged, or of a later version of zloss; "
            f"use that version, or {way}"
        )

    def _present(self, step: int | None) -> int:
        """The step, by default the last one, if it has a checkpoint."""
        steps = self.steps()
        if not steps:
            raise RunError(f"{self.folder} has no checkpoint yet")
        if step is not None and step not in steps:
            raise RunError(f"{self.folder} has no checkpoint of step {step}: it has {steps}")
        return steps[-1] if step is None else step

    def _place(self, step: int) -> Path:
        return self.folder / "checkpoints" / f"{step:09d}"

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """What could not be written, why, and what is there nevertheless."""
        try:
            yield
        except (OSError, SafetensorError) as error:
            reason = (
                "the disk is full"
                if is_full_disk(error)
                else getattr(error, "strerror", None) or error
            )
            steps = self.steps()
            rest = f"; the checkpoint of step {steps[-1]} is there, resume from it" if steps else ""
            raise RunError(
                f"{what} of {self.folder} could not be written, {reason}{rest}"
            ) from error


def _is_metrics(record: Any) -> bool:
    """Whether it has what every line has."""
    has_kind = isinstance(record, dict) and "kind" in record
    return (
        has_kind
        and isinstance(record.get("step"), int)
        and isinstance(record.get("epoch"), int | float)
    )


def require_utf8(name: str) -> None:
    """Refuse a name that safetensors, TensorBoard or SQLite would refuse later, and in other words."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise RunError(
            f"the name {name} is not UTF-8, as it must be here: choose another one"
        ) from error


def _event_writer(folder: Path, resumed_at: int | None) -> Any:
    # Here, because it takes a second, and most commands write no events.
    from torch.utils.tensorboard import SummaryWriter

    purge_step = None if resumed_at is None else resumed_at + 1
    return SummaryWriter(str(folder), purge_step=purge_step, flush_secs=10)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise RunError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise RunError(f"{path} cannot be read: it must be one JSON object")
    return value
