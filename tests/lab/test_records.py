import dataclasses
import math
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from zloss_lab import records


def test_records_round_trip(tmp_path: Path) -> None:
    rows = [{"suite": "a", "time_ms": 1.5}, {"suite": "a", "time_ms": 2.5}]
    path = tmp_path / "new" / "a.jsonl"
    records.write_records(path, rows)
    assert records.read_records(path) == rows
    records.write_records(path, rows[:1])
    assert records.read_records(path) == rows[:1]
    assert [file.name for file in path.parent.iterdir()] == ["a.jsonl"], "no temporary file is left"


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    records.write_records(path, [{"time_ms": 1.5}])
    with pytest.raises(TypeError):
        records.write_records(path, [{"time_ms": object()}])
    assert records.read_records(path) == [{"time_ms": 1.5}]


@pytest.mark.parametrize(
    "line",
    [b'{"time_ms": 1', b"\xff", b"", b"[1]", b"[" * 100_000, b'{"time_ms": ' + b"1" * 5000 + b"}"],
    ids=["torn", "no text", "empty", "no object", "deep", "endless"],
)
def test_a_damaged_line_is_named(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"time_ms": 1.5}\r\n' + line + b"\n")
    with pytest.raises(
        ValueError,
        match=r"a\.jsonl is no file of records: line 2 is no (JSON|record), .*: restore or delete the line$",
    ):
        records.read_records(path)


def test_provenance_tells_hardware_versions_and_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZLOSS_COMMIT", "abc1234")
    told = records.provenance(torch.device("cpu"))
    assert "threads" in told["device"]
    assert told["versions"]["torch"] == torch.__version__
    assert told["commit"] == "abc1234"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository with one commit that contains the module of the records."""
    if shutil.which("git") is None:
        pytest.skip("needs git")
    own = tmp_path / "lab" / "src" / "zloss_lab" / "records.py"
    own.parent.mkdir(parents=True)
    library = tmp_path / "src" / "zloss" / "__init__.py"
    measured = tmp_path / "benchmarks" / "records" / "a.jsonl"
    for place in (own, library, tmp_path / "README.md", measured):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("1\n")
    (tmp_path / ".gitignore").write_text(".venv\n")
    # A git hook sets variables that start with GIT_.
    for name in [name for name in os.environ if name.startswith(("GIT_", "ZLOSS_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(records, "__file__", str(own))
    author = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    for command in (("init", "-q"), ("add", "."), (*author, "commit", "-qm", "first")):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    return tmp_path


def commit() -> str:
    told = records.provenance(torch.device("cpu"))["commit"]
    assert isinstance(told, str)
    return told


@pytest.mark.parametrize(
    ("changed", "is_told"),
    [
        ("lab/src/zloss_lab/records.py", True),
        ("README.md", True),
        ("src/zloss/new.py", True),
        ("lab/src/zloss_lab/new.py", True),
        ("new.txt", False),
        ("benchmarks/records/a.jsonl", False),
    ],
)
def test_a_commit_tells_what_has_changed(changed: str, is_told: bool, checkout: Path) -> None:
    """New modules count as changes. Records and other untracked files do not."""
    unchanged = commit()
    assert set(unchanged) <= set("0123456789abcdef")
    (checkout / changed).write_text("2\n")
    assert commit() == unchanged + ("+" if is_told else "")


def test_an_installed_copy_has_no_commit_of_others(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = checkout / ".venv" / "lib" / "zloss" / "records.py"
    installed.parent.mkdir(parents=True)
    installed.write_text("1\n")
    monkeypatch.setattr(records, "__file__", str(installed))
    assert commit() == "unknown"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Span:
    low: float
    high: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing(records.Recordable):
    head: Literal["factored", "dense"]
    classes: int
    time_ms: float
    span: Span | None = None
    quartiles: tuple[float, float] | None = None
    curve: tuple[Mapping[str, float | None], ...] = ()
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def key(self) -> records.RecordKey:
        return self.head, self.classes


TIMINGS = [
    Timing(head="factored", classes=10, time_ms=0.5),
    Timing(
        head="dense",
        classes=10,
        time_ms=2.5,
        span=Span(low=2.0, high=3.0),
        quartiles=(2.25, 2.75),
        curve=({"epoch": 1.0, "mrr": None}, {"epoch": 2.0, "mrr": 0.25}),
        settings={"training.lr": 0.1, "widths": [3, 2]},
    ),
]


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    records.write_records(tmp_path / "a.jsonl", TIMINGS)
    assert records.read_records_as(Timing, tmp_path / "a.jsonl") == TIMINGS


def test_a_field_with_a_default_may_be_absent() -> None:
    record = {"head": "factored", "classes": 10, "time_ms": 0.5}
    assert Timing.from_record(record) == TIMINGS[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hed": 1}, "unknown key: 'hed'; did you mean 'head'?"),
        ({"head": "gram"}, "head must be 'factored' or 'dense', got 'gram'"),
        ({"classes": "ten"}, "classes must be int, got 'ten'"),
        ({"classes": True}, "classes must be int, got True"),
        ({"time_ms": None}, "time_ms must be float, got None"),
        ({"quartiles": [1.0]}, "quartiles must be a list of 2 values: float, float or none"),
        ({"curve": [{"mrr": "x"}]}, "curve must be a list of a table of float or none"),
        ({"span": 3}, "span must be a table or none, got 3"),
        ({"span": {"low": 1.0}}, "[span] missing key: 'high'"),
        ({"span": {"low": 1.0, "high": []}}, "span.high must be float, got []"),
        ({"settings": []}, "settings must be a table, got []"),
    ],
)
def test_a_wrong_record_is_named_by_line_and_key(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    lines = [TIMINGS[0].to_record(), TIMINGS[1].to_record() | change]
    records.write_records(tmp_path / "a.jsonl", lines)
    with pytest.raises(ValueError, match=rf"^line 2 of .*a\.jsonl: {re.escape(message)}"):
        records.read_records_as(Timing, tmp_path / "a.jsonl")


def test_a_key_occurs_once(tmp_path: Path) -> None:
    records.write_records(tmp_path / "a.jsonl", [*TIMINGS, TIMINGS[0]])
    with pytest.raises(ValueError, match=r"line 3 .*same key \('factored', 10\)"):
        records.read_records_as(Timing, tmp_path / "a.jsonl")


def test_a_number_that_is_not_finite_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Timing\.time_ms must be a finite number, got inf"):
        records.write_records(
            tmp_path / "a.jsonl", [Timing(head="dense", classes=1, time_ms=math.inf)]
        )
    assert not (tmp_path / "a.jsonl").exists()


def three_records(tmp_path: Path) -> tuple[Path, list[bytes]]:
    path = tmp_path / "a.jsonl"
    records.write_records(path, [{"seed": seed, "curve": {10: 0.5, 9: (1,)}} for seed in range(3)])
    return path, path.read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize("lost", range(3))
def test_a_line_is_not_lost_in_silence(lost: int, tmp_path: Path) -> None:
    path, lines = three_records(tmp_path)
    path.write_bytes(b"".join(lines[:lost] + lines[lost + 1 :]))
    with pytest.raises(ValueError, match=r"a\.jsonl is not what was written: line 1 of 2 differs"):
        records.read_records(path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"a\.jsonl is empty"):
        records.read_records(path)


def test_another_digit_is_noticed_and_other_white_space_is_none(tmp_path: Path) -> None:
    path, lines = three_records(tmp_path)
    whole = records.read_records(path)
    assert [record["seed"] for record in whole] == [0, 1, 2]
    assert whole[0].keys() == {"seed", "curve"}
    path.write_bytes(b"".join(lines).replace(b'"seed": 1', b'"seed":  1'))
    assert records.read_records(path) == whole
    path.write_bytes(b"".join(lines).replace(b"0.5", b"0.4"))
    with pytest.raises(ValueError, match="line 1 of 3 differs from its checksum"):
        records.read_records(path)


def test_records_without_checksums_are_read(tmp_path: Path) -> None:
    """A person has edited them, or an older version has written them. A file with some checksums has lost others."""
    path, lines = three_records(tmp_path)
    bare = [re.sub(rb', "checksum": "\w+"', b"", line) for line in lines]
    path.write_bytes(b"".join(bare))
    assert [record["seed"] for record in records.read_records(path)] == [0, 1, 2]
    path.write_bytes(b"".join([lines[0], *bare[1:]]))
    with pytest.raises(ValueError, match="line 2 of 3 differs from its checksum"):
        records.read_records(path)


def test_a_file_may_have_no_records(tmp_path: Path) -> None:
    records.write_records(tmp_path / "a.jsonl", [])
    assert records.read_records(tmp_path / "a.jsonl") == []
