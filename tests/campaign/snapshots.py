"""The state of a folder with all that is in it, to find out what an attempt has changed."""

import os
import stat
from pathlib import Path
from typing import NamedTuple

from tests.campaign.attack import FellError


class State(NamedTuple):
    """What a file, a folder or a link is."""

    mode: int  # kind and permissions
    inode: int
    content: bytes | str | None  # of a file, or the target of a link


Snapshot = dict[str, State]


def snapshot(folder: Path, *, without: Path | None = None) -> Snapshot:
    """Return kind, permissions and content of everything in a folder, by its path. Links are not followed."""
    found: Snapshot = {}
    for above, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(above, name)
            if without is not None and Path(path) == without:
                continue
            status = os.lstat(path)
            content: bytes | str | None = None
            if stat.S_ISREG(status.st_mode):
                with open(path, "rb") as file:
                    content = file.read()
            elif stat.S_ISLNK(status.st_mode):
                content = os.readlink(path)
            found[path] = State(status.st_mode, status.st_ino, content)
        folders[:] = [name for name in folders if Path(above, name) != without]
    return found


def require_unchanged(before: Snapshot, after: Snapshot) -> None:
    """Raise `FellError` if anything was added, removed or changed."""
    added, removed = sorted(after.keys() - before.keys()), sorted(before.keys() - after.keys())
    changed = [path for path in before.keys() & after.keys() if before[path] != after[path]]
    if added or removed or changed:
        raise FellError(f"added {added}, removed {removed}, changed {changed}")
