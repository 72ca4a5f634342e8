"""Records: files with one JSON object on each line, and dataclasses that define the fields of such a line.

A kind of record is a frozen dataclass that inherits from `Recordable`. Its fields are the keys of the JSON object. The
writer and the reader of a file use the same class, so that they cannot disagree:

    @dataclass(frozen=True, kw_only=True)
    class Timing(Recordable):
        head: str
        time_ms: float

        @property
        def key(self) -> RecordKey:
            return (self.head,)

    write_records(path, [Timing(head="factored", time_ms=0.1)])
    timings = read_records_as(Timing, path)

Every line has a checksum of itself and its place, which the reader checks and takes out. Files without checksums are
read too: people edit records by hand, and older ones have none.

A line with an unknown key, a missing key or a value of the wrong type is refused. The error names the file, the line
and the key. Tables in the documentation are made from such files.
"""

import json
import math
import os
import platform
import subprocess
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import torch

import zloss
from zloss_lab.checksums import CHECKSUM, content_checksum
from zloss_lab.configuration import from_table, to_table
from zloss_lab.durable import write_file
from zloss_lab.json_text import parse_json, shortened

Record = dict[str, Any]  # a JSON object, as it stands on a line of a file
RecordKey = tuple[Hashable, ...]
_NO_RECORDS = "\n"  # the content of a file without records; an empty file has lost its content


class Recordable:
    """A frozen dataclass that is written to a file as a record, and read from it again.

    Fields may be numbers, text, flags, `None`, `Literal`, lists, tuples, mappings and other dataclasses. A field with
    a default may be absent from the file. Numbers must be finite, because JSON has no infinity and no NaN.
    """

    @property
    def key(self) -> RecordKey:
        """The values that identify this record: two records of one file never have the same key.

        A key holds identifiers for programs. Names for readers are chosen where a table is drawn.
        """
        raise NotImplementedError(f"{type(self).__name__} has no key")

    def to_record(self) -> Record:
        """Return the JSON object of this instance, with all fields."""
        record = to_table(self)
        _check_finite(record, type(self).__name__)
        return record

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Return the instance that a JSON object describes, or raise `ValueError` that names the wrong key."""
        instance = from_table(cls, record)
        _check_finite(record, cls.__name__)
        return instance


AnyRecordable = TypeVar("AnyRecordable", bound=Recordable)


def _check_finite(value: Any, where: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(
            f"{where} must be a finite number, got {value}; use null for a missing one"
        )
    inner: Iterable[tuple[object, Any]] = value.items() if isinstance(value, Mapping) else ()
    if isinstance(value, list | tuple):
        inner = enumerate(value)
    for name, part in inner:
        _check_finite(part, f"{where}.{name}")


def provenance(device: torch.device) -> Record:
    """Return the device, the versions and the commit of a measurement."""
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "zloss": zloss.__version__,
    }
    if device.type == "cuda":
        versions["cuda"] = str(torch.version.cuda)
        return {
            "device": torch.cuda.get_device_name(device),
            "versions": versions,
            "commit": _commit(),
        }
    where = f"{_cpu_name()}, {torch.get_num_threads()} threads"
    return {"device": where, "versions": versions, "commit": _commit()}


def write_records(path: Path, records: Iterable[Record | Recordable]) -> None:
    """Replace the file in one moment, so that an interrupted program never leaves half of it."""
    rows = [one.to_record() if isinstance(one, Recordable) else one for one in records]
    lines = (
        {**row, CHECKSUM: _checksum(row, number, len(rows))}
        for number, row in enumerate(rows, start=1)
    )
    text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
    write_file(path, text or _NO_RECORDS)


def read_records(path: Path) -> list[Record]:
    """Return all records of a file as JSON objects, in their order. `ValueError` names a line that cannot be read."""
    data = path.read_bytes()
    if not data:
        raise ValueError(f"{path} is empty, as no file of records is: restore the file")
    if data == _NO_RECORDS.encode():
        return []
    rows = [
        _read_line(path, number, line) for number, line in enumerate(data.splitlines(), start=1)
    ]
    if any(CHECKSUM in row for row in rows):
        _check_lines(path, rows)
    return rows


def _check_lines(path: Path, rows: list[Record]) -> None:
    """Check the checksums of all lines, and take them out."""
    for number, row in enumerate(rows, start=1):
        found = row.pop(CHECKSUM, None)
        if found != _checksum(row, number, len(rows)):
            raise ValueError(
                f"{path} is not what was written: line {number} of {len(rows)} differs from its checksum: restore the "
                f"file; whoever changes it on purpose removes {CHECKSUM} from all lines"
            )


def _checksum(row: Record, number: int, count: int) -> str:
    """Return the checksum of a line, which covers its place too: no other line can be lost in silence."""
    return content_checksum([number, count, row])


def read_records_as(kind: type[AnyRecordable], path: Path) -> list[AnyRecordable]:
    """Return all records of a file as instances of one class; refuse a wrong line and a key that occurs twice."""
    found: dict[RecordKey, AnyRecordable] = {}
    for number, record in enumerate(read_records(path), start=1):
        try:
            one = kind.from_record(record)
            if one.key in found:
                raise ValueError(f"an earlier line has the same key {one.key}")
        except ValueError as error:
            raise ValueError(f"line {number} of {path}: {error}") from error
        found[one.key] = one
    return list(found.values())


def _read_line(path: Path, number: int, line: bytes) -> Record:
    try:
        record = parse_json(line)
    except ValueError as error:
        raise ValueError(
            f"{path} is no file of records: line {number} is no JSON, {error}: restore or delete the line"
        ) from error
    if not isinstance(record, dict):
        raise ValueError(
            f"{path} is no file of records: line {number} is no record, {shortened(record)}: "
            "restore or delete the line"
        )
    return record


def _commit() -> str:
    """Return the commit of this checkout, with a `+` if files differ from it.

    The environment variable `ZLOSS_COMMIT` names the commit outside of a checkout. An installed copy may lie inside
    the repository of another project. Therefore this file must be known to git, else the commit is "unknown".
    """
    if named := os.environ.get("ZLOSS_COMMIT"):
        return named
    try:
        _git("ls-files", "--error-unmatch", Path(__file__).name)
        all_but_records = (
            ":(top)",
            ":(top,exclude)benchmarks/records",
            ":(top,exclude)reproduction/records",
        )
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", *all_but_records)
        new = _git("ls-files", "--others", "--exclude-standard", "--", ":(top)src", ":(top)lab")
        return _git("rev-parse", "--short", "HEAD") + ("+" if changed or new else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
