"""The numbers of the documents, and the picture, are made from the records."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import tables
from benchmarks.measurements import Measurements
from benchmarks.picture import CONTESTANTS, step_times
from benchmarks.speed_tables import gram, heads, speed
from benchmarks.speed_targets import targets
from benchmarks.tables import DOCUMENTS, PICTURE, TABLES, TIMINGS, rebuilt, stale_files
from reproduction.timed_parts import DEVICES
from zloss_lab.evaluation import SCORES
from zloss_lab.records import Record


def test_documents_show_what_the_records_say() -> None:
    placed = {
        name
        for document in DOCUMENTS
        for name in re.findall(r"<!-- table: (\w+) -->", document.read_text())
    }
    assert placed == TABLES.keys()
    assert stale_files().keys() == set(), "run `make docs`"


def test_a_stale_table_is_noticed() -> None:
    stale = "before\n<!-- table: accuracy -->\n| made up | 1e-99 |\n<!-- end -->\nafter"
    new = rebuilt(stale)
    assert "1e-99" not in new
    assert new.startswith("before\n<!-- table: accuracy -->\n| float32 weights after 20,000 steps")
    assert new.endswith("<!-- end -->\nafter")
    assert rebuilt(new) == new


def test_a_stale_or_missing_picture_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "picture.svg"
    monkeypatch.setattr(tables, "PICTURE", place)
    assert stale_files()[place] == PICTURE.read_text(encoding="utf-8")
    place.write_text("<svg/>")
    assert place in stale_files()


def test_the_picture_has_every_contestant(tmp_path: Path) -> None:
    for one in CONTESTANTS:
        times = step_times(TIMINGS, one.entry)
        assert min(times) == 10_000
        assert max(times) >= 793_471
    assert len(step_times(TIMINGS, "factored")) == 4
    for name in ("scaling", "adaptive", "output_layer"):
        keep(tmp_path, f"{name}.cuda.jsonl", entry="factored", time_ms=1.0)
    with pytest.raises(ValueError, match="no run on a GPU has factored at several numbers"):
        step_times(tmp_path, "factored")


PLACE = {"device": "a device", "versions": {"torch": "2.13"}, "commit": "abc1234"}


def keep(folder: Path, file: str, **record: Any) -> None:
    """Add a record of a step of the output layer, or of a whole network to a file whose name begins with "model"."""
    sizes = {"batch": 200, "hidden": 512, "classes": 793_471}
    head = {"head": "a head", "loss": "a loss", "options": {}, "precision": "float32"}
    step = {"suite": "output", "targets": "uniform", "launch": "eager", "seed": 0}
    if file.startswith("model."):
        step |= {"suite": "model", "network": "net1", "trunk_precision": "float32"}
    keep_line(folder, file, sizes | head | step | {"peak_bytes": 10**9} | PLACE | record)


def keep_line(folder: Path, file: str, record: Record) -> None:
    """Add a record to a file."""
    with (folder / file).open("a") as records:
        records.write(json.dumps(record) + "\n")


def test_targets_stand_beside_measurements(tmp_path: Path) -> None:
    measured = Measurements(tmp_path)
    rows = [line for line in targets(measured).splitlines()[2:] if line.startswith("|")]
    assert all("not measured" in row for row in rows)
    keep(tmp_path, "output.cuda.jsonl", entry="factored", time_ms=2.0)
    keep(tmp_path, "output.cuda.jsonl", entry="factored", time_ms=0.1, launch="graph")
    keep(tmp_path, "output.cuda.jsonl", entry="dense-tf32", time_ms=8.0)
    keep(tmp_path, "output.cuda.jsonl", entry="dense-bf16", time_ms=7.5)
    keep(
        tmp_path,
        "output.cuda.jsonl",
        entry="hierarchical",
        time_ms=None,
        missing="nothing works",
    )
    keep(tmp_path, "model.cuda.jsonl", entry="factored", time_ms=0.3)
    keep(tmp_path, "model.cpu.jsonl", entry="dense", time_ms=1.0, ratio_to_factored=11.5)
    lines = targets(measured).splitlines()
    assert "| factored Z-loss, B = 200 | <= 0.10 ms | 0.1 ms |" in lines
    assert (
        "| dense softmax (best of TF32, bf16, compiled) / factored, B = 200 | >= 70 | 75 |" in lines
    )
    assert "| hierarchical softmax / factored, B = 200 | >= 9 | not measured |" in lines
    assert (
        "| an epoch of One Billion Word with it, the paper's 150 million n-grams | < 4 min | 3.75 min |"
        in lines
    )
    assert "| net1, dense softmax / factored, CPU | >= 10.5 | 11.5 |" in lines


def test_new_records_take_the_place_of_old_ones(tmp_path: Path) -> None:
    measured = Measurements(tmp_path)
    for device in DEVICES:
        keep(tmp_path, f"output_layer.{device}.jsonl", entry="factored", time_ms=1.0)
        for classes in (10_000, 793_471):
            keep(tmp_path, f"output.{device}.jsonl", entry="factored", time_ms=3.0, classes=classes)
            keep(
                tmp_path,
                f"output.{device}.jsonl",
                entry="factored",
                time_ms=2.0,
                classes=classes,
                launch="graph",
            )
        keep(
            tmp_path,
            f"output.{device}.jsonl",
            entry="sampled",
            time_ms=9.0,
            ratio_to_factored=4.25,
        )
    table = speed(measured)
    assert "| factored Z-loss | | 2.00 ms |" in table
    assert "| sampled softmax, 8,192 samples | 4.25 | 4.5 |" in table
    assert "| dense softmax | not run | not run |" in table
    assert "of another run" not in table
    assert "| factored, CUDA graph |  |  |  | 2.00 ms | not run | 2.00 ms |  |  |" in heads(
        measured
    )


def test_no_time_is_divided_by_that_of_another_run(tmp_path: Path) -> None:
    """What the latest run has not is taken from an earlier one, both sides of it; a better time there is not."""
    measured = Measurements(tmp_path)
    keep(tmp_path, "output.cuda.jsonl", entry="factored", time_ms=0.1)
    keep(tmp_path, "output.cuda.jsonl", entry="cce", time_ms=10.0)
    keep(tmp_path, "output_layer.cuda.jsonl", entry="factored", time_ms=0.5)
    keep(tmp_path, "output_layer.cuda.jsonl", entry="cce", time_ms=9.0)
    keep(tmp_path, "output_layer.cuda.jsonl", entry="sampled", time_ms=4.0)
    keep(tmp_path, "gram.cuda.jsonl", entry="dense-z", time_ms=2.0, classes=100_000)
    keep(tmp_path, "output_layer.cuda.jsonl", entry="dense-z", time_ms=8.0, classes=100_000)
    keep(tmp_path, "output_layer.cuda.jsonl", entry="gram-z", time_ms=4.0, classes=100_000)
    lines = targets(measured).splitlines()
    assert "| factored Z-loss, B = 200 | <= 0.10 ms | 0.1 ms |" in lines
    assert (
        "| cut cross-entropy (the faster of both modes) / factored, B = 200 | >= 60 | 100 |"
        in lines
    )
    assert "| sampled softmax, 8,192 samples / factored, B = 200 | >= 5 | 8 |" in lines
    assert "| B = 200 | not run | 2.00 |" in gram(measured).splitlines()


def test_a_head_of_an_earlier_run_has_the_ratio_of_that_run(tmp_path: Path) -> None:
    measured = Measurements(tmp_path)
    keep(tmp_path, "output.cuda.jsonl", entry="factored", time_ms=1.0)
    keep(tmp_path, "output_layer.cuda.jsonl", entry="factored", time_ms=4.0)
    keep(tmp_path, "output_layer.cuda.jsonl", entry="sampled-512", time_ms=2.0)
    keep(tmp_path, "samples.cuda.jsonl", entry="sampled-512", time_ms=1e9)  # has no factored step
    table = speed(measured)
    assert "| sampled softmax, 512 samples | not run | 0.5* |" in table
    assert "* of another run" in table


def test_cells_of_earlier_runs_are_marked(tmp_path: Path) -> None:
    measured = Measurements(tmp_path)
    for device, file, commit, time_ms in (
        ("cuda", "output", "new", 0.1),
        ("cuda", "output_layer", "old", 0.5),
    ):
        keep(tmp_path, f"{file}.{device}.jsonl", entry="factored", time_ms=time_ms, commit=commit)
        keep(
            tmp_path,
            f"{file}.{device}.jsonl",
            entry="factored",
            time_ms=2 * time_ms,
            commit=commit,
            classes=10_000,
        )
    keep(tmp_path, "output_layer.cuda.jsonl", entry="nce", time_ms=3.0, commit="old")
    keep(tmp_path, "speed.cpu.jsonl", entry="factored", time_ms=9.0, ratio_to_factored=1.0)
    keep(
        tmp_path,
        "output_layer.cpu.jsonl",
        entry="nce",
        time_ms=3.0,
        ratio_to_factored=6.0,
        commit="old",
    )
    table = heads(measured)
    assert (
        "| factored | not run | not run | 1 | 0.20 ms | not run | 0.10 ms | 1.00 GB | 1.00 GB |"
        in table
    )
    assert (
        "| NCE, 8,192 samples | not run | not run | 6* | not run | not run | 3.00 ms* | 1.00 GB* | 1.00 GB* |"
        in table
    )
    assert "With * of another run" in table


def keep_training_run(
    folder: Path, file: str, *, part: str, classes: int, refactor_share: float
) -> None:
    """Add a record of a training run of a language model to a file."""
    scores = dict.fromkeys((*SCORES, "examples", "population"), 1)
    learning = {"steps": 1, "epochs": 1, "best_step": 1, "validation": [[1, 0.5]]}
    learning |= {"test": {"run": scores, "constant": scores}, "refactor_share": refactor_share}
    network = {"context": 6, "embedding": 8, "hidden": [16], "dropout": 0, "precision": "float32"}
    model = {"part": part, "head": "factored", "loss": "z_loss", "preset": "ptb", "training": {}}
    text = {"corpus": part, "training_words": 100, "classes": classes}
    settings = {"suite": "language_model", "network": network | {"head": {}}, "seed": 0}
    keep_line(folder, file, PLACE | settings | model | text | {"learning": learning})


def test_shares_of_refactors_are_of_the_text_they_name(tmp_path: Path) -> None:
    measured = Measurements(tmp_path)
    cpu, cuda = "language_model.cpu.jsonl", "language_model.cuda.jsonl"
    keep_training_run(tmp_path, cpu, part="ptb", classes=10_000, refactor_share=0.5)
    keep_training_run(tmp_path, cpu, part="fil8", classes=213_271, refactor_share=0.02)
    keep_training_run(tmp_path, cuda, part="ptb", classes=10_000, refactor_share=0.5)
    lines = targets(measured).splitlines()
    assert "| share of refactors in a run with 213,271 classes, CPU | < 5 % | 2 % |" in lines
    assert (
        "| share of refactors in a run with 213,271 classes, GPU | < 5 % | not measured |" in lines
    )
