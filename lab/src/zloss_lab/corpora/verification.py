"""Verification of the tokens of a corpus: their checksum, and that every class has a word.

A file is verified once on a machine and again after each change. A small file in the user's cache folder remembers what
was verified. If it is absent, damaged or cannot be written, files are verified again.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from zloss_lab import durable
from zloss_lab.corpora.errors import CorpusError
from zloss_lab.corpora.manifest import AGAIN
from zloss_lab.corpora.reading import content_of, opened, readable
from zloss_lab.json_text import parse_json

CACHE_VARIABLE = "ZLOSS_CACHE"  # names another cache folder
_REMEMBERED = "verified.json"
_MOST_REMEMBERED = 1000  # files, the newest of all
_PIECE_BYTES = 2**22
# A file system may give two changes the same time if they are closer than this. Old ones have steps of two seconds.
_SAME_TIME_NS = 2 * 10**9

Report = Callable[[int], None]  # called with the number of bytes that were read since the last call


@dataclass(frozen=True, kw_only=True)
class TokenFile:
    """A file of tokens, and what it has to be."""

    path: Path
    dtype: np.dtype[Any]
    words: int
    classes: int  # the size of the vocabulary
    sha256: str

    @property
    def size_bytes(self) -> int:
        """The right size of the file."""
        return self.words * self.dtype.itemsize

    def require_size(self) -> None:
        """Refuse a file that is absent or has another size."""
        found = self.path.stat().st_size if self.path.is_file() else None
        if found != self.size_bytes:
            what = (
                "is missing"
                if found is None
                else f"has {found:,} bytes, expected {self.size_bytes:,}"
            )
            raise CorpusError(f"{self.path} {what}. {AGAIN}")

    def verify(self, report: Report) -> None:
        """Refuse tokens that are not what was written, or without a word in the vocabulary. This reads the file."""
        with readable(self.path), opened(self.path) as file:
            before = _state(os.fstat(file.fileno()))
            sha256, fault, position = hashlib.sha256(), "", 0
            # A read may return less than was asked for, but a piece must have whole tokens.
            while piece := file.read(_PIECE_BYTES):
                while len(piece) % self.dtype.itemsize and (more := file.read(1)):
                    piece += more
                sha256.update(piece)
                tokens = np.frombuffer(piece, self.dtype, len(piece) // self.dtype.itemsize)
                fault = fault or self._fault_in(tokens, position)
                position += len(tokens)
                report(len(piece))
            is_same = _state(os.fstat(file.fileno())) == before
        if sha256.hexdigest() != self.sha256:
            detail = f"; {fault}" if fault else ""
            raise CorpusError(
                f"{self.path} is not what was written (its sha256 differs{detail}). {AGAIN}"
            )
        if fault:
            raise CorpusError(f"{self.path} is damaged: {fault}. {AGAIN}")
        if is_same and time.time_ns() - max(before[1:3]) > _SAME_TIME_NS:
            _remember(self._key, [*before, *self._expected])

    @property
    def is_verified(self) -> bool:
        """True if this machine has verified the file as it is now."""
        try:
            found = _state(self.path.stat())
        except OSError:
            return False
        return _remembered().get(self._key) == [*found, *self._expected]

    @property
    def _key(self) -> str:
        return os.path.realpath(self.path)

    @property
    def _expected(self) -> tuple[str, str, int]:
        return self.sha256, self.dtype.str, self.classes

    def _fault_in(self, tokens: npt.NDArray[Any], position: int) -> str:
        """Return a description of the first token without a word, or an empty text."""
        if not len(tokens) or tokens.max() < self.classes:
            return ""
        first = int(np.argmax(tokens >= self.classes))
        return (
            f"the word at position {position + first:,} has class {tokens[first]}, and the vocabulary has the classes "
            f"0 to {self.classes - 1:,}"
        )


def _state(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


# ---- the memory ------------------------------------------------------------------------------------------------------


def cache_folder() -> Path | None:
    """Return the folder for what may be lost, or None if there is no place for it.

    The environment variable `ZLOSS_CACHE` names another one.
    """
    if named := os.environ.get(CACHE_VARIABLE):
        return Path(named)
    windows = sys.platform == "win32"
    if root := os.environ.get("LOCALAPPDATA" if windows else "XDG_CACHE_HOME"):
        return Path(root) / "zloss"
    try:
        return Path.home() / ("AppData/Local" if windows else ".cache") / "zloss"
    except RuntimeError:  # this user has no home
        return None


def _remembered() -> dict[str, Any]:
    """Return the verified files: what was known about each, by its path."""
    folder = cache_folder()
    if folder is None:
        return {}
    try:
        table = parse_json(content_of(folder / _REMEMBERED))
    except ValueError:  # also a CorpusError
        return {}
    return table if isinstance(table, dict) else {}


def _remember(key: str, known: list[Any]) -> None:
    """Add a verified file. Another process may add one at the same moment: then one of them is verified again."""
    folder = cache_folder()
    if folder is None:
        return
    table = _remembered()
    table.pop(key, None)
    table[key] = known
    newest = dict(list(table.items())[-_MOST_REMEMBERED:])
    # JSON escapes names that are not UTF-8.
    with suppress(OSError), durable.new_file(folder / _REMEMBERED) as file:
        file.write(json.dumps(newest).encode())
