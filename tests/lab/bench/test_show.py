"""The command `zloss bench show`: tables, plots and JSON of records."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import zloss
import zloss_lab
from tests.lab.bench.bench_command import RECORDS, bench
from zloss_lab.records import write_records


@pytest.fixture
def file(tmp_path: Path) -> Path:
    place = {
        "suite": "output",
        "device": "a GPU",
        "versions": {"torch": "2.13"},
        "commit": "abc1234",
        "seed": 0,
    }
    head = {"head": "dense", "loss": "softmax", "options": {}, "precision": "float32"}
    times = {"time_ms_quartiles": [1.0, 3.0], "time_ms": 2.0, "peak_bytes": 1_500_000_000}
    sizes = {"batch": 200, "hidden": 512, "targets": "uniform", "launch": "graph"}
    records = [
        place | head | times | sizes | {"entry": entry, "classes": classes}
        for entry in ("factored", "dense")
        for classes in (10_000, 100_000)
    ]
    nothing = {
        "entry": "a peer",
        "classes": 10_000,
        "time_ms": None,
        "peak_bytes": None,
        "missing": "not installed",
    }
    write_records(tmp_path / "records.jsonl", [*records, place | head | sizes | nothing])
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


def test_it_runs_as_a_module() -> None:
    file = str(RECORDS / "output_layer.cuda.jsonl")
    command = [sys.executable, "-m", "zloss_lab", "bench", "show", file, "--json"]
    # The packages need not be installed.
    folders = [Path(file).parents[1] for file in (zloss.__file__, zloss_lab.__file__)]
    sources = os.pathsep.join(map(str, folders))
    places = os.environ | {"PYTHONPATH": sources}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=places)
    shown = json.loads(done.stdout)
    assert shown[0]["device"] == "NVIDIA H200"
