"""A run: one folder with all files of a training.

    config.json               the configuration with all its fields
    metrics.jsonl             a JSON object on each line: training and validation, with the step
    starts.jsonl              the machines and versions that it was trained with, see `run_starts.py`
    events.out.tfevents...    the same metrics for TensorBoard
    checkpoints/000012000/    tensors.safetensors and state.json

No file needs pickle to be read. The config and each checkpoint are complete or absent. If a run resumes from a
checkpoint, lines of metrics of later steps are removed, because training will write them again.

Checksums cover all that is read again. `checkpoints.py` describes the checksums of a checkpoint, which cover the
metrics before it too. The config may be changed by the user; its checksum tells whether it was.

The last checkpoint names the best one, as `schedule.best_step` in its state.json. The checkpoint of the best step names
itself. So the process may be killed at any moment, and the best checkpoint is still known.
"""

import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from zloss_lab.checkpoints import (
    STATE,
    RunCheckpoint,
    StateFile,
    folder_name,
    read_checkpoint,
    read_state,
    steps_in,
    write_checkpoint,
)
from zloss_lab.checksums import CHECKSUM, sealed, unsealed
from zloss_lab.durable import (
    is_full_disk,
    is_partial,
    locked,
    new_folder,
    sync,
    tidied,
    tidy,
    write_file,
)
from zloss_lab.json_text import read_json_object
from zloss_lab.metrics_file import MetricsFile

CONFIG = "config.json"


class RunError(ValueError):
    """A problem with a run, which the message explains to the user."""


class Run:
    """The folder of a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._metrics = MetricsFile(folder / "metrics.jsonl")
        self._events: Any = None  # TensorBoard's writer, once there is something to write
        self._resumed_at: int | None = None

    def create(self, config: Mapping[str, Any]) -> "Run":
        """Write the config of a new run. An existing run is never overwritten."""
        self.require_new()
        with self._explained("the config"):
            write_file(self.folder / CONFIG, json.dumps(sealed(config), indent=2) + "\n")
        return self

    def require_new(self) -> None:
        """Refuse a folder that is not empty, and a name that cannot be used."""
        require_utf8(str(self.folder))
        if os.path.lexists(self.folder) and not self.folder.is_dir():
            kind = "a file" if self.folder.exists() else "a link to nothing"
            raise RunError(f"{self.folder} is {kind}, a run is a folder: choose another name")
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
        table = self._config_file()
        table.pop(CHECKSUM, None)
        return table

    def require_unchanged_config(self) -> None:
        """Refuse a config that was changed after this class has written it."""
        try:
            unsealed(self._config_file())
        except ValueError as error:
            raise RunError(
                f"{self.folder / CONFIG} cannot be used: {error}, and the run has no checkpoint yet that would tell "
                "what has changed: start a new run, nothing is lost"
            ) from error

    def _config_file(self) -> dict[str, Any]:
        path = self.folder / CONFIG
        try:
            return read_json_object(path)
        except (OSError, ValueError) as error:
            way = "start a new run, nothing is lost"
            if steps := self.steps():
                copy = self._place(steps[-1]) / STATE
                way = f"restore it, {copy} has its values under `config`"
            raise RunError(f"{path} cannot be read: {_reason(error)}; {way}") from error

    # ---- metrics -----------------------------------------------------------------------------------------------------

    def log(self, record: Mapping[str, Any]) -> None:
        """Add a line of metrics, which has a `kind` and a `step`, and write the same for TensorBoard.

        TensorBoard gets no values that are None.
        """
        with self._explained("the metrics"):
            self._metrics.append(record)
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
        steps = self.steps()
        mark = self._state_of(steps[-1]).metrics if steps else None
        with self._metrics_explained():
            return self._metrics.records(mark)

    def forget_after(self, step: int) -> None:
        """Drop the metrics of later steps, because training resumes at this step and will write them again.

        The step is that of a checkpoint, or 0 for a training that begins anew.
        """
        mark = self._state_of(step).metrics if step else None
        if mark is not None and mark.bytes and not self._metrics.path.exists():
            warnings.warn(
                f"{self._metrics.path} is missing: the run goes on without its metrics up to step {step}",
                stacklevel=2,
            )
        with self._explained("the metrics"), self._metrics_explained():
            self._metrics.cut(mark)
        self._resumed_at = step

    @contextmanager
    def _metrics_explained(self) -> Iterator[None]:
        """Turn the refusal of a file of metrics into a `RunError`."""
        try:
            yield
        except ValueError as error:
            raise RunError(str(error)) from error

    # ---- checkpoints -------------------------------------------------------------------------------------------------

    def save(self, checkpoint: RunCheckpoint, *, keep: int) -> None:
        """Write a checkpoint, and remove all but the newest `keep` checkpoints and the best one."""
        place, what = self._place(checkpoint.step), f"the checkpoint of step {checkpoint.step}"
        # A checkpoint must not reach the disk before the metrics of earlier steps.
        if self._metrics.path.exists():
            with self._explained("the metrics"):
                sync(self._metrics.path)
        with self._explained(what), new_folder(place) as folder:
            write_checkpoint(folder, checkpoint, self._metrics.mark())
        self.drop_old(keep=keep)

    def drop_old(self, *, keep: int) -> None:
        """Remove all checkpoints except the newest `keep` and the best one, and what killed processes have left."""
        tidy(self.folder / "checkpoints")
        best = self.best_step
        for step in self.steps()[:-keep]:
            if step != best:
                shutil.rmtree(self._place(step))

    @property
    def best_step(self) -> int | None:
        """The step of the best checkpoint; None before the first validation."""
        steps = self.steps()
        return self._state_of(steps[-1]).schedule.best_step if steps else None

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints, in ascending order."""
        return steps_in(self.folder / "checkpoints")

    def load(self, step: int | None = None, *, device: str = "cpu") -> RunCheckpoint:
        """Return the checkpoint of a step, whose checksums have been verified; the default is the last one."""
        step = self._present(step)
        try:
            return read_checkpoint(self._place(step), device)
        except (OSError, ValueError, SafetensorError) as error:
            raise self.unusable(step, error) from error

    def state(self) -> StateFile:
        """Return the state of the last checkpoint."""
        return self._state_of(self._present(None))

    def _state_of(self, step: int) -> StateFile:
        try:
            return read_state(self._place(step))
        except (OSError, ValueError) as error:
            raise self.unusable(step, error) from error

    def unusable(self, step: int, why: object) -> RunError:
        """Return an error with advice about a checkpoint that is damaged or was written by a later version."""
        others = [one for one in self.steps() if one != step]
        way = f"remove its folder to go on from step {others[-1]}" if others else "start a new run"
        return RunError(
            f"the checkpoint {self._place(step)} cannot be used: {_reason(why)}. It is damaged, or of a later version "
            f"of zloss; use that version, or {way}"
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
        return self.folder / "checkpoints" / folder_name(step)

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Turn an error of writing into a `RunError` that names the file, the reason and the last checkpoint."""
        try:
            yield
        except (OSError, SafetensorError) as error:
            reason = "the disk is full" if is_full_disk(error) else _reason(error)
            steps = self.steps()
            rest = f"; the checkpoint of step {steps[-1]} is there, resume from it" if steps else ""
            raise RunError(
                f"{what} of {self.folder} could not be written, {reason}{rest}"
            ) from error


def is_run(folder: Path) -> bool:
    """Return whether a folder has a run, which may have been interrupted."""
    return (folder / CONFIG).is_file()


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


def _reason(error: object) -> str:
    """Return the system's words for an error of a file, else the message."""
    return getattr(error, "strerror", None) or str(error)
