"""The commands of `zloss bench` that measure, at sizes that take seconds."""

from pathlib import Path

import pytest
import torch

from tests.lab.bench.bench_command import SMALL, bench, records_of
from zloss_lab.bench import memory
from zloss_lab.bench.entries import ENTRIES
from zloss_lab.bench.output_suite import LayerCase
from zloss_lab.records import read_records


def test_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--batch", 20, "--hidden", 16, "--classes", 1000)
    records = records_of(tmp_path, "output", *sizes)
    assert {record["entry"] for record in records} == ENTRIES.keys()
    measured = {record["entry"]: record for record in records if record["time_ms"] is not None}
    assert measured["factored"]["ratio_to_factored"] == 1
    assert measured["dense"]["ratio_to_factored"] > 0
    assert {record["targets"] for record in records if record["head"] == "adaptive"} == {
        "uniform",
        "zipf",
    }
    # Heads that cannot run are named, each with the reason.
    missing = {
        record["entry"]: record["missing"] for record in records if record["time_ms"] is None
    }
    assert missing["dense-tf32"] == "needs a GPU"
    assert "torch.compile" in missing["dense-compiled"]
    shown = capsys.readouterr().out
    assert all(
        f"not run: {ENTRIES[key].title} (eager): {reason}" in shown
        for key, reason in missing.items()
    )


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
    assert (preparation["task"], batches["task"]) == ("preparation", "batches")
    assert preparation["words_per_s"] > 0
    assert batches["ngrams_per_s"] == pytest.approx(50 * batches["batches_per_s"], rel=0.01)


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
