"""Disks: full, broken or read-only ones under a command, which has to say so and to leave nothing half-written.

Where this process may mount disks, small ones are really full or read-only. Elsewhere, and in most attempts, an
operation on files reports the error of such a disk. When the disk is whole again, the work goes on to its end.
"""

import errno
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.campaign.attack import Attack, FellError
from tests.campaign.disturbance import BROKEN, FULL, READ_ONLY, Disturbance
from tests.campaign.kills import drawn_work
from tests.campaign.warm_commands import IS_POSSIBLE, UNDISTURBED, Ending, command_server
from tests.campaign.works import Work, require

_ERRORS = (*FULL, *READ_ONLY, *BROKEN)
# Words of which one has to be in the message, besides the names of the errors.
_FULL_WORDS = ("disk is full", "disk of", "disk I/O error", "database or disk is full")
_PAGE = 4096  # the smallest disk in memory


def fail(chance: random.Random, folder: Path) -> None:
    """Let a disk fail under a command, look at how it ends, and go on when the disk is whole."""
    work = drawn_work(chance)
    kinds: list[Callable[[random.Random, Path, Work], None]] = [_operation_fails, _file_too_large]
    if command_server().can_mount:
        kinds += [_small_disk, _read_only_disk]
    chance.choices(kinds, (4, 2, 3, 1)[: len(kinds)])[0](chance, folder, work)


def _operation_fails(chance: random.Random, folder: Path, work: Work) -> None:
    disturbance = Disturbance(
        operation=work.drawn_operation(chance),
        error=chance.choice(_ERRORS),
        lasts=chance.random() < 0.7,
    )
    work.prepare(folder)
    _run_and_go_on(work, folder, disturbance)


def _file_too_large(chance: random.Random, folder: Path, work: Work) -> None:
    size = chance.randrange(work.reference.largest_file + 1)
    work.prepare(folder)
    _run_and_go_on(work, folder, Disturbance(largest_file=size))


def _small_disk(chance: random.Random, folder: Path, work: Work) -> None:
    pages = work.reference.all_bytes // _PAGE + len(list(work.reference.folder.rglob("*"))) + 2
    with _own_disk(folder, "size=1G") as seen:
        work.prepare(seen)
        used = sum(-(-path.stat().st_size // _PAGE) for path in seen.rglob("*") if path.is_file())
        size = max(1, used + chance.randrange(pages)) * _PAGE
        command_server().mount("-o", f"remount,size={size}", folder)
        ending = _disturbed(work, folder, seen, UNDISTURBED)
        command_server().mount("-o", "remount,size=1G", folder)
        _go_on(work, folder, seen, ending)


def _read_only_disk(chance: random.Random, folder: Path, work: Work) -> None:
    with _own_disk(folder, "size=1G") as seen:
        work.prepare(seen)
        command_server().mount("-o", "remount,ro", folder)
        ending = _disturbed(work, folder, seen, UNDISTURBED)
        command_server().mount("-o", "remount,rw", folder)
        _go_on(work, folder, seen, ending)


@contextmanager
def _own_disk(folder: Path, options: str) -> Iterator[Path]:
    """Mount a disk in memory at the folder, and yield the path by which this process sees it."""
    server = command_server()
    server.mount("-t", "tmpfs", "-o", options, "tmpfs", folder)
    try:
        yield server.seen(folder)
    finally:
        server.unmount(folder)


def _run_and_go_on(work: Work, folder: Path, disturbance: Disturbance) -> None:
    _go_on(work, folder, folder, _disturbed(work, folder, folder, disturbance))


def _disturbed(work: Work, folder: Path, seen: Path, disturbance: Disturbance) -> Ending:
    """Run the command of a work on a bad disk, and require a clear end."""
    ending = command_server().run(*work.first(folder), folder=folder, disturbance=disturbance)
    what = f"{work.key} with {disturbance}: {ending}"
    require("Traceback" not in ending.stderr and ending.status in (0, 1), what)
    if ending.status == 1:
        named = [os.strerror(number) for number in (*_ERRORS, errno.EFBIG)]
        said = ending.stderr.casefold()
        require(any(word.casefold() in said for word in (*named, *_FULL_WORDS)), what)
    work.check_interrupted(seen)
    return ending


def _go_on(work: Work, folder: Path, seen: Path, ending: Ending) -> None:
    """Bring the work to its end on a whole disk, and check the result."""
    if ending.status == 0 and not ending.struck:
        work.check(seen)
    try:
        work.finish(folder, seen)
    except FellError as error:
        raise FellError(f"{error}, after {ending}") from error


ATTACKS = (
    [
        Attack(
            key="disks",
            title="full, broken and read-only disks",
            attempt=fail,
            tries_in_tests=2,
        )
    ]
    if IS_POSSIBLE
    else []
)
