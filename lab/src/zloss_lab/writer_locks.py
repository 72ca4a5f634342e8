"""Locks of files and folders among processes, and the names of what is temporary.

The writer of a name locks the empty file `.partial-NAME.lock`. Its content is `.partial-NAME-0123456789abcdef`, with
random digits. The operating system ends a lock with the process that holds it.
"""

import errno
import hashlib
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from zloss_lab.opened_folder import OpenedFolder

if sys.platform != "win32":
    import fcntl

PARTIAL = ".partial-"
_LONGEST_NAME = 200  # bytes; file systems take 255, with the prefix and the random digits
# Where there are no locks, something temporary without a change for so long is left by a killed process.
_LONG_UNCHANGED_S = 24 * 3600


def temporary_name(name: str) -> str:
    """Return a random name for the content of a file or folder, until it is complete."""
    return f"{PARTIAL}{_stem(name)}-{secrets.token_hex(8)}"


@contextmanager
def only_writer(folder: OpenedFolder, name: str, *, waits: bool) -> Iterator[None]:
    """Lock a name among its writers. Then remove what writers that were killed have left.

    Another process that wants the same name waits, or gets a `BlockingIOError` if it does not wait. The lock file goes
    after everything else. So there is nothing to remove if it is new.
    """
    if sys.platform == "win32":
        _remove_leftovers(folder, name, has_locks=False)
        yield
        return
    lock = f"{PARTIAL}{_stem(name)}.lock"
    while True:
        handle, is_new = _open_lock(folder, lock)
        try:
            is_ours = _locks(handle, waits=waits)
            if is_ours is False:
                raise BlockingIOError(
                    errno.EAGAIN, "another process is writing it: wait until it is there"
                )
            if not _has_name(folder, lock, handle):  # the process that held the lock has finished
                continue
            try:
                if not is_new:
                    _remove_leftovers(folder, name, has_locks=is_ours is not None)
                yield
            finally:
                folder.remove(lock)
            return
        finally:
            os.close(handle)


def remove_leftovers(folder: OpenedFolder) -> None:
    """Remove what killed writers have left of any name. A name that somebody writes at the moment is left alone."""
    locks = re.compile(re.escape(PARTIAL) + r"(.+)\.lock")
    for lock in filter(None, map(locks.fullmatch, folder.names())):
        with suppress(OSError), only_writer(folder, lock[1], waits=False):
            pass


def _open_lock(folder: OpenedFolder, lock: str) -> tuple[int, bool]:
    """Return the descriptor of a lock file, and whether the file is new. Anything else at its name is refused."""
    while True:
        # Network drives lock a file only if it is open for writing.
        with suppress(FileExistsError):
            return folder.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL), True
        try:
            handle = folder.open(lock, os.O_RDWR)
        except FileNotFoundError:  # the process that held the lock has just finished
            continue
        except OSError as error:
            if stat.S_ISREG(folder.status(lock).st_mode):
                raise
            raise _foreign(lock) from error
        status = os.fstat(handle)
        if stat.S_ISREG(status.st_mode) and not status.st_size and status.st_nlink <= 1:
            return handle, False
        os.close(handle)
        raise _foreign(lock)


def _foreign(lock: str) -> OSError:
    return FileExistsError(
        errno.EEXIST, f"{lock} in its folder is in the way, and no lock file of zloss: remove it"
    )


def _has_name(folder: OpenedFolder, name: str, handle: int) -> bool:
    try:
        return os.path.samestat(folder.status(name), os.fstat(handle))
    except FileNotFoundError:
        return False


def _remove_leftovers(folder: OpenedFolder, name: str, *, has_locks: bool) -> None:
    """Remove temporary files and folders of a name, which nobody writes any more. Links are left alone."""
    ours = re.compile(re.escape(f"{PARTIAL}{_stem(name)}-") + "[0-9a-f]{16}")
    for found in filter(ours.fullmatch, folder.names()):
        with suppress(FileNotFoundError):
            status = folder.status(found)
            is_plain = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
            is_old = has_locks or status.st_mtime < time.time() - _LONG_UNCHANGED_S
            if is_plain and is_old:
                folder.remove(found)


def _stem(name: str) -> str:
    """Return a name, or its checksum if the name is too long for additions."""
    encoded = os.fsencode(name)
    return name if len(encoded) <= _LONGEST_NAME else hashlib.sha256(encoded).hexdigest()


@contextmanager
def locked(place: Path, *, waits: bool = True) -> Iterator[bool]:
    """Lock a folder or a file among the processes that call this function. Yields True if the lock was obtained.

    The previous holder of the lock may have renamed the file or folder: that raises `FileNotFoundError`.
    The operating system holds the lock on the file or folder itself, so it ends with the process and leaves no file.
    Windows and some network drives do not support such locks: there every process obtains the lock.
    """
    if sys.platform == "win32":
        yield True
        return
    # Network drives lock a file only if it is open for writing.
    handle = os.open(place, os.O_RDONLY if place.is_dir() else os.O_RDWR)
    try:
        is_ours = _locks(handle, waits=waits) is not False
        if is_ours and not os.path.samestat(os.fstat(handle), os.stat(place)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(place))
        yield is_ours
    finally:
        os.close(handle)


def _locks(handle: int, *, waits: bool) -> bool | None:
    """Return whether the lock was obtained, or None if the file system has no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
