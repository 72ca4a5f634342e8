from pathlib import Path

import pytest
import torch

from zloss.lab import records


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


def test_provenance_tells_hardware_versions_and_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZLOSS_COMMIT", "abc1234")
    told = records.provenance(torch.device("cpu"))
    assert "threads" in told["device"]
    assert told["versions"]["torch"] == torch.__version__
    assert told["commit"] == "abc1234"


@pytest.mark.parametrize(("line", "what"), [('{"a": 1', "is no JSON"), ("[1, 2]", "is no record")])
def test_a_damaged_line_is_named(line: str, what: str, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text('{"a": 0}\n' + line + "\n")
    with pytest.raises(ValueError, match=f"line 2 of .*records.jsonl {what}, .*: restore or delete the line"):
        records.read_records(path)
