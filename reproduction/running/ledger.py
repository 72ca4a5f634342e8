"""The file of a figure or table as it grows: what it has is not made again, and stale records are replaced.

Seeds of one choice have the same settings, or their mean would mean nothing. So a choice with new settings, after a
longer search for instance, replaces its records with the old ones. Replaced records are kept beside the file, in
`figure2.replaced.jsonl` and so on, which no program reads.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from reproduction.results.files import read_in_order, write_results
from reproduction.results.schema import Choice, TrainingResult
from zloss_lab.durable import locked, write_file


class Ledger:
    """The records of "figure2", "table2" and so on.

    They are read anew when the file has changed, because other processes may write to it too.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        # The results, with the stamp of the file that they were read from.
        self._read: tuple[tuple[int, int, int], list[TrainingResult]] | None = None

    @property
    def path(self) -> Path:
        """The file, which need not exist yet."""
        return self.folder / f"{self.name}.jsonl"

    @property
    def replaced(self) -> Path:
        """The file of the records that were replaced."""
        return self.folder / f"{self.name}.replaced.jsonl"

    def results(self) -> list[Any]:
        """Return all records, as instances of the class that belongs to the figure or table."""
        if not self.path.exists():
            return []
        found = self.path.stat()
        stamp = found.st_ino, found.st_mtime_ns, found.st_size
        if self._read is None or self._read[0] != stamp:
            self._read = stamp, read_in_order(self.folder, self.name)
        return list(self._read[1])

    def find(
        self,
        choice: Choice,
        settings: Mapping[str, Any],
        seed: int | None,
        *,
        digest: str | None = None,
    ) -> Any:
        """Return the record of a choice and a seed with these settings, or None; of any seed where that is None.

        With a digest, the values that were not set, of presets for instance, must agree too. Early records have none.
        """
        for result in self.results():
            is_wanted = result.choice == choice and seed in (None, result.seed)
            if is_wanted and result.is_made_with(settings, digest):
                return result
        return None

    def count_others(
        self, choice: Choice, settings: Mapping[str, Any], *, digest: str | None = None
    ) -> int:
        """Return the number of records of a choice with other settings: a record with these would replace them."""
        own = [result for result in self.results() if result.choice == choice]
        return sum(not result.is_made_with(settings, digest) for result in own)

    def replacement_notice(self, number: object) -> str:
        """Return the announcement that records will be replaced."""
        return f"new records will replace records with other settings ({number}); these are kept in {self.replaced}"

    def add(self, results: Iterable[TrainingResult]) -> int:
        """Add results, and take out the records that they replace; return how many of these had other settings."""
        gone: list[TrainingResult] = []
        dropped = 0
        with self._locked():
            kept = self.results()
            for new in results:
                going = [old for old in kept if _is_replaced(old, new)]
                dropped += sum(_differ(old, new) for old in going)
                gone += going
                kept = [old for old in kept if old not in going] + [new]
            self._write(kept, gone)
        return dropped

    def drop(self, is_stale: Callable[[Any], bool]) -> int:
        """Take out stale records, and return their number."""
        with self._locked():
            results = self.results()
            gone = [result for result in results if is_stale(result)]
            if gone:
                self._write([one for one in results if one not in gone], gone)
        return len(gone)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes from writing between our reading and our writing."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder):
            yield

    def _write(self, results: Sequence[TrainingResult], gone: Sequence[TrainingResult]) -> None:
        # The replaced records first: a process that is killed in between leaves them twice rather than not at all.
        if gone:
            before = self.replaced.read_text(encoding="utf-8") if self.replaced.exists() else ""
            lines = (json.dumps(result.to_record()) + "\n" for result in gone)
            write_file(self.replaced, before + "".join(lines))
        write_results(self.folder, self.name, results)


def _is_replaced(old: TrainingResult, new: TrainingResult) -> bool:
    """Return whether a new result replaces an old one: the same seed again, or other settings of the same choice."""
    return old.choice == new.choice and (old.seed == new.seed or _differ(old, new))


def _differ(one: TrainingResult, other: TrainingResult) -> bool:
    """Return whether two trainings of a choice are so different that their mean would mean nothing."""
    return not one.is_made_with(other.settings, other.digest)
