"""Files and folders that appear complete or not at all.

They are written under a temporary name in the same folder, synced to the disk, and then renamed. Everything temporary
begins with `.partial-`:

    .partial-NAME-0123456789abcdef    the content, under a random name that nothing had before
    .partial-NAME.lock                an empty file, locked by the process that writes NAME

Nobody can plant a link or a file at a random name in advance. A link at the name of the lock is refused. A process that
was killed leaves both files, and the next writer of NAME removes them.
"""

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from io import BufferedRandom
from pathlib import Path

from zloss_lab.opened_folder import OpenedFolder
from zloss_lab.writer_locks import PARTIAL, only_writer, remove_leftovers, temporary_name
from zloss_lab.writer_locks import locked as locked


def write_file(path: Path, data: bytes | str) -> None:
    """Replace a file in one moment: the old content stays until the new content is complete.

    Other processes that write the same file wait. A device or a pipe is written to directly, because a rename would
    replace it by an ordinary file.
    """
    content = data.encode() if isinstance(data, str) else data
    with _blamed_on(path):
        if path.exists() and not (path.is_file() or path.is_dir()):
            _write_to_device(path, content)
            return
        with _new_file(path, waits=True) as file:
            file.write(content)


def _write_to_device(path: Path, content: bytes) -> None:
    """Write to a device or a pipe. A pipe that nobody reads is an error, because it would wait for ever."""
    try:
        handle = os.open(path, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise OSError(errno.ENXIO, "nobody reads this pipe: start its reader first") from error
    with open(handle, "wb", buffering=0) as file:
        if stat.S_ISREG(os.fstat(handle).st_mode):
            raise FileExistsError(errno.EEXIST, "another program put a file here just now")
        if hasattr(os, "set_blocking"):  # Windows has it from Python 3.12 on
            os.set_blocking(handle, True)
        rest = memoryview(content)
        while rest:
            rest = rest[file.write(rest) or 0 :]


def append_to_file(path: Path, data: bytes) -> None:
    """Add bytes to the end of a file, which is made if necessary. A link is refused: it may lead to any file."""
    with _blamed_on(path), OpenedFolder(path.parent) as folder:
        try:
            handle = folder.open(path.name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        except OSError as error:
            if not folder.is_link(path.name):
                raise
            raise FileExistsError(
                errno.EEXIST, f"{path.name} is a link: remove it, or put the file itself there"
            ) from error
        with open(handle, "wb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise FileExistsError(errno.EEXIST, f"{path.name} is a pipe or a device: remove it")
            file.write(data)


def new_file(path: Path) -> AbstractContextManager[BufferedRandom]:
    """Yield an empty temporary file to write. It gets its name when the block ends without an error, else it is gone.

    If another process is writing the same file, this raises `BlockingIOError`.
    """
    return _new_file(path, waits=False)


@contextmanager
def _new_file(path: Path, *, waits: bool) -> Iterator[BufferedRandom]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        OpenedFolder(path.parent) as folder,
        only_writer(folder, path.name, waits=waits),
        _temporary(folder, path.name) as partial,
    ):
        handle = folder.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        with open(handle, "w+b") as file:
            yield file
            file.flush()
            os.fsync(handle)
            made = os.fstat(handle)
        _give_name(folder, partial, made, path.name)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder to fill. It gets its name when the block ends without an error, else it is removed.

    Leftovers of a process that was killed are removed first. If another process is filling the same folder, this
    raises `BlockingIOError`.
    """
    with tidied(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            OpenedFolder(path.parent) as folder,
            only_writer(folder, path.name, waits=False),
            _temporary(folder, path.name) as partial,
        ):
            folder.make_folder(partial)
            made = folder.status(partial)
            yield path.parent / partial
            _sync_all(path.parent / partial)
            _give_name(folder, partial, made, path.name)


def tidy(folder: Path) -> None:
    """Remove what killed processes have left in a folder of names that may never be written again."""
    if folder.is_dir():
        with OpenedFolder(folder) as opened:
            remove_leftovers(opened)


@contextmanager
def _temporary(folder: OpenedFolder, name: str) -> Iterator[str]:
    """Yield a random name. What has this name after an error is removed."""
    partial = temporary_name(name)
    try:
        yield partial
    except BaseException:
        folder.remove(partial)
        raise


def _give_name(folder: OpenedFolder, partial: str, made: os.stat_result, name: str) -> None:
    """Rename what was made, and refuse anything else that has its temporary name now."""
    if not os.path.samestat(folder.status(partial), made):
        raise FileExistsError(
            errno.EEXIST, f"another program put something else at {partial}: it was not renamed"
        )
    folder.rename(partial, name)
    folder.sync()


# ---- folders and the disk --------------------------------------------------------------------------------------------


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
    return path.name.startswith(PARTIAL)


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


def _sync_all(folder: Path) -> None:
    """Wait until a folder is on the disk, with the files and folders in it."""
    for place in (folder, *folder.rglob("*")):
        if place.is_symlink():
            continue
        if place.is_file():
            sync(place)
        elif place.is_dir():
            with OpenedFolder(place) as opened:
                opened.sync()
