"""A folder that stays open while files are made in it.

Names are looked up in the opened folder, so another folder at the same path changes nothing. A symbolic link is never
followed. Windows cannot open folders: there the names are looked up at the path of the folder.
"""

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

_HAS_HANDLES = {os.open, os.mkdir, os.rename, os.stat, os.unlink} <= os.supports_dir_fd
# O_NONBLOCK: nobody waits for the other end of a pipe. O_BINARY is of Windows.
_SAFELY = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))


class OpenedFolder:
    """A folder for operations on the names in it, which are names without a path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = None

    def __enter__(self) -> "OpenedFolder":
        if _HAS_HANDLES:
            self._handle = os.open(self.path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
        return self

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            handle, self._handle = self._handle, None
            os.close(handle)

    def open(self, name: str, flags: int) -> int:
        """Return the descriptor of a file. A symbolic link is an error."""
        return os.open(self._at(name), flags | _SAFELY, 0o666, dir_fd=self._handle)

    def make_folder(self, name: str) -> None:
        """Make a folder, which must be new."""
        os.mkdir(self._at(name), dir_fd=self._handle)

    def status(self, name: str) -> os.stat_result:
        """Return what is known about a file, a folder or a link itself."""
        return os.stat(self._at(name), dir_fd=self._handle, follow_symlinks=False)

    def is_link(self, name: str) -> bool:
        """Return whether there is a link of this name."""
        try:
            return stat.S_ISLNK(self.status(name).st_mode)
        except FileNotFoundError:
            return False

    def rename(self, old: str, new: str) -> None:
        """Rename a file or a folder. A file that has the new name already is replaced."""
        os.replace(self._at(old), self._at(new), src_dir_fd=self._handle, dst_dir_fd=self._handle)

    def remove(self, name: str) -> None:
        """Remove a file, a folder with its content, or a link itself, if possible."""
        with suppress(OSError):
            if stat.S_ISDIR(self.status(name).st_mode):
                shutil.rmtree(self._at(name), ignore_errors=True, dir_fd=self._handle)
            else:
                os.unlink(self._at(name), dir_fd=self._handle)

    def names(self) -> list[str]:
        """Return the names of everything in the folder."""
        return os.listdir(self.path if self._handle is None else self._handle)

    def sync(self) -> None:
        """Wait until the names are on the disk. Windows cannot do that."""
        if self._handle is not None:
            os.fsync(self._handle)

    def _at(self, name: str) -> str:
        return str(self.path / name) if self._handle is None else name
