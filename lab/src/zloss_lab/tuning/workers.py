"""Workers: the processes that train the trials of a study.

A trial holds the name of its worker. Every worker writes the time into the storage of the study once a minute.

A trial is abandoned when its worker has ended, or has written no time for 15 minutes. That a worker has ended can only
be seen on the same machine. The next worker marks an abandoned trial as failed. Then no worker waits for it, and
similar hyper-parameters may be tried again.

A worker behind a broken network may be taken for dead. It stops its trial when it finds out.
"""

import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

WORKER = "worker"  # the attribute of a trial with the name of its worker
_EVERY_S = 60.0
_SILENCE_S = 900.0
GIVEN_UP = "another worker has given it up: this one was not heard of for too long"
# Distinguishes this process from an earlier one with the same number, such as in a container that was restarted.
_OWN_MARK = uuid.uuid4().hex[:8]


def own_name() -> str:
    """Return the name of this process as a worker."""
    return f"{socket.gethostname()}:{os.getpid()}:{_OWN_MARK}"


@contextmanager
def signs_of_life(study: Study) -> Iterator[None]:
    """Write the time into the storage once a minute, until the end of the block."""
    name, is_over = own_name(), threading.Event()

    def write_regularly() -> None:
        while not is_over.wait(_EVERY_S):
            # A storage that fails now may work in a minute. If it does not, the next write of a score raises the error.
            with suppress(Exception):
                study.set_user_attr(name, time.time())

    study.set_user_attr(name, time.time())
    thread = threading.Thread(target=write_regularly, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def abandoned(study: Study) -> list[FrozenTrial]:
    """Return the running trials whose workers have ended or are silent."""
    running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    if not running:
        return []
    heard = {name: value for name, value in study.user_attrs.items() if isinstance(value, float)}
    return [trial for trial in running if _is_abandoned(trial, heard)]


def _is_abandoned(trial: FrozenTrial, heard: dict[str, float]) -> bool:
    started = 0.0 if trial.datetime_start is None else trial.datetime_start.timestamp()
    worker = trial.user_attrs.get(WORKER)
    if worker is not None:
        return _is_lost(worker, heard.get(worker, started))
    # Some worker has begun this trial, but has not written its name yet or was killed before. It is not this process.
    others = [name for name in heard if name != own_name()]
    return _is_long_ago(started) or all(_is_lost(name, heard[name]) for name in others)


def _is_lost(worker: str, last_heard: float) -> bool:
    return _is_gone(worker) or _is_long_ago(last_heard)


def _is_long_ago(moment: float) -> bool:
    return time.time() - moment > _SILENCE_S


def _is_gone(worker: str) -> bool:
    """Return whether a worker is known to have ended. This can only be known on the same machine."""
    host, pid, mark = worker.rsplit(":", 2)
    # On Windows, `os.kill` would end the process.
    if host != socket.gethostname() or os.name == "nt":
        return False
    if int(pid) == os.getpid():
        return mark != _OWN_MARK
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # it is a process of another user
        return False
    return False
