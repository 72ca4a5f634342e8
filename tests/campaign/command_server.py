"""A process that has imported everything, and forks a process for each command.

`python -m tests.campaign.command_server` starts it.

An import of torch takes seconds, and a fork takes milliseconds. A request is a JSON object on a line of the standard
input. The reply is one on a line of the standard output. `warm_commands.py` has the other side.
"""

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any

import matplotlib
import optuna
import torch
import torch.utils.tensorboard  # imported by the first metrics of a run

from tests.campaign.disturbance import Disturbance, OperationLog, disturb
from zloss_lab import cli

_PIPE_BYTES = 2**20  # nobody reads before the end: more output would block the command
_HELD_BACK = {signal.SIGINT, signal.SIGTERM}
_UNEXPECTED = 70  # the exit status of a command that ended with an exception


def main() -> None:
    """Answer requests until the standard input ends."""
    torch.set_num_threads(1)  # threads would not exist in a forked process
    matplotlib.use("agg")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        answer = _mount(**request) if "mount" in request else _run(**request)
        print(json.dumps(answer), file=replies, flush=True)


def _mount(mount: list[str]) -> dict[str, Any]:
    """Mount or unmount something for this process and its children only."""
    done = subprocess.run(mount, capture_output=True, text=True)
    return {"status": done.returncode, "stderr": done.stderr}


def _run(
    arguments: list[str], folder: str, disturbance: dict[str, Any], limit_s: float
) -> dict[str, Any]:
    """Run a command to its end, and return what a shell would see of it."""
    plan, log = Disturbance(**disturbance), OperationLog()
    outputs = [_wide_pipe() for _ in range(2)]
    begun, begins = os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_BACK)
    process = os.fork()
    if not process:
        _become(arguments, folder, plan, log, [end for _, end in outputs], begins)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD_BACK)
    for end in (begins, *(end for _, end in outputs)):
        os.close(end)
    os.read(begun, 1)
    os.close(begun)
    start = time.perf_counter()
    status = _wait(process, plan.signals, start, limit_s)
    stdout, stderr = (_read_all(beginning) for beginning, _ in outputs)
    operations, struck = log.read()
    return {
        "status": status,
        "seconds": time.perf_counter() - start,
        "operations": operations,
        "struck": struck,
        "stdout": stdout,
        "stderr": stderr,
    }


def _become(
    arguments: list[str],
    folder: str,
    plan: Disturbance,
    log: OperationLog,
    outputs: list[int],
    begins: int,
) -> None:
    """Run the command in this process, and end it."""
    status = _UNEXPECTED
    try:
        for number, end in enumerate(outputs, start=1):
            os.dup2(end, number)
        # The old objects still take the pipes for what was open before.
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(folder)
        sys.argv = ["zloss", *arguments]
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        disturb(plan, folder, log)
        os.write(begins, b".")
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD_BACK)
        try:
            cli.main()
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_BACK)
    except SystemExit as end_of_command:
        code = end_of_command.code
        status = code if isinstance(code, int) else 0 if code is None else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _wait(
    process: int, signals: tuple[tuple[float, int], ...], start: float, limit_s: float
) -> int | None:
    """Send the signals, and return the exit status; a negative one is a signal, None stands for a process that hung."""
    handle = os.pidfd_open(process)
    try:
        for delay, number in signals:
            if _has_ended(handle, start + delay):
                break
            os.kill(process, number)
        has_hung = not _has_ended(handle, start + limit_s)
        if has_hung:
            os.kill(process, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        return None if has_hung else status
    finally:
        os.close(handle)


def _has_ended(handle: int, moment: float) -> bool:
    """Wait until the process ends or the moment is there."""
    return bool(select.select([handle], [], [], max(0.0, moment - time.perf_counter()))[0])


def _wide_pipe() -> tuple[int, int]:
    beginning, end = os.pipe()
    fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return beginning, end


def _read_all(beginning: int) -> str:
    with os.fdopen(beginning, "rb") as file:
        os.set_blocking(beginning, False)  # a process that was killed may have left children
        return (file.read() or b"").decode(errors="replace")


if __name__ == "__main__":
    main()
