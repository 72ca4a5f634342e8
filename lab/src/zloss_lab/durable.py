"""Files and folders that appear complete or not at all.

They are written under a temporary name in the same folder, synced to the disk, and then renamed.
"""

import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

if sys.platform != "win32":
    import fcntl

_PARTIAL = ".partial-"


def write_file(path: Path, data: bytes | str) -> None:
    """Replace a file in one moment: the old content stays until the new content is complete.

    Other processes that write the same file wait. A device or a pipe is written to directly, because a rename would
    replace it by an ordinary file.
    """
    content = data.encode() if isinstance(data, str) else data
    with _blamed_on(path):
        if path.exists() and not (path.is_file() or path.is_dir()):
            path.write_bytes(content)
            return
        with _new_file(path, waits=True) as partial:
            partial.write_bytes(content)


def new_file(path: Path) -> AbstractContextManager[Path]:
    """Yield a temporary file to write. It gets its name when the block ends without an error, else it is removed.

    The file may already have content, left by a process that was killed: write over it. If another process is writing
    the same file, this raises `BlockingIOError`.
    """
    return _new_file(path, waits=False)


@contextmanager
def _new_file(path: Path, *, waits: bool) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.parent / f"{_PARTIAL}{path.name}"
    with _taken(partial, partial.touch, waits=waits), _takes_its_name(partial, path):
        yield partial


@contextmanager
def _taken(partial: Path, make: Callable[[], None], *, waits: bool) -> Iterator[None]:
    """Lock a temporary file or folder, which is new or left by a process that was killed.

    Another process that wants the same one waits, or gets a `BlockingIOError` if it does not wait.
    """
    while True:
        make()
        with ExitStack() as stack:
            try:
                is_ours = stack.enter_context(locked(partial, waits=waits))
            except FileNotFoundError:  # the process that held the lock has finished and renamed it
                continue
            if not is_ours:
                raise BlockingIOError(
                    errno.EAGAIN, "another process is writing it: wait until it is there"
                )
            yield
            return


@contextmanager
def _takes_its_name(partial: Path, path: Path) -> Iterator[None]:
    """Sync and rename the temporary file after the block, or remove it if something fails."""
    try:
        yield
        sync(partial)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder to fill. It gets its name when the block ends without an error, else it is removed.

    Leftovers of a process that was killed are removed first. If another process is filling the same folder, this
    raises `BlockingIOError`.
    """
    partial = path.parent / f"{_PARTIAL}{path.name}"
    with (
        tidied(path.parent),
        _taken(partial, lambda: partial.mkdir(parents=True, exist_ok=True), waits=False),
    ):
        try:
            for leftover in partial.iterdir():
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
            yield partial
            for place in (partial, *partial.rglob("*")):
                (_sync_folder if place.is_dir() else sync)(place)
            os.replace(partial, path)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        _sync_folder(path.parent)


@contextmanager
def tidied(folder: Path) -> Iterator[None]:
    """Remove folders that the block has made and left empty: this folder and the folders above it."""
    absent = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        yield
    finally:
        with suppress(OSError):  # stops at the first folder that is not empty or was never made
            for place in absent:
                place.rmdir()


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
        is_ours = _locks(handle, waits=waits)
        if is_ours and not os.path.samestat(os.fstat(handle), os.stat(place)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(place))
        yield is_ours
    finally:
        os.close(handle)


def _locks(handle: int, *, waits: bool) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:  # this file system has no locks
        return True
    return True


def require_writable(folder: Path) -> None:
    """Raise an error now if the folder cannot be written to, and not after hours of work."""
    with _blamed_on(folder), tidied(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass


@contextmanager
def _blamed_on(path: Path) -> Iterator[None]:
    """Put the name that the user knows into an `OSError`, in place of the name of the temporary file."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


def is_partial(path: Path) -> bool:
    """Return whether this is a temporary file or folder that was never finished."""
    return path.name.startswith(_PARTIAL)


def is_full_disk(error: Exception) -> bool:
    """Return whether the disk is full. Libraries in other languages report that in the text of an error only."""
    numbers = (errno.ENOSPC, errno.EDQUOT)
    if isinstance(error, OSError):
        return error.errno in numbers
    return any(os.strerror(number) in str(error) for number in numbers)


def sync(path: Path) -> None:
    """Wait until a file is on the disk."""
    with path.open("rb+") as file:  # Windows syncs only files that are open for writing
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    if os.name == "nt":  # Windows cannot open folders
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
