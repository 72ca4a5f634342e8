"""`zloss bench` as a user meets it, at sizes that take seconds."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import zloss
from tests.lab import command_line
from zloss_lab.bench import memory, race
from zloss_lab.bench.entries import ENTRIES
from zloss_lab.bench.output_suite import LayerCase
from zloss_lab.bench.timing import TimedWork
from zloss_lab.records import read_records, write_records

FIELDS = {
    "suite",
    "head",
    "loss",
    "device",
    "batch",
    "hidden",
    "classes",
    "time_ms",
    "peak_bytes",
    "versions",
    "commit",
}
SMALL = ("--device", "cpu", "--repeats", 2, "--no-memory")
RECORDS = Path(__file__).parents[3] / "benchmarks" / "records"


def bench(*arguments: object) -> int:
    """The exit code of a command."""
    return command_line.zloss("bench", *arguments)


def records_of(folder: Path, suite: str, *options: object) -> list[dict[str, Any]]:
    file = folder / "records.jsonl"
    assert bench(suite, *SMALL, *options, "--output", file) == 0
    records = read_records(file)
    assert all(record.keys() >= FIELDS and record["suite"] == suite for record in records)
    return records


def test_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--batch", 20, "--hidden", 16, "--classes", 1000)
    records = records_of(tmp_path, "output", *sizes)
    assert {record["name"] for record in records} == {entry.name for entry in ENTRIES.values()}
    measured = {record["name"]: record for record in records if record["time_ms"] is not None}
    assert measured["factored"]["ratio_to_factored"] == 1
    assert measured["dense softmax"]["ratio_to_factored"] > 0
    assert {record["targets"] for record in records if record["head"] == "adaptive"} == {
        "uniform",
        "zipf",
    }
    # What is not installed is named, with the reason.
    missing = {record["name"]: record["missing"] for record in records if record["time_ms"] is None}
    assert missing["dense softmax, TF32"] == "needs a GPU"
    assert "torch.compile" in missing["dense softmax, TF32, compiled"]
    shown = capsys.readouterr().out
    assert all(f"not run: {name} (eager): {reason}" in shown for name, reason in missing.items())


def test_output_with_chosen_targets_and_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = ("--batch", "10,20", "--hidden", 16, "--classes", "1_000", "--targets", "zipf")
    assert bench("output", *SMALL, "--heads", "factored, sampled", *sizes) == 0
    records = read_records(tmp_path / "bench.output.cpu.jsonl")
    assert [(record["head"], record["batch"]) for record in records] == [
        ("factored", 10), ("factored", 20), ("sampled", 10), ("sampled", 20),
    ]  # fmt: skip
    assert {record["targets"] for record in records} == {"zipf"}


def test_memory_is_that_of_a_process_of_its_own() -> None:
    small, large = (
        memory.cpu_peak_bytes(
            LayerCase(entry=ENTRIES["dense"], batch=10, hidden=64, classes=classes)
        )
        for classes in (1000, 200_000)
    )
    if small is None or large is None:
        pytest.skip("this system does not say")
    weights = 4 * 64 * 200_000
    assert 2 * weights < large - small < 4 * weights  # weights, gradient and 10 rows of logits


def test_model(tmp_path: Path) -> None:
    options = ("--networks", "ptb", "--heads", "factored,dense", "--batch", 20, "--classes", 1000)
    for record in records_of(tmp_path, "model", *options):
        assert record["ngrams_per_s"] == pytest.approx(20_000 / record["time_ms"], abs=1)
        assert record["epoch_s"] == pytest.approx(150e6 / 20 * record["time_ms"] / 1000, rel=1e-3)
        assert (record["network"], record["hidden"], record["trunk_precision"]) == (
            "ptb",
            256,
            "float32",
        )


def test_scaling(tmp_path: Path) -> None:
    options = ("--batch", 20, "--hidden", "16,32", "--classes", "1000,3000,10_000_000_000")
    records = records_of(tmp_path, "scaling", *options)
    assert [record["classes"] for record in records] == 2 * [1000, 3000, 10**10]
    assert [record["time_ms"] is None for record in records] == 2 * [False, False, True]
    assert "GB of memory" in records[-1]["missing"]


def test_eval(tmp_path: Path) -> None:
    records = records_of(tmp_path, "eval", "--examples", 50, "--hidden", 16, "--classes", 1000)
    tasks = [(record["head"], record["task"]) for record in records]
    both = [(head, task) for head in ("dense", "hierarchical") for task in ("rank", "topk")]
    assert tasks == [("factored", "rank"), ("factored", "topk"), ("factored", "refactor"), *both]
    assert all(record["time_ms"] > 0 for record in records)


def test_data(tmp_path: Path) -> None:
    preparation, batches = records_of(
        tmp_path, "data", "--words", 5000, "--batch", 50, "--classes", 500
    )
    assert preparation["words_per_s"] > 0
    assert batches["ngrams_per_s"] == pytest.approx(50 * batches["batches_per_s"], rel=0.01)


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


def test_what_is_named_twice_is_measured_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "[red]").mkdir()
    sizes = (
        "--batch",
        20,
        "--hidden",
        16,
        "--classes",
        "1000,1000",
        "--heads",
        "factored,factored",
    )
    assert bench("output", *SMALL, *sizes, "--output", tmp_path / "[red]" / "o.jsonl") == 0
    assert f"1 of 1 records in {tmp_path / '[red]' / 'o.jsonl'}\n" in capsys.readouterr().err


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


def test_it_runs_as_a_module() -> None:
    command = [
        sys.executable,
        "-m",
        "zloss_lab",
        "bench",
        "show",
        str(RECORDS / "output_layer.cuda.jsonl"),
        "--json",
    ]
    places = os.environ | {
        "PYTHONPATH": str(Path(zloss.__file__).parents[1])
    }  # it need not be installed
    shown = json.loads(
        subprocess.run(command, capture_output=True, text=True, check=True, env=places).stdout
    )
    assert shown[0]["device"] == "NVIDIA H200"


# ---- show ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    place = {
        "suite": "output",
        "device": "a GPU",
        "versions": {"torch": "2.13"},
        "commit": "abc1234",
    }
    times = {"time_ms_quartiles": [1.0, 3.0], "time_ms": 2.0, "peak_bytes": 1_500_000_000}
    sizes = {"batch": 200, "hidden": 512, "targets": "uniform", "launch": "graph"}
    records = [
        place | times | sizes | {"name": name, "classes": classes}
        for name in ("factored", "dense softmax")
        for classes in (10_000, 100_000)
    ]
    nothing = {
        "name": "a peer",
        "classes": 10_000,
        "time_ms": None,
        "peak_bytes": None,
        "missing": "not installed",
    }
    write_records(tmp_path / "records.jsonl", [*records, place | sizes | nothing])
    return tmp_path / "records.jsonl"


def test_show(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("show", file, "--plot", file.with_suffix(".png")) == 0
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("dense softmax", "100,000", "1-3", "1.50"))
    assert "not run: a peer (graph): not installed" in shown
    assert file.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert bench("show", file, "--markdown") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "output: a GPU, torch 2.13, commit abc1234, graph, B = 200, H = 512"
    assert lines[2:5] == [
        "| what | C | ms | spread | GB |",
        "|---|---:|---:|---:|---:|",
        "| factored | 10,000 | 2 | 1-3 | 1.50 |",
    ]
    assert bench("show", file, "--json") == 0
    assert len(json.loads(capsys.readouterr().out)) == 5


def test_what_cannot_be_shown_is_named(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("show", file, "--plot", file.with_suffix(".jpg")) == 1
    assert f"the picture is a PNG: name {file.with_suffix('.jpg')} so" in capsys.readouterr().err
    with file.open("a") as records:
        records.write('{"time_ms": 5}\n')
    assert bench("show", file) == 1
    assert f"{file} has no records of a benchmark, or not only those" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["output_layer.cpu.jsonl", "output_layer.cuda.jsonl"])
def test_show_reads_the_first_records_too(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("show", RECORDS / name, "--markdown") == 0
    assert "| factored |" in capsys.readouterr().out


def test_the_command_on_a_gpu(cuda: torch.device, tmp_path: Path) -> None:
    options = (
        "--heads",
        "factored,dense-tf32",
        "--batch",
        20,
        "--hidden",
        64,
        "--classes",
        1000,
        "--repeats",
        2,
    )
    assert bench("output", "--device", "cuda", *options, "--output", tmp_path / "o.jsonl") == 0
    records = read_records(tmp_path / "o.jsonl")
    assert [record["launch"] for record in records] == ["eager", "graph"] * 2
    assert all(
        record["time_ms"] > 0 and record["peak_bytes"] > 0 and record["driver"]
        for record in records
    )


def test_a_profile_needs_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("profile", "--device", "cpu") == 1
    assert "a profile needs a GPU" in capsys.readouterr().err


def test_a_profile_has_the_launches_of_a_step(
    tmp_path: Path, cuda: torch.device, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "profile.jsonl"
    sizes = ("--batch", "20,100", "--hidden", 64, "--classes", 100_000)
    assert bench("profile", *sizes, "--output", file) == 0
    records = read_records(file)
    assert [record["batch"] for record in records] == [20, 100]
    for record in records:
        assert record.keys() >= FIELDS
        names = [launch["name"] for launch in record["launches"]]
        assert {"_gather", "_reduce", "_gradient", "_apply", "product"} <= set(names)
        assert names[-1] == "_apply"
        assert 0 < record["arithmetic_ms"] < record["time_ms"]
    assert "_apply" in capsys.readouterr().out
