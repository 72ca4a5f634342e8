"""The schema of the records of training runs: the committed files, and lines that it refuses."""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from benchmarks.tables import TIMINGS
from benchmarks.training_records import (
    LAYER_TITLES,
    SCORED_TITLES,
    ComparedScores,
    LanguageModelRecord,
    Layer,
    LongRunRecord,
    TrainingRecord,
)
from zloss_lab.configuration import dotted
from zloss_lab.records import read_records, read_records_as, write_records

KINDS: dict[str, type[TrainingRecord]] = {
    "language_model": LanguageModelRecord,
    "long_run": LongRunRecord,
}
FILES = [(kind, path) for suite, kind in KINDS.items() for path in TIMINGS.glob(f"{suite}.*.jsonl")]


def settings(record: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the values of a record that are not missing, by dotted key. A `null` is a missing value."""
    return ((key, value) for key, value in dotted(record) if value is not None)


@pytest.mark.parametrize(("kind", "path"), FILES, ids=lambda value: getattr(value, "name", ""))
def test_a_committed_file_is_read_without_loss(kind: type[TrainingRecord], path: Path) -> None:
    for line, record in zip(read_records(path), read_records_as(kind, path), strict=True):
        assert dict(settings(record.to_record())) == dict(settings(line))


def test_every_key_has_a_title() -> None:
    assert set(LAYER_TITLES) == set(get_args(Layer))
    assert set(SCORED_TITLES) == {field.name for field in dataclasses.fields(ComparedScores)}
    for titles in (list(LAYER_TITLES.values()), list(SCORED_TITLES.values())):
        assert len(set(titles)) == len(titles)


@pytest.mark.parametrize(
    ("suite", "changed", "message"),
    [
        ("long_run", {"layer": "factored, state in float32"}, "layer must be 'factored' or"),
        ("long_run", {"head": "factored"}, "unknown key: 'head'"),
        ("language_model", {"speed": None}, "a record must have one of speed and learning"),
        ("language_model", {"network": {}}, "[network] missing key: 'context'"),
    ],
)
def test_a_wrong_line_is_refused(
    suite: str, changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    line = read_records(TIMINGS / f"{suite}.cpu.jsonl")[0]
    write_records(tmp_path / "wrong.jsonl", [line | changed])
    with pytest.raises(ValueError, match=f"line 1 of .*: {re.escape(message)}"):
        read_records_as(KINDS[suite], tmp_path / "wrong.jsonl")
