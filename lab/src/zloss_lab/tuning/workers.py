"""Who works on a study, and who no longer does.

A trial carries the name of the process that runs it. That process leaves the time in the study every minute. A trial
is abandoned when its process is known to be gone, on the same machine at once, or has not been heard of for long. A
worker that comes along marks it as failed, so that nobody waits for it and its neighbourhood is searched again. A
process that was there all the same, behind a broken network, lets go of the trial when it finds out.
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

WORKER = "worker"  # the attribute of a trial
_EVERY_S = 60.0
_SILENCE_S = 900.0
GIVEN_UP = "another worker has given it up: this one was not heard of for too long"
# Tells this process from one with the same number before it, such as that of a container that was restarted.
_OWN_MARK = uuid.uuid4().hex[:8]


def own_name() -> str:
    """This process, as a worker."""
    return f"{socket.gethostname()}:{os.getpid()}:{_OWN_MARK}"


@contextmanager
def signs_of_life(study: Study) -> Iterator[None]:
    """Tell the study from time to time that this worker is there."""
    name, is_over = own_name(), threading.Event()

    def tell() -> None:
        while not is_over.wait(_EVERY_S):
            # A storage that fails now may do so no more in a minute. If it does, those hear of it who need it.
            with suppress(Exception):
                study.set_user_attr(name, time.time())

    study.set_user_attr(name, time.time())
    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def abandoned(study: Study) -> list[FrozenTrial]:
    """The trials that nobody works on any more."""
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
    # Of one that has not yet said so, or was killed before it could. This process is not beginning any.
    others = [name for name in heard if name != own_name()]
    return _is_long_ago(started) or all(_is_lost(name, heard[name]) for name in others)


def _is_lost(worker: str, last_heard: float) -> bool:
    return _is_gone(worker) or _is_long_ago(last_heard)


def _is_long_ago(moment: float) -> bool:
    return time.time() - moment > _SILENCE_S


def _is_gone(worker: str) -> bool:
    """Whether it is known to have ended: only that of a process on the same machine can be."""
    host, pid, mark = worker.rsplit(":", 2)
    if host != socket.gethostname() or os.name == "nt":  # where asking for a process would end it
        return False
    if int(pid) == os.getpid():
        return mark != _OWN_MARK
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # of another user
        return False
    return False
