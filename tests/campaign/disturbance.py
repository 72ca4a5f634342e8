"""Disturbances of a command: at one of its operations on files, at a size of a file, or after some time.

The functions here run in the process of the command. Python reports operations on files to audit hooks before they
happen. Therefore a hook can end the process there, send it a signal, or let the operation fail as a disk would.
"""

import errno
import functools
import mmap
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

if sys.platform == "linux":
    import resource

# Operations that change files. A full disk refuses the first group only, a read-only one refuses all of them.
_TAKES_ROOM = {"create", "os.mkdir", "os.rename", "fsync"}
_CHANGES = _TAKES_ROOM | {"os.remove", "os.rmdir", "os.chmod", "os.truncate", "os.utime"}
_LOOKS = {"open", "os.listdir", "os.scandir"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_STRUCK = "struck"
FULL, READ_ONLY, BROKEN = (errno.ENOSPC, errno.EDQUOT), (errno.EROFS,), (errno.EIO,)


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """One way to disturb a command.

    Args:
        operation: the number of the operation on files that is struck, counted from 0.
        signal: the process sends itself this signal before the operation.
        error: the operation fails with this error, or else the next one that may fail so.
        lasts: all later operations that may fail so do so too, as on a disk that stays full.
        largest_file: no file can grow beyond this number of bytes.
        dies_of_size: a file that would grow larger ends the process, in the middle of a write.
        signals: pairs of a time in seconds after the start of the command, and a signal.
    """

    operation: int | None = None
    signal: int | None = None
    error: int | None = None
    lasts: bool = False
    largest_file: int | None = None
    dies_of_size: bool = False
    signals: tuple[tuple[float, int], ...] = ()


class OperationLog:
    """The operations on files so far, in memory that outlives the process."""

    _BYTES = 2**21

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, self._BYTES)
        self._end, self._number, self.is_struck = 0, 0, False

    def add(self, text: str) -> int:
        """Note an operation, and return its number."""
        self._note(text)
        self._number += 1
        return self._number - 1

    def strike(self) -> None:
        """Note that the last operation was disturbed."""
        self.is_struck = True
        self._note(_STRUCK)

    def _note(self, text: str) -> None:
        line = os.fsencode(text.replace("\n", " ")) + b"\n"
        if self._end + len(line) <= self._BYTES:
            self._memory[self._end : self._end + len(line)] = line
            self._end += len(line)

    def read(self) -> tuple[list[str], str]:
        """Return all operations, and the one that was disturbed, or nothing."""
        lines = self._memory[:].rstrip(b"\0").decode(errors="replace").splitlines()
        place = lines.index(_STRUCK) if _STRUCK in lines else 0
        return [line for line in lines if line != _STRUCK], lines[place - 1] if place else ""


def disturb(disturbance: Disturbance, folder: str, log: OperationLog) -> None:
    """Let this process be disturbed. Operations on files outside of the folder do not count."""
    if disturbance.largest_file is not None:
        action = signal.SIG_DFL if disturbance.dies_of_size else signal.SIG_IGN
        signal.signal(signal.SIGXFSZ, action)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        limits = (disturbance.largest_file, disturbance.largest_file)
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    def strike(operation: str, path: object) -> None:
        number = log.add(f"{operation} {path}")
        if disturbance.operation is None or number < disturbance.operation:
            return
        if disturbance.error is not None:
            if may_fail(operation, disturbance.error) and (disturbance.lasts or not log.is_struck):
                log.strike()
                raise OSError(disturbance.error, os.strerror(disturbance.error), path)
        elif disturbance.signal is not None and number == disturbance.operation:
            log.strike()
            os.kill(os.getpid(), disturbance.signal)

    sys.addaudithook(functools.partial(_hear, folder, strike))
    # Python informs audit hooks of all operations except this one.
    os.fsync = _reported(os.fsync, strike)  # type: ignore[assignment]


def _hear(folder: str, strike: Callable[[str, object], None], event: str, args: Any) -> None:
    if event == "open":
        path, _, flags = args
        event = "create" if isinstance(flags, int) and flags & _WRITES else "open"
    elif event in _CHANGES or event in _LOOKS:
        path = args[0]
    else:
        return
    if isinstance(path, int):  # the file is open already
        return
    name = os.fsdecode(path) if path is not None else "."
    # A name without a folder belongs to a folder that is open: only the lab has such.
    if name.startswith(folder) or not os.path.isabs(name):
        strike(event, name)


def _reported(
    fsync: Callable[[int], None], strike: Callable[[str, object], None]
) -> Callable[[Any], None]:
    def reporting(handle: Any) -> None:
        strike("fsync", None)
        fsync(handle)

    return reporting


def may_fail(operation: str, error: int) -> bool:
    """Return whether a disk can refuse this kind of operation with this error."""
    if error in FULL:
        return operation in _TAKES_ROOM
    if error in READ_ONLY:
        return operation in _CHANGES - {"fsync"}
    return operation in _CHANGES or operation == "open"
