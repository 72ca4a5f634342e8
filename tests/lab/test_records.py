import os
import shutil
import subprocess
from pathlib import Path

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
        match=r"^line 2 of .*a\.jsonl is no (JSON|record), .*: restore or delete the line$",
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
    """A repository with one commit, in which the module of the records lies."""
    if shutil.which("git") is None:
        pytest.skip("needs git")
    own = tmp_path / "src" / "zloss" / "lab" / "records.py"
    own.parent.mkdir(parents=True)
    for place in (own, tmp_path / "README.md", tmp_path / "benchmarks" / "records" / "a.jsonl"):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("1\n")
    (tmp_path / ".gitignore").write_text(".venv\n")
    for name in [
        name for name in os.environ if name.startswith(("GIT_", "ZLOSS_"))
    ]:  # a hook has the first
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
        ("new.txt", False),
        ("benchmarks/records/a.jsonl", False),
    ],
)
def test_a_commit_tells_what_has_changed(changed: str, is_told: bool, checkout: Path) -> None:
    """New modules too; but records may change, and whatever else lies around."""
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
