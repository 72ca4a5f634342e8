"""Jobs at the same time, each in a process of its own. One that fails, or is killed, leaves the others alone.

Processes are spawned: CUDA does not survive a fork. A terminal sends Ctrl-C to all processes, others send it to the
parent alone. So the processes never hear of it: the parent asks each of them to stop, and they do as by Ctrl-C, which
saves a training first. They do the same when the parent is gone. A second Ctrl-C ends them at once.
"""

import multiprocessing
import signal
import sys
import threading
import warnings
from _thread import interrupt_main
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

import torch

from reproduction.experiments.display import TrainingBars
from zloss_lab.training import Progress, Watcher, deferred_interrupt

Tell = Callable[[str], None]
_SPAWN = multiprocessing.get_context("spawn")
_LOOK_EVERY_S = 0.2  # whether there was a Ctrl-C, while all are silent
_STOP = "stop"


@dataclass(frozen=True)
class Job:
    """Something to do in another process, to which it is sent: as a function of a module, with what it needs."""

    name: str
    work: Callable[[Watcher, Tell], Any]


@dataclass(frozen=True)
class Done:
    """How a job has ended, with what came of it."""

    result: Any


@dataclass(frozen=True)
class Failed:
    """How a job has ended, and why."""

    why: str


Outcome = Done | Failed


def run_at_once(jobs: Sequence[Job], most: int, bars: TrainingBars) -> dict[str, Outcome]:
    """Do all jobs, at most so many at a time, begun in their order; returns how each has ended, by its name.

    On Ctrl-C all are stopped first.
    """
    crew = _Crew(jobs, most, bars)
    with deferred_interrupt() as is_asked_to_stop:
        try:
            while crew.is_busy:
                if is_asked_to_stop():
                    crew.ask_to_stop()
                crew.begin()
                crew.listen()
        finally:
            crew.end()
        if is_asked_to_stop():
            raise KeyboardInterrupt
    return {job.name: crew.outcomes[job.name] for job in jobs}


class _Crew:
    """The processes that do some jobs, from the parent's side."""

    def __init__(self, jobs: Sequence[Job], most: int, bars: TrainingBars) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self._most, self._bars, self._is_stopping = most, bars, False
        self._number, self._waiting = len(jobs), deque(jobs)
        self._working: dict[Connection[Any, Any], tuple[Job, SpawnProcess]] = {}

    @property
    def is_busy(self) -> bool:
        """Whether there is something to do or to wait for."""
        return bool(self._waiting or self._working)

    def begin(self) -> None:
        """As many as may run now."""
        while self._waiting and len(self._working) < self._most:
            job = self._waiting.popleft()
            ours, theirs = _SPAWN.Pipe()
            process = _SPAWN.Process(target=_work, args=(job, theirs), name=job.name)
            with _deaf_to_ctrl_c():
                process.start()
            theirs.close()  # so that the end of the process is the end of what it sends
            self._working[ours] = job, process
            self._bars.begin(job.name)

    def listen(self) -> None:
        """Hear one message of each that has something to say."""
        heard = wait(list(self._working), timeout=_LOOK_EVERY_S)
        for connection in [one for one in self._working if one in heard]:
            job, _ = self._working[connection]
            try:
                message = connection.recv()
            except (EOFError, OSError):
                self._note_end(connection)
                continue
            if isinstance(message, Progress):
                self._bars.show(job.name, message)
            elif isinstance(message, str):
                self._bars.tell(message)
            else:
                self.outcomes[job.name] = message

    def _note_end(self, connection: "Connection[Any, Any]") -> None:
        job, process = self._working.pop(connection)
        connection.close()
        process.join()
        if self._is_stopping and job.name not in self.outcomes:
            told = "stopped"
        else:
            outcome = self.outcomes.setdefault(job.name, Failed(_silent_end(process.exitcode)))
            ended = self._number - len(self._waiting) - len(self._working)
            told = f"done, {ended} of {self._number}" if isinstance(outcome, Done) else outcome.why
        self._bars.end(job.name, told)

    def ask_to_stop(self) -> None:
        """Once: a second request ends a training before it has saved."""
        if self._is_stopping:
            return
        self._is_stopping = True
        self._waiting.clear()
        self._bars.tell("stopping: every training saves first")
        for connection in self._working:
            with suppress(OSError):  # which has just ended
                connection.send(_STOP)

    def end(self) -> None:
        """Those that still run, after an error here or a second Ctrl-C."""
        for connection, (_, process) in self._working.items():
            process.terminate()
            process.join()
            connection.close()


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """For processes that are started here, from their first moment on: they inherit what is blocked.

    Windows has nothing of the kind. There Ctrl-C comes twice, and a training goes back to its last checkpoint.
    """
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # now: the first process starts it else, and that would lift the block
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _silent_end(code: int | None) -> str:
    """How to tell of a process that has said nothing."""
    how = (
        f"was ended by signal {-code}"
        if code is not None and code < 0
        else f"ended with code {code}"
    )
    return f"its process {how}, and has not said why"


# ---- in the other process --------------------------------------------------------------------------------------------


def _work(job: Job, parent: "Connection[Any, Any]") -> None:
    def send(message: object) -> None:
        with suppress(BrokenPipeError):  # the parent is gone, which asks to stop as well
            parent.send(message)

    def send_warning(message: Warning | str, *_place: object, **_more: object) -> None:
        send(f"{job.name}, warning: {message}")

    warnings.showwarning = send_warning
    with suppress(KeyboardInterrupt):
        signal.signal(
            signal.SIGINT, signal.default_int_handler
        )  # it is ignored where a shell runs in the background
        threading.Thread(target=_heed, args=(parent,), daemon=True).start()
        try:
            send(Done(job.work(send, send)))
        except (ValueError, OSError, torch.OutOfMemoryError) as error:
            send(Failed(_first_line(error)))
        except Exception as error:
            send(Failed(f"{type(error).__name__}: {_first_line(error)}"))
            raise  # nobody has thought of it: it is shown in full


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _heed(parent: "Connection[Any, Any]") -> None:
    """Take every request for Ctrl-C, and the end of the parent too."""
    with suppress(EOFError, OSError):
        while parent.recv() == _STOP:
            interrupt_main()
    interrupt_main()
