"""Files of results: one JSON object a line, checked line by line when it is read and before it is written."""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from reproduction.results.schema import (
    Choice,
    LargeTextResult,
    SweepPoint,
    TrainingCurve,
    TrainingResult,
    TunedResult,
)
from zloss_lab.records import Record, read_records, write_records

# By the name of the file without its ending, which is the name of a figure or table.
KINDS: Mapping[str, type[TrainingResult]] = {
    "figure2": TunedResult,
    "figure3": SweepPoint,
    "figure4": TrainingCurve,
    "figure5": TunedResult,
    "table2": LargeTextResult,
}

AnyResult = TypeVar("AnyResult", bound=TrainingResult)


def read_results(folder: Path, name: str, kind: type[AnyResult]) -> tuple[AnyResult, ...]:
    """Return the results of a figure or table, none where it has no file; `ValueError` names the wrong line.

    They are in the order of their seeds: nothing that is computed from them depends on the training that ended first.
    """
    results = _read_lines(folder, name, kind)
    _require_one_setting_per_choice(str(folder / f"{name}.jsonl"), results)
    seeds: dict[Choice, dict[int, AnyResult]] = {}
    for result in results:
        seeds.setdefault(result.choice, {})[result.seed] = result
    return tuple(of_choice[seed] for of_choice in seeds.values() for seed in sorted(of_choice))


def read_in_order(folder: Path, name: str) -> list[TrainingResult]:
    """Return the results in the order of the file, even if some of them cannot be compared."""
    return _read_lines(folder, name, KINDS[name])


def write_results(folder: Path, name: str, results: Collection[TrainingResult]) -> None:
    """Check the results of a figure or table, and replace its file."""
    for result in results:
        _require_right_file(result.to_record(), name)
    _require_one_setting_per_choice(name, results)
    write_records(folder / f"{name}.jsonl", results)


def _require_one_setting_per_choice(place: str, results: Iterable[TrainingResult]) -> None:
    """Refuse a seed that is there twice, and seeds of one choice that have different settings."""
    seen: dict[Choice, dict[int, TrainingResult]] = {}
    for number, result in enumerate(results, start=1):
        others = seen.setdefault(result.choice, {})
        choice = ", ".join(map(str, result.choice))
        if result.seed in others:
            raise ValueError(
                f"{place}, line {number}: seed {result.seed} of {choice} is there twice"
            )
        if not all(other.is_made_with(result.settings, result.digest) for other in others.values()):
            raise ValueError(
                f"{place}, line {number}: seeds of {choice} have different settings, so their mean would mean nothing"
            )
        others[result.seed] = result


def _read_lines(folder: Path, name: str, kind: type[AnyResult]) -> list[AnyResult]:
    path = folder / f"{name}.jsonl"
    if not path.exists():
        return []
    return [
        _result_of(record, name, kind, place=f"{path}, line {number}")
        for number, record in enumerate(read_records(path), start=1)
    ]


def _result_of(record: Record, name: str, kind: type[AnyResult], *, place: str) -> AnyResult:
    try:
        _require_right_file(record, name)
        return kind.from_record(record)
    except ValueError as error:
        raise ValueError(f"{place}: {error}: restore or delete the line") from error


def _require_right_file(record: Record, name: str) -> None:
    """Refuse a record of another figure or table than that of the file."""
    about, number = name[:-1], int(name[-1])
    if record.get(about) != number:
        raise ValueError(f'"{about}" must be {number} in this file, got {record.get(about)!r}')
