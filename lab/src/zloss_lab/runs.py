"""A run: one folder with all files of a training.

    config.json               the configuration with all its fields
    metrics.jsonl             a JSON object on each line: training and validation, with the step
    events.out.tfevents...    the same metrics for TensorBoard
    checkpoints/000012000/    tensors.safetensors and state.json

No file needs pickle to be read. The config and each checkpoint are complete or absent. If a run resumes from a
checkpoint, lines of metrics of later steps are removed, because training will write them again.

The last checkpoint names the best one, as `schedule.best_step` in its state.json. The checkpoint of the best step names
itself. So the process may be killed at any moment, and the best checkpoint is still known.
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

CONFIG = "config.json"
_TENSORS, _STATE = "tensors.safetensors", "state.json"


class RunError(ValueError):
    """A problem with a run, which the message explains to the user."""


@dataclass(frozen=True)
class RunCheckpoint:
    """The content of a checkpoint: everything that training needs to continue, or a user to apply the network."""

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
        """Write the config of a new run. An existing run is never overwritten."""
        self.require_new()
        with self._explained("the config"):
            write_file(self.folder / CONFIG, json.dumps(config, indent=2) + "\n")
        return self

    def require_new(self) -> None:
        """Refuse a folder that is not empty, and a name that cannot be used."""
        require_utf8(str(self.folder))
        if self.folder.exists() and not self.folder.is_dir():
            raise RunError(f"{self.folder} is a file, a run is a folder: choose another name")
        # A process that was killed may have left temporary files: they do not count.
        if self.folder.is_dir() and not all(map(is_partial, self.folder.iterdir())):
            raise RunError(
                f"{self.folder} is not empty: resume the run that is there, or choose another folder"
            )

    @classmethod
    def open(cls, folder: Path) -> "Run":
        """Return the run in a folder, which must exist."""
        if not is_run(folder):
            raise RunError(
                f"{folder} is not a run: there is no {CONFIG} in it; name a folder that `zloss train` has made"
            )
        return cls(folder)

    @property
    def config(self) -> dict[str, Any]:
        """The table of the configuration."""
        return _read_json(self.folder / CONFIG)

    # ---- metrics -----------------------------------------------------------------------------------------------------

    def log(self, record: Mapping[str, Any]) -> None:
        """Add a line of metrics, which has a `kind` and a `step`, and write the same for TensorBoard.

        TensorBoard gets no values that are None.
        """
        with self._explained("the metrics"), self._metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        with self._explained("the events for TensorBoard"):
            if self._events is None:
                self._events = _event_writer(self.folder, self._resumed_at)
            for name, value in record.items():
                if name not in ("kind", "step") and value is not None:
                    self._events.add_scalar(f"{record['kind']}/{name}", value, record["step"])

    def close(self) -> None:
        """Close the files that are being written."""
        if self._events is not None:
            events, self._events = self._events, None
            with self._explained("the events for TensorBoard"):
                events.close()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the folder during the block. If another process is training in it, raise `RunError`."""
        with tidied(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            with locked(self.folder, waits=False) as is_ours:
                if not is_ours:
                    raise RunError(
                        f"another process is training in {self.folder}: wait for it, or choose another folder"
                    )
                yield

    def metrics(self) -> list[dict[str, Any]]:
        """Return all lines of metrics so far, without a last line that a killed process left incomplete."""
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
        """Return the text of the metrics. Bytes that are not UTF-8 are replaced, so that errors can name their line."""
        try:
            return self._metrics.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise RunError(f"{self._metrics} cannot be read: {error.strerror}") from error

    def forget_after(self, step: int) -> None:
        """Drop the metrics of later steps, because training resumes at this step and will write them again."""
        kept = [record for record in self.metrics() if record["step"] <= step]
        with self._explained("the metrics"):
            write_file(self._metrics, "".join(json.dumps(record) + "\n" for record in kept))
        self._resumed_at = step

    # ---- checkpoints -------------------------------------------------------------------------------------------------

    def save(self, checkpoint: RunCheckpoint, *, keep: int) -> None:
        """Write a checkpoint, and remove all but the newest `keep` checkpoints and the best one."""
        place, what = self._place(checkpoint.step), f"the checkpoint of step {checkpoint.step}"
        # A checkpoint must not reach the disk before the metrics of earlier steps.
        if self._metrics.exists():
            with self._explained("the metrics"):
                sync(self._metrics)
        with self._explained(what), new_folder(place) as folder:
            save_file(
                {name: tensor.contiguous() for name, tensor in checkpoint.tensors.items()},
                folder / _TENSORS,
            )
            # Safetensors makes a file that only its owner can read.
            (folder / _TENSORS).chmod(0o644)
            (folder / _STATE).write_text(json.dumps(checkpoint.state) + "\n")
        self.drop_old(keep=keep)

    def drop_old(self, *, keep: int) -> None:
        """Remove all checkpoints except the newest `keep` and the best one.

        If the removal of a checkpoint was interrupted before, the rest of it is removed too.
        """
        best = self.best_step
        for step in self.steps()[:-keep]:
            if step != best:
                shutil.rmtree(self._place(step))

    @property
    def best_step(self) -> int | None:
        """The step of the best checkpoint; None before the first validation."""
        steps = self.steps()
        schedule = self._state_of(steps[-1]).get("schedule", {}) if steps else {}
        best: int | None = schedule.get("best_step")
        return best

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints, in ascending order."""
        place = self.folder / "checkpoints"
        folders = place.iterdir() if place.exists() else iter(())
        return sorted(int(folder.name) for folder in folders if folder.name.isdigit())

    def load(self, step: int | None = None, *, device: str = "cpu") -> RunCheckpoint:
        """Return the checkpoint of a step; the default is the last one."""
        step = self._present(step)
        try:
            return RunCheckpoint(
                step, load_file(self._place(step) / _TENSORS, device=device), self._state_of(step)
            )
        except (OSError, SafetensorError) as error:
            raise self.unusable(step, error) from error

    def state(self) -> dict[str, Any]:
        """Return the content of state.json of the last checkpoint."""
        return self._state_of(self._present(None))

    def _state_of(self, step: int) -> dict[str, Any]:
        try:
            return _read_json(self._place(step) / _STATE)
        except RunError as error:
            raise self.unusable(step, error) from error

    def unusable(self, step: int, why: object) -> RunError:
        """Return an error with advice about a checkpoint that is damaged or was written by a later version."""
        before = [one for one in self.steps() if one < step]
        way = f"remove its folder to go on from step {before[-1]}" if before else "start a new run"
        return RunError(
            f"the checkpoint {self._place(step)} cannot be used: {why}. It is damaged, or of a later version of zloss; "
            f"use that version, or {way}"
        )

    def _present(self, step: int | None) -> int:
        """Return the step, or the last one for None. A step without a checkpoint is an error."""
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
        """Turn an error of writing into a `RunError` that names the file, the reason and the last checkpoint."""
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


def is_run(folder: Path) -> bool:
    """Return whether a folder has a run, which may have been interrupted."""
    return (folder / CONFIG).is_file()


def _is_metrics(record: Any) -> bool:
    """Return whether a record has the three fields that every line of metrics has."""
    has_kind = isinstance(record, dict) and "kind" in record
    return (
        has_kind
        and isinstance(record.get("step"), int)
        and isinstance(record.get("epoch"), int | float)
    )


def require_utf8(name: str) -> None:
    """Refuse a name that is not UTF-8 now. Safetensors, TensorBoard and SQLite would refuse it later."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise RunError(
            f"the name {name} is not UTF-8, as it must be here: choose another one"
        ) from error


def _event_writer(folder: Path, resumed_at: int | None) -> Any:
    # Imported inside the function, because the import takes a second and most commands write no events.
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
