"""Worker processes, in which attempts are made: an attempt that crashes or hangs takes nothing else with it."""

import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

import torch

from tests.campaign.attack import Attack, FellError
from tests.campaign.discovery import attacks_of, make_attempt

_FAULT_CHARACTERS = 2000


@dataclass(frozen=True)
class Task:
    """An attempt to make."""

    key: str
    seed: int


@dataclass(frozen=True)
class Outcome:
    """The end of an attempt; the fault is None if the code has held."""

    task: Task
    fault: str | None
    seconds: float


class Worker:
    """A process that makes one attempt after the other.

    Args:
        modules: the modules that offer the attacks.
        place: a folder for the folders of attempts.
        limit_s: an attempt that takes longer counts as fallen, and its process is ended.
    """

    def __init__(self, modules: Sequence[str], place: Path, limit_s: float) -> None:
        self._modules, self._limit_s = tuple(modules), limit_s
        self._place = Path(tempfile.mkdtemp(dir=place))
        self.task: Task | None = None
        self._since = 0.0
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(
            target=_work, args=(other, self._modules, str(self._place)), daemon=False
        )
        self._process.start()
        other.close()
        try:
            self._connection.recv()  # the imports are done
        except EOFError as error:
            raise RuntimeError("a worker ended while it imported the attacks: see above") from error

    def begin(self, task: Task) -> None:
        """Give a task to the process."""
        self.task, self._since = task, time.perf_counter()
        self._connection.send(task)

    @property
    def seconds(self) -> float:
        """The time since the task began."""
        return time.perf_counter() - self._since

    @property
    def waitables(self) -> tuple[Connection, int]:
        """Objects for `multiprocessing.connection.wait`, which become ready with a report or the end."""
        return self._connection, self._process.sentinel

    def outcome(self) -> Outcome | None:
        """Return the outcome of the task, or None while it is under way."""
        if self.task is None:
            return None
        with suppress(EOFError, ConnectionError):
            if self._connection.poll():
                return self._ended(self._connection.recv())
            if self._process.is_alive() and self.seconds < self._limit_s:
                return None
        if self._process.is_alive() and self.seconds >= self._limit_s:
            return self._restarted(f"it hung for {self._limit_s:g} s")
        self._process.join()
        code = self._process.exitcode or 0
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        return self._restarted(f"it ended its process: {how}")

    def _ended(self, fault: str | None) -> Outcome:
        assert self.task is not None
        outcome = Outcome(self.task, fault, self.seconds)
        self.task = None
        return outcome

    def _restarted(self, fault: str) -> Outcome:
        outcome = self._ended(fault)
        self.close()
        self._place.mkdir()
        self._start()
        return outcome

    def close(self) -> None:
        """End the process and all processes that it has begun, and remove its folder."""
        assert self._process.pid, "it has been started"
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.join()
        self._connection.close()
        shutil.rmtree(self._place, ignore_errors=True)


def wait_for_any(workers: Sequence[Worker], seconds: float) -> None:
    """Wait until a worker reports or ends, at most for some seconds."""
    wait([one for worker in workers for one in worker.waitables], seconds)


def _work(connection: Connection, modules: tuple[str, ...], place: str) -> None:
    os.setsid()  # Ctrl-C is for the campaign, which ends this process with its children
    tempfile.tempdir = os.environ["TMPDIR"] = place
    torch.set_num_threads(1)
    attacks = attacks_of(modules)
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # open as long as the process
    connection.send(None)
    with suppress(EOFError, ConnectionError):
        while True:
            task = connection.recv()
            connection.send(_fault(task, attacks, place))


def _fault(task: Task, attacks: dict[str, Attack], place: str) -> str | None:
    try:
        make_attempt(attacks[task.key], task.seed, Path(place))
    except FellError as error:
        return str(error)[:_FAULT_CHARACTERS]
    except BaseException:
        return traceback.format_exc()[-_FAULT_CHARACTERS:]
    return None
