"""The schema of the records of `zloss bench`: the committed files, and lines that it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.lab.bench.bench_command import RECORDS
from zloss_lab.bench.entries import ENTRIES, head_title
from zloss_lab.bench.schema import HeadRecord, LayerRecord, read_bench_records
from zloss_lab.records import read_records, write_records

# Of other programs.
OTHER_FILES = (
    "baselines",
    "campaign",
    "coverage",
    "head_defaults",
    "language_model",
    "long_run",
    "mean_rank",
    "mutation",
    "ngrams",
    "rates",
    "size",
    "versions",
)
FILES = [
    path for path in sorted(RECORDS.glob("*.jsonl")) if path.name.split(".")[0] not in OTHER_FILES
]
STEP: dict[str, Any] = {
    "suite": "output",
    "entry": "dense-tf32",
    "head": "dense",
    "loss": "softmax",
    "options": {},
    "precision": "tf32",
    "targets": "uniform",
    "batch": 200,
    "hidden": 512,
    "classes": 1000,
    "launch": "eager",
    "seed": 0,
    "time_ms": 1.5,
    "device": "a GPU",
    "versions": {"torch": "2.13"},
    "commit": "abc1234",
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_committed_file_is_read_without_loss(path: Path) -> None:
    records = read_bench_records(path)
    for line, record in zip(read_records(path), records, strict=True):
        written = record.to_record()
        assert written | line == written
        assert all(value is None for key, value in written.items() if key not in line)


def test_a_head_has_one_key_and_one_title() -> None:
    found = {
        record.entry
        for path in FILES
        for record in read_bench_records(path)
        if isinstance(record, HeadRecord)
    }
    titles = {key: head_title(key) for key in ENTRIES.keys() | found}
    assert len(set(titles.values())) == len(titles)
    assert titles["dense-tf32"] == LayerRecord.from_record(STEP).title == "dense softmax, TF32"
    assert LayerRecord.from_record(STEP | {"targets": "zipf"}).title.endswith("words by frequency")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"suite": "speed"}, r'"suite" of line 1 must be one of output, .*, got \'speed\''),
        ({"suite": "model"}, "missing key: 'network', 'trunk_precision'"),
        ({"name": "dense softmax, TF32"}, "unknown key: 'name'"),
        ({"time_ms": -1.0}, r"time_ms must be a number above 0, got -1\.0"),
        ({"time_ms": float("inf")}, "Infinity is no JSON: numbers are finite"),
        ({"launch": "later"}, "launch must be 'eager' or 'graph', got 'later'"),
    ],
)
def test_a_wrong_line_is_refused(change: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    (tmp_path / "o.jsonl").write_text(json.dumps(STEP | change) + "\n")
    with pytest.raises(ValueError, match=complaint):
        read_bench_records(tmp_path / "o.jsonl")


def test_a_step_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    write_records(tmp_path / "o.jsonl", [STEP, STEP | {"time_ms": 2.0}])
    with pytest.raises(ValueError, match=r"line 2 of .*: an earlier line has the same key"):
        read_bench_records(tmp_path / "o.jsonl")
