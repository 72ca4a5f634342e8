"""Turns, heats and records, with cases that cost nothing."""

import json
from collections.abc import Hashable, Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Literal

import pytest
import torch

from tests.lab.bench.bench_command import FIELDS
from zloss_lab.bench import race, timing
from zloss_lab.bench.cases import Case
from zloss_lab.bench.gate import WrongResultError
from zloss_lab.bench.race import Conditions, Journal, Race, heats
from zloss_lab.bench.schema import BenchRecord
from zloss_lab.bench.timing import TimedWork, Work
from zloss_lab.records import Record, read_records

CPU = torch.device("cpu")
log: list[str] = []


@dataclass(frozen=True, kw_only=True)
class FakeRecord(BenchRecord):
    suite: Literal["fake"]
    name: str

    @property
    def title(self) -> str:
        return self.name


@dataclass(frozen=True, kw_only=True)
class Fake(Case):
    suite: ClassVar[str] = "fake"
    record_kind: ClassVar[type[BenchRecord]] = FakeRecord
    title: str
    gigabytes: int = 1
    is_wrong: bool = False
    breaks_at: int | None = None
    interrupts_at: int | None = None
    has_pacesetter: bool = False

    @property
    def name(self) -> str:
        return self.title

    def description(self) -> Record:
        return super().description() | {"name": self.name}

    @property
    def group(self) -> Hashable:
        return self.classes

    @property
    def gate(self) -> Hashable:
        return self.title

    def missing(self, device: torch.device) -> str | None:
        return "nobody has it" if self.title == "missing" else None

    def bytes_needed(self) -> int:
        return self.gigabytes * 10**9

    def check(self, device: torch.device) -> None:
        if self.is_wrong:
            raise WrongResultError("two and two are five")

    def pacesetter(self) -> Case | None:
        return case("pace", gigabytes=2) if self.has_pacesetter else None

    @contextmanager
    def prepared(self, device: torch.device) -> Iterator[Work]:
        steps = iter(range(10**6))

        def step() -> None:
            number = next(steps)
            log.append(self.title)
            if number == self.breaks_at:
                raise RuntimeError("out of luck\nwith details")
            if number == self.interrupts_at:
                raise KeyboardInterrupt

        yield Work(step)
        log.append(f"{self.title} closed")


def case(title: str, **options: object) -> Fake:
    return Fake(title=title, batch=1, hidden=1, classes=2, **options)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    log.clear()
    monkeypatch.setattr(timing, "_MOST_STEPS", {"cpu": 1})
    monkeypatch.setattr(race, "room_bytes", lambda device: 10**10)


def measured(path: Path, *cases: Case, repeats: int = 3, measures_memory: bool = False) -> Journal:
    conditions = Conditions(device=CPU, repeats=repeats, measures_memory=measures_memory)
    journal = Journal(path / "records.jsonl", CPU)
    Race(cases, conditions, journal, lambda what, done, total: None).run()
    return journal


def test_cases_take_turns(tmp_path: Path) -> None:
    measured(tmp_path, case("a"), case("b"))
    warm_up = ["a", "a", "b", "b"]
    assert log == [*warm_up, *(["a", "b"] * 3), "b closed", "a closed"]


def test_a_pacesetter_runs_in_every_heat_and_is_not_reported(tmp_path: Path) -> None:
    journal = measured(tmp_path, *(case(name, gigabytes=5, has_pacesetter=True) for name in "abc"))
    assert log.count("pace closed") == 3
    assert [record.title for record in journal.records] == ["a", "b", "c"]
    assert all((record.ratio_to_factored or 0) > 0 for record in journal.records)


def test_heats_hold_what_fits() -> None:
    cases = [
        case(name, gigabytes=size) for name, size in zip("abcde", (3, 3, 3, 9, 1), strict=True)
    ]
    names = [[case.name for case in heat] for heat in heats(cases, 10 * 10**9, lambda case: None)]
    assert names == [["a", "b", "c"], ["d", "e"]]
    assert [len(heat) for heat in heats(cases, None, lambda case: None)] == [1] * 5
    beside = case("pace", gigabytes=2)
    assert [len(heat) for heat in heats(cases, 10 * 10**9, lambda case: beside)] == [2, 1, 1, 1]


def test_what_cannot_be_measured_is_told_and_the_rest_goes_on(tmp_path: Path) -> None:
    cases = [
        case("missing"),
        case("wrong", is_wrong=True),
        case("huge", gigabytes=99),
        case("broken", breaks_at=0),
    ]
    journal = measured(tmp_path, *cases, case("fine"))
    told = {record.title: record.missing for record in journal.records}
    assert list(told) == ["missing", "wrong", "huge", "broken", "fine"]
    assert told["missing"] == "nobody has it"
    assert told["wrong"] == "refused: two and two are five"
    assert told["huge"] is not None
    assert told["huge"].endswith("needs about 99.0 GB of memory, and 10.0 GB may be used")
    assert told["broken"] == "failed: RuntimeError: out of luck"
    assert told["fine"] is None
    assert [fault.split()[0] for fault in journal.faults] == ["wrong", "broken"]
    assert all(record.time_ms is None for record in journal.records[:-1])


def test_memory_that_cannot_be_measured_is_told_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed_for_a(case: Case) -> int:
        if case.name == "a":
            raise BrokenProcessPool("a process was terminated abruptly\nwith details")
        return 7

    monkeypatch.setattr(race, "cpu_peak_bytes", killed_for_a)
    journal = measured(tmp_path, case("a"), case("b"), measures_memory=True)
    assert [(record.title, record.peak_bytes) for record in journal.records] == [
        ("a", None),
        ("b", 7),
    ]
    assert all((record.time_ms or 0) > 0 for record in journal.records)
    (fault,) = journal.faults
    assert fault.startswith("a (")
    assert fault.endswith("memory, failed: BrokenProcessPool: a process was terminated abruptly")


def test_an_interrupt_keeps_what_is_measured(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        measured(tmp_path, case("a"), case("b", interrupts_at=4), repeats=10)
    kept = {
        record["name"]: record["repeats"] for record in read_records(tmp_path / "records.jsonl")
    }
    assert kept == {"a": 3, "b": 2}


def test_records_say_where_they_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZLOSS_COMMIT", "abc1234")
    measured(tmp_path, case("a"))
    (record,) = (json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines())
    assert record.keys() >= FIELDS
    assert {"python", "torch", "zloss", "numpy"} <= record["versions"].keys()
    assert (record["commit"], record["launch"], record["seed"]) == ("abc1234", "eager", 0)
    low, high = record["time_ms_quartiles"]
    assert (
        record["time_ms_range"][0] <= low <= record["time_ms"] <= high <= record["time_ms_range"][1]
    )


def test_bursts_are_long_enough_and_every_step_has_other_inputs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timing, "_MOST_STEPS", {"cpu": 20})
    seen: list[int] = []
    runner = TimedWork(Work(seen.append, [(number,) for number in range(7)]), CPU)
    runner.warm_up()
    assert runner.burst == 20
    seen.clear()
    runner.take_turn()
    assert len(seen) == 20
    assert all((after - before) % 7 == 1 for before, after in pairwise(seen))


def test_refactors_among_timed_steps_are_told() -> None:
    steps: list[int] = []
    runner = TimedWork(Work(lambda: steps.append(0), refactors=lambda: len(steps) // 5), CPU)
    runner.warm_up()
    warm = len(steps) // 5
    for _ in range(10):
        runner.take_turn()
    assert runner.results()["refactors"] == len(steps) // 5 - warm > 0
    assert "refactors" not in TimedWork(Work(print), CPU, times_ms=[1.0]).results()


def test_spread_and_ratio() -> None:
    told = timing.time_statistics([3.0, 1.0, 2.0, 4.0, 100.0], burst=1)
    assert (told["time_ms"], told["time_ms_quartiles"], told["time_ms_range"]) == (
        3.0,
        [2.0, 4.0],
        [1.0, 100.0],
    )
    assert timing.time_statistics([2.0], burst=1)["time_ms_quartiles"] == [2.0, 2.0]
    assert (
        timing.median_ratio([2.0, 20.0, 2.0], [1.0, 10.0, 1.0, 7.0]) == 2.0
    )  # a slow minute affects both
