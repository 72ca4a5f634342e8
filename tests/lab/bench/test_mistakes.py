"""Wrong options, wrong results and interruptions of `zloss bench`."""

import errno
from pathlib import Path

import pytest

from tests.lab.bench.bench_command import SMALL, bench
from zloss_lab.bench import race
from zloss_lab.bench.timing import TimedWork
from zloss_lab.records import read_records


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("output", "--heads", "factord"), "unknown head: 'factord'; did you mean 'factored'"),
        (("output", "--classes", "many"), "--classes must be whole numbers"),
        (("output", "--device", "abacus"), "unknown device: 'abacus'"),
        (("output", "--device", "cpu", "--launch", "graph"), "--launch graph needs a GPU"),
        (("output", "--targets", "zip"), "unknown law of targets: 'zip'; did you mean 'zipf'"),
        (("model", "--networks", "net3"), "unknown network: 'net3'; did you mean 'net"),
        (
            ("model", "--precision", "float31"),
            "unknown precision: 'float31'; did you mean 'float32'",
        ),
        (("show", "NOWHERE.jsonl"), "NOWHERE.jsonl"),
        (("show", __file__), "is no file of records"),
        (
            ("data", "--words", "1000", "--batch", "1001"),
            "--batch must be at most the words of the text, 1,000, got",
        ),
    ],
)
def test_mistakes_are_told(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(*arguments) == 1
    assert message in capsys.readouterr().err


def test_what_libraries_say_is_shown_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> None:
        raise RuntimeError("[enforce fail at alloc] of [/tensor]")

    monkeypatch.setattr(TimedWork, "warm_up", refused)
    sizes = ("--batch", 20, "--hidden", 16, "--classes", 1000, "--heads", "factored")
    assert bench("output", *SMALL, *sizes, "--output", tmp_path / "o.jsonl") == 1
    assert "failed: RuntimeError: [enforce fail at alloc] of [/tensor]\n" in capsys.readouterr().err


def test_a_wrong_head_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("zloss_lab.bench.gate.expected_loss", lambda *_: 1.0)
    sizes = ("--batch", 20, "--hidden", 16, "--classes", 1000, "--heads", "dense,hierarchical")
    assert (
        bench("output", *SMALL, *sizes, "--targets", "uniform", "--output", tmp_path / "o.jsonl")
        == 1
    )
    dense, hierarchical = read_records(tmp_path / "o.jsonl")
    assert dense["time_ms"] > 0
    assert hierarchical["time_ms"] is None
    assert hierarchical["missing"].startswith("refused: the loss of step 1 is off by")
    assert "hierarchical softmax" in capsys.readouterr().err


def test_ctrl_c_keeps_what_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = iter(range(5))
    take_turn = TimedWork.take_turn

    def interrupted(self: TimedWork) -> None:
        if next(turns, None) is None:
            raise KeyboardInterrupt
        take_turn(self)

    monkeypatch.setattr(TimedWork, "take_turn", interrupted)
    sizes = (
        "--batch",
        20,
        "--hidden",
        16,
        "--classes",
        1000,
        "--heads",
        "factored,dense",
        "--repeats",
        9,
    )
    assert bench("output", *SMALL, *sizes, "--output", tmp_path / "o.jsonl") == 130
    assert [record["repeats"] for record in read_records(tmp_path / "o.jsonl")] == [3, 2]
    assert "2 of 2 records" in capsys.readouterr().err


@pytest.mark.parametrize("output", [".", "file/o.jsonl"])
def test_a_file_that_cannot_be_written_is_found_out_first(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    measured: list[TimedWork] = []
    monkeypatch.setattr(TimedWork, "take_turn", measured.append)
    sizes = ("--batch", 20, "--hidden", 16, "--classes", 1000, "--heads", "factored")
    assert bench("output", *SMALL, *sizes, "--output", tmp_path / output) == 1
    error = capsys.readouterr().err
    assert str(tmp_path) in error.replace("\n", "")
    assert "Traceback" not in error
    assert "records in" not in error
    assert measured == []


def test_records_that_could_not_be_written_are_not_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(race, "write_records", full)
    sizes = ("--batch", 20, "--hidden", 16, "--classes", 1000, "--heads", "factored")
    assert bench("output", *SMALL, *sizes, "--output", tmp_path / "o.jsonl") == 1
    out, error = capsys.readouterr()
    assert "No space left on device" in error
    assert "records in" not in error
    assert "factored" in out, "what was measured is shown"
