"""The file of a figure or table as it grows: what is there is not made again, and what no longer holds gives way.

Seeds of one choice have the same settings, or their mean would mean nothing. So where a choice comes with new settings,
after a longer search for instance, its records with the old ones are dropped.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zloss.lab.durable import locked
from zloss.lab.paper.records import PARSERS, Choice, Result, write_results
from zloss.lab.records import Record, read_records

DIGEST = "digest"  # of a choice, in its records
Entry = tuple[Record, Result]  # as it is written, and what it says


class Ledger:
    """The records of "figure2", "table2" and so on. Read anew when the file has changed: others may write to it too."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self._read: tuple[tuple[int, int, int], list[Entry]] | None = None  # with the stamp of the file

    @property
    def path(self) -> Path:
        """The file, which may not be there yet."""
        return self.folder / f"{self.name}.jsonl"

    def entries(self) -> list[Entry]:
        """Every record, and what it says."""
        if not self.path.exists():
            return []
        found = self.path.stat()
        stamp = found.st_ino, found.st_mtime_ns, found.st_size
        if self._read is None or self._read[0] != stamp:
            try:
                self._read = stamp, [(record, PARSERS[self.name](record)) for record in read_records(self.path)]
            except ValueError as error:
                raise ValueError(f"{self.path} is no file of records: {error}") from error
        return list(self._read[1])

    def results(self) -> list[Any]:
        """What the records say."""
        return [result for _, result in self.entries()]

    def find(
        self, choice: Choice, settings: Mapping[str, Any], seed: int, *, digest: str | None = None
    ) -> Record | None:
        """The record of a seed of a choice that was made with these settings.

        With a digest, also with the same values of what was not set, presets for instance. Early records have none.
        """
        for record, result in self.entries():
            is_wanted = (result.choice, result.settings, result.seed) == (choice, settings, seed)
            digests = {digest, record.get(DIGEST)} - {None}
            if is_wanted and len(digests) <= 1:
                return record
        return None

    def add(self, records: Iterable[Record]) -> int:
        """Add records; those that they replace are dropped. Returns how many of these had other settings."""
        dropped = 0
        with self._alone():
            entries = self.entries()
            for record in records:
                new = record, PARSERS[self.name](record)
                going = [old for old in entries if _gives_way(old, new)]
                dropped += sum(_differ(old, new) for old in going)
                entries = [old for old in entries if not _gives_way(old, new)] + [new]
            self._write(entries)
        return dropped

    def drop(self, is_stale: Callable[[Any], bool]) -> int:
        """Drop records that no longer hold; returns how many."""
        with self._alone():
            entries = self.entries()
            kept = [(record, result) for record, result in entries if not is_stale(result)]
            if len(kept) < len(entries):
                self._write(kept)
        return len(entries) - len(kept)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Between reading and writing nobody else may write."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder):
            yield

    def _write(self, entries: Iterable[Entry]) -> None:
        write_results(self.folder, self.name, [record for record, _ in entries])


def _gives_way(old: Entry, new: Entry) -> bool:
    """To the same seed, made again, or to a choice that has come to other settings."""
    is_same_choice = old[1].choice == new[1].choice
    return is_same_choice and (old[1].seed == new[1].seed or _differ(old, new))


def _differ(one: Entry, other: Entry) -> bool:
    """Whether two trainings of a choice are so different that their mean would mean nothing."""
    digests = {record.get(DIGEST) for record, _ in (one, other)} - {None}
    return one[1].settings != other[1].settings or len(digests) > 1
