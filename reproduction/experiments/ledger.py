"""The file of a figure or table as it grows: what is there is not made again, and what no longer holds gives way.

Seeds of one choice have the same settings, or their mean would mean nothing. So where a choice comes with new settings,
after a longer search for instance, its records with the old ones give way. Whatever does is kept beside the file, in
`figure2.replaced.jsonl` and so on, which nobody reads but you.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from reproduction.report.records import PARSERS, Choice, Result, write_results
from zloss_lab.durable import locked, write_file
from zloss_lab.records import Record, read_records

DIGEST = "digest"  # of a choice, in its records
Entry = tuple[Record, Result]  # as it is written, and what it says


class Ledger:
    """The records of "figure2", "table2" and so on. Read anew when the file has changed: others may write to it too."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self._read: tuple[tuple[int, int, int], list[Entry]] | None = (
            None  # with the stamp of the file
        )

    @property
    def path(self) -> Path:
        """The file, which may not be there yet."""
        return self.folder / f"{self.name}.jsonl"

    @property
    def replaced(self) -> Path:
        """The file of what has given way."""
        return self.folder / f"{self.name}.replaced.jsonl"

    def entries(self) -> list[Entry]:
        """Every record, and what it says."""
        if not self.path.exists():
            return []
        found = self.path.stat()
        stamp = found.st_ino, found.st_mtime_ns, found.st_size
        if self._read is None or self._read[0] != stamp:
            try:
                records = read_records(self.path)
            except ValueError as error:
                raise ValueError(f"{self.path} is no file of records: {error}") from error
            self._read = (
                stamp,
                [self._entry(number, record) for number, record in enumerate(records, start=1)],
            )
        return list(self._read[1])

    def _entry(self, number: int, record: Record) -> Entry:
        try:
            return record, PARSERS[self.name](record)
        except ValueError as error:
            raise ValueError(
                f"{self.path}, line {number}: {error}: restore or delete the line"
            ) from error

    def results(self) -> list[Any]:
        """What the records say."""
        return [result for _, result in self.entries()]

    def find(
        self,
        choice: Choice,
        settings: Mapping[str, Any],
        seed: int | None,
        *,
        digest: str | None = None,
    ) -> Record | None:
        """The record of a seed of a choice that was made with these settings; of any seed where that is none.

        With a digest, also with the same values of what was not set, presets for instance. Early records have none.
        """
        for record, result in self.entries():
            is_wanted = result.choice == choice and seed in (None, result.seed)
            if is_wanted and result.is_made_with(settings, digest):
                return record
        return None

    def others(
        self, choice: Choice, settings: Mapping[str, Any], *, digest: str | None = None
    ) -> int:
        """How many records of a choice have other settings, and would give way to one with these."""
        own = [result for result in self.results() if result.choice == choice]
        return sum(not result.is_made_with(settings, digest) for result in own)

    def will_give_way(self, what: object) -> str:
        """How to say so of records, before they do."""
        return (
            f"records with other settings than are wanted now will give way to new ones ({what}), and be kept in "
            f"{self.replaced}"
        )

    def add(self, records: Iterable[Record]) -> int:
        """Add records; those that they replace give way. Returns how many of these had other settings."""
        gone: list[Entry] = []
        dropped = 0
        with self._alone():
            entries = self.entries()
            for record in records:
                new = record, PARSERS[self.name](record)
                going = [old for old in entries if _gives_way(old, new)]
                dropped += sum(_differ(old, new) for old in going)
                gone += going
                entries = [old for old in entries if old not in going] + [new]
            self._write(entries, gone)
        return dropped

    def drop(self, is_stale: Callable[[Any], bool]) -> int:
        """Let records give way that no longer hold; returns how many."""
        with self._alone():
            entries = self.entries()
            gone = [(record, result) for record, result in entries if is_stale(result)]
            if gone:
                self._write([one for one in entries if one not in gone], gone)
        return len(gone)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Between reading and writing nobody else may write."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder):
            yield

    def _write(self, entries: Iterable[Entry], gone: Sequence[Entry]) -> None:
        if gone:  # first: killed in between, it is there twice rather than not at all
            before = self.replaced.read_text(encoding="utf-8") if self.replaced.exists() else ""
            write_file(
                self.replaced, before + "".join(json.dumps(record) + "\n" for record, _ in gone)
            )
        write_results(self.folder, self.name, [record for record, _ in entries])


def _gives_way(old: Entry, new: Entry) -> bool:
    """To the same seed, made again, or to a choice that has come to other settings."""
    is_same_choice = old[1].choice == new[1].choice
    return is_same_choice and (old[1].seed == new[1].seed or _differ(old, new))


def _differ(one: Entry, other: Entry) -> bool:
    """Whether two trainings of a choice are so different that their mean would mean nothing."""
    return not one[1].is_made_with(other[1].settings, other[1].digest)
