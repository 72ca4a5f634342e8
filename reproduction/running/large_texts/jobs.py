"""Jobs at the same time, each in a process of its own. A job that fails, or is killed, leaves the others alone.

Processes are spawned, because CUDA does not survive a fork. A terminal sends Ctrl-C to all processes, and other
programs send it to the parent alone. So the processes ignore the signal. Instead, the parent sends each of them a
request to stop, and they act as on Ctrl-C: a training is saved first. They also stop when the parent is gone. A second
Ctrl-C ends them at once.
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

from reproduction.running.large_texts.training_bars import TrainingBars
from reproduction.running.messages import Tell
from zloss_lab.training import TrainingProgress, TrainingWatcher, deferred_interrupt

_SPAWN = multiprocessing.get_context("spawn")
_LOOK_EVERY_S = 0.2  # for Ctrl-C, while no process sends anything
_STOP = "stop"


@dataclass(frozen=True)
class Job:
    """Work for another process. The function is sent there, so it must be a function of a module."""

    name: str
    work: Callable[[TrainingWatcher, Tell], Any]


@dataclass(frozen=True)
class Done:
    """The end of a job that has returned a result."""

    result: Any


@dataclass(frozen=True)
class Failed:
    """The end of a job that has failed, with the reason."""

    why: str


JobOutcome = Done | Failed


def run_at_once(jobs: Sequence[Job], most: int, bars: TrainingBars) -> dict[str, JobOutcome]:
    """Do all jobs in their order, at most `most` at a time; return their outcomes by name.

    On Ctrl-C all jobs are stopped first.
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
        self.outcomes: dict[str, JobOutcome] = {}
        self._most, self._bars, self._is_stopping = most, bars, False
        self._number, self._waiting = len(jobs), deque(jobs)
        self._working: dict[Connection[Any, Any], tuple[Job, SpawnProcess]] = {}

    @property
    def is_busy(self) -> bool:
        """True while a job waits or is being done."""
        return bool(self._waiting or self._working)

    def begin(self) -> None:
        """Begin as many jobs as may run now."""
        while self._waiting and len(self._working) < self._most:
            job = self._waiting.popleft()
            ours, theirs = _SPAWN.Pipe()
            process = _SPAWN.Process(target=_work, args=(job, theirs), name=job.name)
            with _ctrl_c_blocked():
                process.start()
            theirs.close()  # so that the connection ends with the process
            self._working[ours] = job, process
            self._bars.begin(job.name)

    def listen(self) -> None:
        """Receive one message from each process that has sent any."""
        heard = wait(list(self._working), timeout=_LOOK_EVERY_S)
        for connection in [one for one in self._working if one in heard]:
            job, _ = self._working[connection]
            try:
                message = connection.recv()
            except (EOFError, OSError):
                self._note_end(connection)
                continue
            if isinstance(message, TrainingProgress):
                self._bars.show(job.name, message)
            elif isinstance(message, str):
                self._bars.tell(message)
            else:
                self.outcomes[job.name] = message

    def _note_end(self, connection: "Connection[Any, Any]") -> None:
        """Keep the outcome of a process that has ended, and report it."""
        job, process = self._working.pop(connection)
        connection.close()
        process.join()
        if self._is_stopping and job.name not in self.outcomes:
            ending = "stopped"
        else:
            outcome = self.outcomes.setdefault(job.name, Failed(_silent_end(process.exitcode)))
            ended = self._number - len(self._waiting) - len(self._working)
            done = f"done, {ended} of {self._number}"
            ending = done if isinstance(outcome, Done) else outcome.why
        self._bars.end(job.name, ending)

    def ask_to_stop(self) -> None:
        """Ask all processes to stop, but only once: a second request would end a training before it is saved."""
        if self._is_stopping:
            return
        self._is_stopping = True
        self._waiting.clear()
        self._bars.tell("stopping: every training saves first")
        for connection in self._working:
            with suppress(OSError):  # the process has just ended
                connection.send(_STOP)

    def end(self) -> None:
        """End the processes that still run, after an error here or a second Ctrl-C."""
        for connection, (_, process) in self._working.items():
            process.terminate()
            process.join()
            connection.close()


@contextmanager
def _ctrl_c_blocked() -> Iterator[None]:
    """Let processes that are started in the block ignore Ctrl-C from the beginning: they inherit blocked signals.

    Windows cannot block signals. There Ctrl-C arrives twice, and a training goes back to its last checkpoint.
    """
    if sys.platform == "win32":
        yield
        return
    # Otherwise the first process would start the tracker, and that would unblock the signal.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _silent_end(code: int | None) -> str:
    """Return the message about a process that ended without any."""
    how = f"ended with code {code}"
    if code is not None and code < 0:
        how = f"was ended by signal {-code}"
    return f"its process {how}, and has not said why"


# ---- in the other process --------------------------------------------------------------------------------------------


def _work(job: Job, parent: "Connection[Any, Any]") -> None:
    def send(message: object) -> None:
        with suppress(BrokenPipeError):  # the parent is gone; `_obey` stops this process
            parent.send(message)

    def send_warning(message: Warning | str, *_place: object, **_more: object) -> None:
        send(f"{job.name}, warning: {message}")

    warnings.showwarning = send_warning
    with suppress(KeyboardInterrupt):
        # A shell in the background has set the signal to be ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Thread(target=_obey, args=(parent,), daemon=True).start()
        try:
            send(Done(job.work(send, send)))
        except (ValueError, OSError, torch.OutOfMemoryError) as error:
            send(Failed(_first_line(error)))
        except Exception as error:
            send(Failed(f"{type(error).__name__}: {_first_line(error)}"))
            raise  # an error of this program, which is shown in full


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _obey(parent: "Connection[Any, Any]") -> None:
    """Treat every request of the parent, and its end, like Ctrl-C."""
    with suppress(EOFError, OSError):
        while parent.recv() == _STOP:
            interrupt_main()
    interrupt_main()
