"""The metrics of a run: a file with a JSON object on each line, which only ever grows.

A checkpoint holds a mark: the length and the checksum of the file at that moment. So damage to a line before the last
checkpoint is noticed. Lines after it have no check. They are only shown, and a training that goes on from the
checkpoint writes them again.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zloss_lab.checksums import checksum_of, new_checksum
from zloss_lab.durable import append_to_file, write_file
from zloss_lab.json_text import parse_json


@dataclass(frozen=True, kw_only=True)
class MetricsMark:
    """The first part of a file of metrics, as a checkpoint remembers it."""

    bytes: int
    checksum: str

    def __post_init__(self) -> None:
        if self.bytes < 0:
            raise ValueError(f"bytes must be at least 0, got {self.bytes}")


class MetricsFile:
    """The file of the metrics of a run. Errors are `ValueError` with the line, or `OSError`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # The length and the hash of what this process has written, after what it found there first. It is not read
        # again: a checkpoint must not approve of damage that came later.
        self._length = 0
        self._hash: Any = None

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a line. Numbers that are not finite become null, because JSON has no others."""
        line = (
            json.dumps({name: _for_json(value) for name, value in record.items()}) + "\n"
        ).encode()
        self._begin()
        append_to_file(self.path, line)
        self._hash.update(line)
        self._length += len(line)

    def mark(self) -> MetricsMark:
        """Return the mark of all lines so far."""
        self._begin()
        return MetricsMark(bytes=self._length, checksum=self._hash.hexdigest())

    def records(self, mark: MetricsMark | None) -> list[dict[str, Any]]:
        """Return all lines, after a check of those before the mark. A last line without its end is left out."""
        data = self._data()
        if data is None:  # the user may have removed it, because it was damaged
            return []
        self._checked(data, mark)
        return list(self._parsed(data))

    def cut(self, mark: MetricsMark | None) -> None:
        """Drop all lines after the mark, or all lines if there is none."""
        data = self._data()
        kept = b"" if data is None else self._checked(data, mark)
        if data is not None:
            write_file(self.path, kept)
        self._length, self._hash = len(kept), new_checksum(kept)

    def _begin(self) -> None:
        if self._hash is None:
            data = self._data() or b""
            self._length, self._hash = len(data), new_checksum(data)

    def _data(self) -> bytes | None:
        try:
            if self.path.exists() and not self.path.is_file():
                raise ValueError(f"{self.path} is not an ordinary file: remove it")
            return self.path.read_bytes()
        except FileNotFoundError:
            return None

    def _checked(self, data: bytes, mark: MetricsMark | None) -> bytes:
        """Return the part before the mark; `ValueError` where it is not what was written."""
        if mark is None:
            return b""
        part = data[: mark.bytes]
        if len(part) < mark.bytes or checksum_of(part) != mark.checksum:
            raise ValueError(
                f"{self.path} is not what was written up to the last checkpoint (its checksum differs): restore the "
                "file, or remove it to go on without these metrics"
            )
        return part

    def _parsed(self, data: bytes) -> Iterator[dict[str, Any]]:
        for number, line in enumerate(data.split(b"\n")[:-1], start=1):
            try:
                record = parse_json(line)
            except ValueError as error:
                raise ValueError(
                    f"{self.path}, line {number}, is no JSON ({error}): delete the line"
                ) from error
            if not _is_metrics(record):
                raise ValueError(
                    f"{self.path}, line {number}, is no metrics with kind, step and epoch: delete the line"
                )
            yield record


def _for_json(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _is_metrics(record: Any) -> bool:
    """Return whether a record has the three fields of every line of metrics, and else only numbers and null."""
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        return False
    if not isinstance(record.get("step"), int):
        return False
    values = [value for name, value in record.items() if name != "kind" and value is not None]
    places = [record[name] for name in ("step", "epoch") if _is_number(record.get(name))]
    return len(places) == 2 and min(places) >= 0 and all(map(_is_number, values))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
