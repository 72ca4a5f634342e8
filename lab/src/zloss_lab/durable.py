"""Files and folders that are there in whole or not at all: written beside their place, synced, then renamed."""

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
    """Replace the file at once; what was there stays until the new one is complete. Others that write it wait.

    A device or a pipe is written to: in its place a file would be the end of it.
    """
    content = data.encode() if isinstance(data, str) else data
    with _blamed_on(path):
        if path.exists() and not (path.is_file() or path.is_dir()):
            path.write_bytes(content)
            return
        with _new_file(path, waits=True) as partial:
            partial.write_bytes(content)


def new_file(path: Path) -> AbstractContextManager[Path]:
    """A file to write, which takes its name when the block is left without an error, and vanishes otherwise.

    What a process left that was killed in between is to be written over. One that is at it is not disturbed.
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
    """Have something unfinished to oneself, new or left by a process that was killed. Others wait, or are refused."""
    while True:
        make()
        with ExitStack() as stack:
            try:
                is_ours = stack.enter_context(locked(partial, waits=waits))
            except FileNotFoundError:  # whoever had it has finished
                continue
            if not is_ours:
                raise BlockingIOError(
                    errno.EAGAIN, "another process is writing it: wait until it is there"
                )
            yield
            return


@contextmanager
def _takes_its_name(partial: Path, path: Path) -> Iterator[None]:
    """What the block writes is synced and renamed, or removed where that fails."""
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
    """A folder to fill, which takes its name when the block is left without an error, and vanishes otherwise.

    Leftovers of a process that was killed in between are removed on the way. One that is at it is not disturbed.
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
    """Of this folder and those above it, what the block has made and left empty goes when it ends."""
    absent = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        yield
    finally:
        with suppress(OSError):  # the first that is not empty, or was not made after all, ends it
            for place in absent:
                place.rmdir()


@contextmanager
def locked(place: Path, *, waits: bool = True) -> Iterator[bool]:
    """Have a folder or a file to oneself, among processes that ask for it so; yields whether it is.

    Whoever had it before may have moved it, and another one may stand in its place: that is a `FileNotFoundError`.
    The lock is the system's, on the place itself: it ends with the process, and leaves no file. Where there are no
    such locks, as on Windows and on some network drives, everybody has it.
    """
    if sys.platform == "win32":
        yield True
        return
    handle = os.open(
        place, os.O_RDONLY if place.is_dir() else os.O_RDWR
    )  # network drives lock what may be written
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
    except OSError:  # no locks here
        return True
    return True


def require_writable(folder: Path) -> None:
    """Fail now, not when the work is done that was to be written there."""
    with _blamed_on(folder), tidied(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass


@contextmanager
def _blamed_on(path: Path) -> Iterator[None]:
    """An error of the system names what the user knows, not what was to be written beside it for a while."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


def is_partial(path: Path) -> bool:
    """Whether this is something that was never finished."""
    return path.name.startswith(_PARTIAL)


def is_full_disk(error: Exception) -> bool:
    """Whether there was no room to write. Libraries that are not Python's may have no more than a message of it."""
    numbers = (errno.ENOSPC, errno.EDQUOT)
    is_told = any(os.strerror(number) in str(error) for number in numbers)
    return error.errno in numbers if isinstance(error, OSError) else is_told


def sync(path: Path) -> None:
    """Wait until a file is on the disk."""
    with path.open("rb+") as file:  # Windows syncs only what may be written
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    if os.name == "nt":  # folders cannot be opened there
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
