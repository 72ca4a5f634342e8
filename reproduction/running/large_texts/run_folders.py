"""The runs of table 2: folders of trainings, which allow an interrupted training to go on.

They are removed when the record of the training is written.
"""

import gc
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from zloss_lab.durable import locked
from zloss_lab.runs import Run, is_run
from zloss_lab.training import Experiment, TrainingWatcher, fit

_LOOK_EVERY_S = 0.2  # for the end of other processes


@dataclass(frozen=True, kw_only=True)
class LargeTextRuns:
    """The folder of all runs of a command."""

    folder: Path
    keeps: bool = False  # runs that have a record
    is_alone: bool = True  # on the device: else the time of a training says nothing about its model

    def place(self, *words: str) -> Path:
        """Return the folder of a run, or of several runs, with these words in its name."""
        return self.folder / "-".join(words)

    def train(self, experiment: Experiment, run: Path, watch: TrainingWatcher | None) -> Run:
        """Begin the run of an experiment, or go on with it."""
        gc.collect()  # the network of the run before may be large, and it refers to itself
        return fit(experiment, run, resume=is_run(run), watch=watch)

    def note_sharing(self, run: Path) -> None:
        """Mark a run that shares its device. The mark stays, even if the run goes on alone later."""
        if not self.is_alone:
            run.parent.mkdir(parents=True, exist_ok=True)
            _sharing_mark(run).touch()

    def was_always_alone(self, run: Path) -> bool:
        """Return whether a run never shared its device."""
        return not _sharing_mark(run).exists()

    def remove(self, run: Path) -> None:
        """Remove a run whose record is written."""
        if not self.keeps:
            shutil.rmtree(run, ignore_errors=True)
            _sharing_mark(run).unlink(missing_ok=True)

    def remove_if_unused(self, folder: Path) -> None:
        """Remove a folder of runs, unless another process has reserved it."""
        if self.keeps:
            return
        with suppress(FileNotFoundError), locked(folder, waits=False) as is_ours:
            if is_ours:
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def reserved(folder: Path) -> Iterator[None]:
    """Use a folder exclusively, and make it first if necessary: the process before may have removed it."""
    while True:
        with ExitStack() as stack:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                is_ours = stack.enter_context(locked(folder, waits=False))
            except FileNotFoundError:
                continue
            if is_ours:
                yield
                return
        # A process that waits inside the lock would not notice a request to stop; see jobs.py.
        time.sleep(_LOOK_EVERY_S)


def _sharing_mark(run: Path) -> Path:
    return run.with_name(f"{run.name}.shared")
