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


class Ledger:
    """The records of "figure2", "table2" and so on. Read anew when the file has changed: others may write to it too."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self._read: tuple[tuple[int, int, int], list[tuple[Record, Result]]] | None = None  # with the stamp of the file

    @property
    def path(self) -> Path:
        """The file, which may not be there yet."""
        return self.folder / f"{self.name}.jsonl"

    def entries(self) -> list[tuple[Record, Result]]:
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

    def find(self, choice: Choice, settings: Mapping[str, Any], seed: int) -> Record | None:
        """The record of a seed of a choice that was made with these settings."""
        for record, result in self.entries():
            if (result.choice, result.settings, result.seed) == (choice, settings, seed):
                return record
        return None

    def add(self, records: Iterable[Record]) -> int:
        """Add records; those that they replace are dropped. Returns how many of these had other settings."""
        dropped = 0
        with self._alone():
            entries = self.entries()
            for record in records:
                new = PARSERS[self.name](record)
                dropped += sum(old.choice == new.choice and old.settings != new.settings for _, old in entries)
                entries = [(other, old) for other, old in entries if not _gives_way(old, new)] + [(record, new)]
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

    def _write(self, entries: Iterable[tuple[Record, Result]]) -> None:
        write_results(self.folder, self.name, [record for record, _ in entries])


def _gives_way(old: Result, new: Result) -> bool:
    return old.choice == new.choice and (old.seed == new.seed or old.settings != new.settings)
