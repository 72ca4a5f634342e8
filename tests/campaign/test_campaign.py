"""The campaign: a few attempts of each attack, and its runner with pretended attacks."""

import ast
import os
import secrets
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.campaign_table import AttackRecord, merge_records, recorded_table
from tests.campaign.campaign import falls, main, records, run, summary, tries_of
from tests.campaign.discovery import (
    HERE,
    attacks_of,
    attempt_seed,
    chosen,
    make_attempt,
    module_names,
    repeat_command,
)
from tests.campaign.pretended.attacks import DRAWS
from tests.campaign.schedule import Schedule
from tests.campaign.warm_commands import IS_POSSIBLE
from tests.campaign.worker_processes import Outcome, Task
from tests.lab.corpora.interruptions import wait_for_the_end_of
from zloss_lab.records import read_records, read_records_as

ATTACKS = attacks_of(module_names())
PRETENDED = "tests.campaign.pretended.attacks"
# Fresh attempts at every desk, the same ones in every automatic run: a change is judged by its own doing.
SEED = 0 if os.environ.get("CI") else secrets.randbelow(2**32)


# From tarfile and zipfile of Python, which leave a damaged archive open until it is collected.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("key", ATTACKS)
def test_attempts_hold(key: str, tmp_path: Path) -> None:
    attack = ATTACKS[key]
    if attack.needs_gpu and not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    for number in range(attack.tries_in_tests):
        seed = attempt_seed(SEED, key, number)
        try:
            make_attempt(attack, seed, tmp_path)
        except Exception as error:
            error.add_note(repeat_command(key, seed))
            raise


def test_all_attacks_are_found() -> None:
    """Every module that gives the name ATTACKS a value is asked for its attacks."""
    defining = set()
    for path in HERE.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            targets += [node.target] if isinstance(node, ast.AnnAssign) else []
            if any(isinstance(one, ast.Name) and one.id == "ATTACKS" for one in targets):
                defining.add(".".join(path.relative_to(HERE.parents[1]).with_suffix("").parts))
    assert defining - {PRETENDED, "tests.campaign.test_campaign"} <= set(module_names())
    assert ({"kills", "signals", "disks"} <= ATTACKS.keys()) == IS_POSSIBLE


def test_a_key_that_occurs_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="two attacks have the key 'hold'"):
        attacks_of([PRETENDED, PRETENDED])


def outcomes(
    tries: dict[str, int], *, processes: int = 1, limit_s: float = 60.0, seed: int = 0
) -> Schedule:
    """Run pretended attacks."""
    attacks = chosen(attacks_of([PRETENDED]), list(tries))
    schedule = Schedule(list(attacks.values()), seed, tries=tries)
    run(schedule, [PRETENDED], processes=processes, limit_s=limit_s)
    return schedule


def test_falls_errors_crashes_and_hangs_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that ends or hangs is replaced, with all that it has begun, and nothing is left on the disk."""
    monkeypatch.setenv(DRAWS, str(tmp_path / "child"))
    (tmp_path / "own").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "own"))
    tries = {"hang": 1, "crash": 1, "leave": 1, "raise_error": 1, "hold": 3, "fall": 12}
    schedule = outcomes(tries, processes=2, limit_s=8.0)
    faults = {key: [one.fault for one in tally.falls] for key, tally in schedule.tallies.items()}
    assert faults["hang"] == ["it hung for 8 s"]
    assert faults["crash"] == ["it ended its process: SIGSEGV"]
    assert faults["leave"] == ["it ended its process: exit status 3"]
    assert "ZeroDivisionError: not expected" in str(faults["raise_error"])
    assert faults["hold"] == []
    assert 0 < len(faults["fall"]) < 12
    assert all(str(fault).startswith("drew ") for fault in faults["fall"])
    assert [tally.tried for tally in schedule.tallies.values()] == list(tries.values())
    assert {one.task.key for one in falls(schedule)} == tries.keys() - {"hold"}
    assert summary(schedule).row_count == len(tries)
    assert list((tmp_path / "own").iterdir()) == []
    wait_for_the_end_of(int((tmp_path / "child").read_text()))


def test_a_seed_repeats_the_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DRAWS, str(tmp_path / "draws"))
    attack = attacks_of([PRETENDED])["draw"]
    for seed in (1, 2, 1):
        make_attempt(attack, seed, tmp_path)
    first, second, third = (tmp_path / "draws").read_text().splitlines()
    assert first == third != second


def test_attacks_share_the_time_by_their_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    hold = attacks_of([PRETENDED])["hold"]
    attacks = [replace(hold, key=key, weight=weight) for key, weight in (("a", 1.0), ("b", 3.0))]
    now = 0.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    schedule = Schedule(attacks, 0, seconds=400)
    took = {"a": 2.0, "b": 1.0}
    while task := schedule.next():
        schedule.add(Outcome(task, None, took[task.key]))
        now += took[task.key]
    used = {key: tally.seconds for key, tally in schedule.tallies.items()}
    assert used["a"] == pytest.approx(100, abs=4)
    assert used["b"] == pytest.approx(300, abs=4)
    assert [tally.tried for tally in Schedule(attacks, 0).tallies.values()] == [0, 0]
    without_time = Schedule(attacks, 0)
    assert [without_time.next() for _ in range(3)][2] is None, "each attack gets one attempt"


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="there is no attack 'dragons': choose from "):
        main(["--only", "dragons"])
    with pytest.raises(SystemExit, match="--tries takes N or KEY=N, got 'many'"):
        main(["--tries", "kills=many"])
    assert tries_of(["2", "kills=5"], ATTACKS) == dict.fromkeys(ATTACKS, 2) | {"kills": 5}
    record = tmp_path / "records.jsonl"
    options = ["--only", "disks", "--tries", "0", "--seed", "7", "--output", str(record)]
    assert main(options) == 0
    assert "seed 7" in capsys.readouterr().out
    assert read_records(record) == []


def test_a_repeated_attempt_shows_its_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.campaign.campaign.module_names", lambda: [PRETENDED])
    assert main(["--repeat", "hold:3"]) == 0
    assert capsys.readouterr().out == "hold:3 has held\n"
    with pytest.raises(ZeroDivisionError, match="not expected"):
        main(["--repeat", "raise_error:3"])


def test_records_of_attacks_that_were_not_run_stay(tmp_path: Path) -> None:
    path = tmp_path / "campaign.cpu.jsonl"
    tallied = Schedule(list(attacks_of([PRETENDED]).values()), 5, tries={})
    for key, fault in (("hold", None), ("fall", "drew 1"), ("fall", None)):
        tallied.add(Outcome(Task(key, 1), fault, 30.0))
    first = records(tallied)
    assert [(one.attack, one.tried, one.held, one.fell) for one in first] == [
        ("hold", 1, 1, 0),
        ("fall", 2, 1, 1),
    ]
    merge_records(path, first)
    newer = replace(first[0], tried=1000, held=1000)
    merge_records(path, [newer])
    kept = {one.attack: one for one in read_records_as(AttackRecord, path)}
    assert kept == {"fall": first[1], "hold": newer}
    assert "| hold | CPU | 1,000 | 1,000 | 0 | 0 |" in recorded_table(tmp_path)
