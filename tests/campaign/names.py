"""Hostile names of targets, and things planted where a command writes: nothing else may change.

What is planted leads to a folder beside the target. A command writes the target right, or ends with one error and
leaves nothing.
"""

import contextlib
import functools
import hashlib
import io
import os
import random
import stat
from collections.abc import Iterator
from pathlib import Path

from tests.campaign.attack import Attack, FellError
from tests.campaign.hostile_names import odd_name
from tests.campaign.process_folder import process_folder
from tests.campaign.snapshots import Snapshot, require_unchanged, snapshot
from tests.lab.command_line import prepared_run, zloss
from zloss_lab import durable

_LONGEST = 200  # bytes of a name, from which on temporary names have its checksum
_CONTENT = "new words"


def _outside(folder: Path) -> Path:
    place = folder / "outside"
    (place / "full").mkdir(parents=True)
    (place / "full" / "secret").write_text("precious")
    (place / "empty").mkdir()
    (place / "secret").write_text("precious")
    (place / "nothing").touch()
    return place


def _temporary(chance: random.Random, name: str) -> str:
    """Return a name that a writer of this name uses, used once, or might use."""
    encoded = os.fsencode(name)
    stem = name if len(encoded) <= _LONGEST else hashlib.sha256(encoded).hexdigest()
    digits = chance.choice(["0" * 16, "0123456789abcdef", chance.randbytes(8).hex()])
    return chance.choice([f".partial-{stem}", f".partial-{stem}.lock", f".partial-{stem}-{digits}"])


def _plant(chance: random.Random, place: Path, outside: Path) -> None:
    """Make a link, a pipe, a file or a folder at a free place, if its name is possible."""
    if os.path.lexists(os.fsencode(place)):
        return
    aim = outside / chance.choice(["", "full", "empty", "secret", "nothing", "absent"])
    kind = chance.choice(
        ["link", "link", "link", "relative link", "hard link", "pipe", "file", "folder", "loop"]
    )
    with contextlib.suppress(OSError, ValueError):
        if kind == "link":
            place.symlink_to(aim)
        elif kind == "relative link":
            place.symlink_to(os.path.relpath(aim, place.parent))
        elif kind == "hard link":
            place.hardlink_to(outside / chance.choice(["secret", "nothing"]))
        elif kind == "pipe":
            os.mkfifo(place)
        elif kind == "file":
            place.write_text(chance.choice(["", "old words"]))
        elif kind == "folder":
            place.mkdir()
            (place / "link").symlink_to(aim)
        else:
            place.symlink_to(place.name)


class _Scene:
    """A folder with a target that has a hostile name, planted things, and a folder outside."""

    def __init__(self, chance: random.Random, folder: Path, *, ending: str = "") -> None:
        self.folder, self.outside = folder, _outside(folder)
        name = odd_name(chance)
        # A short part of a long name, so that the ending does not make it too long.
        self.target = (
            folder / "place" / (os.fsdecode(os.fsencode(name)[:240]) + ending if ending else name)
        )
        self.target.parent.mkdir()
        self.text = folder / "text.txt"
        self.text.write_text("the cat sat\n" * 40)
        for _ in range(chance.randint(1, 3)):
            _plant(chance, self.target.parent / _temporary(chance, self.target.name), self.outside)
        if chance.random() < 0.4:
            _plant(chance, self.target, self.outside)
        self._before = snapshot(folder)

    def require_held(self, *, is_written: bool) -> None:
        """Raise `FellError` if something else than the target was added or changed.

        Files of ours that a killed process might have left may go. A hard link to them is only a name.
        """
        before, after = dict(self._before), snapshot(self.folder)
        if is_written:
            for state in (before, after):
                _forget(state, self.target)
        for path in set(before) - set(after):
            # What was in a folder has been forgotten with the folder.
            is_plain = path in before and not stat.S_ISLNK(before[path].mode)
            if is_plain and Path(path).name.startswith(".partial-"):
                _forget(before, Path(path))
        require_unchanged(before, after)


def _forget(state: Snapshot, place: Path) -> None:
    for path in [path for path in state if Path(path) == place or place in Path(path).parents]:
        del state[path]


# ---- functions -------------------------------------------------------------------------------------------------------


def _write_file(chance: random.Random, folder: Path) -> None:
    scene = _Scene(chance, folder)
    try:
        durable.write_file(scene.target, _CONTENT)
    except OSError as error:
        _require_reason(error)
        scene.require_held(is_written=False)
        return
    if scene.target.is_symlink() or scene.target.read_text() != _CONTENT:
        raise FellError("the file was not written as itself")
    scene.require_held(is_written=True)


def _new_folder(chance: random.Random, folder: Path) -> None:
    scene = _Scene(chance, folder)
    try:
        with durable.new_folder(scene.target) as partial:
            (partial / "words").write_text(_CONTENT)
    except OSError as error:
        _require_reason(error)
        scene.require_held(is_written=False)
        return
    if scene.target.is_symlink() or (scene.target / "words").read_text() != _CONTENT:
        raise FellError("the folder was not made as itself")
    scene.require_held(is_written=True)


def _require_reason(error: OSError) -> None:
    if not error.strerror:
        raise FellError(f"an error without a reason: {error!r}") from error


# ---- commands --------------------------------------------------------------------------------------------------------


@functools.cache
def _run() -> Path:
    """Train a small run once for all attempts of this process, and return its folder."""
    folder = process_folder() / "trained"
    folder.mkdir()
    with _silence():
        return prepared_run(folder)


@contextlib.contextmanager
def _silence() -> Iterator[io.StringIO]:
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()) as shown,
    ):
        yield shown


def _command(scene: _Scene, *arguments: object) -> None:
    process_folder()  # has the cache
    with _silence() as shown:
        code = zloss(*arguments)
    if code not in (0, 1) or ("error:" in shown.getvalue()) != (code == 1):
        raise FellError(f"exit code {code}, and said: {shown.getvalue()!r}")
    scene.require_held(is_written=code == 0)


def _prepare(chance: random.Random, folder: Path) -> None:
    scene = _Scene(chance, folder)
    _command(scene, "data", "prepare", scene.text, "--to", scene.target)


def _plot(chance: random.Random, folder: Path) -> None:
    ending = chance.choice([".svg", ".png", ".SVG"])
    scene = _Scene(chance, folder, ending=ending)
    _command(scene, "plot", _run(), "--to", scene.target)


ATTACKS = [
    Attack(
        key="names_of_files",
        title="hostile names of files",
        attempt=_write_file,
        tries_in_tests=200,
    ),
    Attack(
        key="names_of_folders",
        title="hostile names of folders",
        attempt=_new_folder,
        tries_in_tests=200,
    ),
    Attack(
        key="names_of_corpora",
        title="hostile names of corpora",
        attempt=_prepare,
        tries_in_tests=30,
    ),
    Attack(
        key="names_of_pictures",
        title="hostile names of pictures",
        attempt=_plot,
        tries_in_tests=5,
        weight=0.5,
    ),
]
