"""Works: commands with a known result, which are disturbed and then brought to their end.

A work knows how its command begins in a new folder, and how a user goes on after an interruption. It also knows what
may be there in between, and at the end. The result of the undisturbed command is the judge.
"""

import atexit
import hashlib
import random
import re
import shutil
import tempfile
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

from tests.campaign.attack import FellError
from tests.campaign.warm_commands import Ending, undisturbed
from tests.lab.pets import pets_text

SHORT = (
    "network.embedding=8",
    "network.hidden=[16]",
    "network.context=3",
    "network.head.b=2.0",
    "training.batch_size=20",
    "training.steps=24",
    "training.output_lr=0.05",
    "training.validate_every=8",
    "training.validation_examples=100",
    "training.log_every=3",
    "training.checkpoint_every=3",
)
HALF = "training.steps=11"
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True)
class Reference:
    """An undisturbed end of a work: its folder, and what the command needed."""

    folder: Path
    ending: Ending
    largest_file: int  # bytes
    all_bytes: int


class Work(ABC):
    """A command with a known result.

    Args:
        key: distinguishes this work from others.
    """

    repeats_output: ClassVar[bool] = False  # the same command prints the same

    def __init__(self, key: str) -> None:
        self.key = key

    def prepare(self, folder: Path) -> None:  # noqa: B027  # most commands find nothing
        """Put into a new folder what the command finds there."""

    @abstractmethod
    def first(self, folder: Path) -> list[str]:
        """Return the arguments of the command."""

    def again(self, folder: Path, seen: Path) -> list[str]:
        """Return the arguments by which a user goes on after an interruption. Here the folder is seen by `seen`."""
        return self.first(folder)

    def check_interrupted(self, folder: Path) -> None:  # noqa: B027  # a study has a database
        """Raise an error if a partial file could be taken for a whole one."""

    @abstractmethod
    def check(self, folder: Path) -> None:
        """Raise an error if the folder does not have the result of an undisturbed command."""

    @property
    def reference(self) -> Reference:
        """The undisturbed end, which is made once a process."""
        return _reference(self)

    def finish(self, folder: Path, seen: Path | None = None) -> None:
        """Go on after an interruption to the end, and check the result."""
        seen = seen or folder
        ending = undisturbed(*self.again(folder, seen), folder=folder)
        self.check(seen)
        require(
            not self.repeats_output or ending.stdout == self.reference.ending.stdout,
            f"{self.key} printed {ending.stdout} instead of {self.reference.ending.stdout}",
        )

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Work) and self.key == other.key

    def drawn_operation(self, chance: random.Random) -> int:
        """Return the number of an operation on files. Operations on seldom files are as probable as on others."""
        kinds: dict[str, list[int]] = {}
        for number, operation in enumerate(self.reference.ending.operations):
            what, _, path = operation.partition(" ")
            name = Path(path).name.partition(".partial-")
            kinds.setdefault(f"{what} {_DIGITS.sub('#', name[0])}{name[1]}", []).append(number)
        return chance.choice(chance.choice(sorted(kinds.values()))) if kinds else 0


@cache
def _reference(work: Work) -> Reference:
    folder = own_folder(f"reference-{work.key.replace(' ', '-')}-")
    work.prepare(folder)
    before = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    ending = undisturbed(*work.first(folder), folder=folder)
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return Reference(folder, ending, max(sizes, default=0), sum(sizes) - before)


def own_folder(prefix: str) -> Path:
    """Return a new folder, which is removed at the end of this process."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def text() -> Path:
    """Return the file of a text that is long enough to train on."""
    path = own_folder("text-") / "text.txt"
    path.write_text(pets_text(400))
    return path


@cache
def corpus() -> Path:
    """Return the folder of the prepared text."""
    place = text().parent / "corpus"
    undisturbed("data", "prepare", text(), "--to", place, folder=place.parent)
    return place


def settings(*pairs: str) -> list[str]:
    """Return settings as options of a command."""
    return [word for pair in pairs for word in ("--set", pair)]


def digests(folder: Path) -> dict[str, str]:
    """Return the checksum of each file in a folder, by its name."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def require(holds: bool, fault: str) -> None:
    """Raise the error of an attempt if something does not hold."""
    if not holds:
        raise FellError(fault)
