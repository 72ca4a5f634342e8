"""Figures 3 and 4 on the command line: many values of a and b, and curves by epoch."""

import re
from pathlib import Path
from typing import Any

import pytest

from reproduction.paper_figures import CURVE_ERRORS
from reproduction.results.paper_results import PaperResults
from reproduction.running import collecting
from reproduction.running.stacks import train_stack
from reproduction.running.studies import SearchedLoss
from tests.reproduction.running.command_line import run, typed
from tests.reproduction.running.small import flags, lines
from zloss_lab.records import write_records
from zloss_lab.sidebyside import SideBySide
from zloss_lab.training import Experiment


def test_an_interruption_costs_one_stack(
    folders: list[object],
    studies: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    begun: list[int] = []

    def interrupted(experiments: list[Experiment], *more: Any) -> Any:
        begun.append(len(experiments))
        if len(begun) == 2:
            raise KeyboardInterrupt
        return train_stack(experiments, *more)

    monkeypatch.setattr(collecting, "train_stack", interrupted)
    asked = ["figure4", *folders, *typed("--seeds 1 --at-once 1")]
    networks = len(
        {repr(SearchedLoss.read(studies, "z_loss").best(score).settings) for score in CURVE_ERRORS}
    )
    assert networks > 1, "not a test"
    assert run(*asked) == 130
    assert "the same command goes on" in capsys.readouterr().err
    there = len(lines(tmp_path, "figure4"))
    assert 1 <= there < 4
    begun.clear()

    def noted(experiments: list[Experiment], *more: Any) -> Any:
        begun.append(len(experiments))
        return train_stack(experiments, *more)

    monkeypatch.setattr(collecting, "train_stack", noted)
    assert run(*asked) == 0
    assert len(begun) == networks - 1
    assert len(lines(tmp_path, "figure4")) == 4


def test_the_sweep_of_a_and_other_b_where_it_is_best(
    folders: list[object], studies: Path, tmp_path: Path, stacks: list[list[Experiment]]
) -> None:
    asked = ["figure3", *folders, *typed("--seeds 2 --a 0.1,0.5,2.5")]
    assert run(*asked) == 0
    points = PaperResults.read(tmp_path).figure3
    sweep = {point.a: 0.0 for point in points if point.b == 28}
    assert list(sweep) == [0.1, 0.5, 2.5]
    for point in points:
        if point.b == 28:
            sweep[point.a] += point.valid["top_10_error"]
    best = min(sweep, key=lambda a: sweep[a])
    assert (
        sorted((point.a, point.b) for point in points if point.b != 28)
        == [(best, 14.0)] * 2 + [(best, 56.0)] * 2
    )
    heads = [experiment.network.head.options for stack in stacks for experiment in stack]
    assert sorted({(head["a"], head["b"]) for head in heads}) == sorted(
        {(point.a, point.b) for point in points}
    )
    base = SearchedLoss.read(studies, "z_loss").best("top_10_error").settings
    for point in points:
        assert point.settings == {**base, "network.head.a": point.a, "network.head.b": point.b}
    stacks.clear()
    assert run(*asked) == 0
    assert stacks == []
    assert run(*asked[:-1], "0.1", *flags("training.steps=20")) == 0
    kept = PaperResults.read(tmp_path).figure3
    assert {(point.a, point.b) for point in kept} == {(0.1, 28.0), (0.1, 14.0), (0.1, 56.0)}, (
        "no mix of settings"
    )


def test_a_sweep_that_cannot_be_made_anew_stays_as_it_is(
    folders: list[object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With other settings, nothing can be trained or everything diverges. Old records stay until there are new ones."""
    asked = ["figure3", *folders, *typed("--seeds 1 --a 0.1,0.5")]
    assert run(*asked) == 0
    before = lines(tmp_path, "figure3")
    for settings in (("training.steps=20", "device=cuda:99"), ("training.lr=1e30",)):
        assert run(*asked[:-1], "0.1", *flags(*settings)) == 1
        assert lines(tmp_path, "figure3") == before
        assert "new records will replace" in capsys.readouterr().out


def test_a_sweep_is_of_one_preset(folders: list[object], tmp_path: Path) -> None:
    """Points that were made before it changed go, whether they are asked for now or not."""
    asked = ["figure3", *folders, "--seeds", 1]
    assert run(*asked, "--a", "0.1,0.5") == 0
    write_records(
        tmp_path / "figure3.jsonl",
        [line | {"digest": "old"} for line in lines(tmp_path, "figure3")],
    )
    assert run(*asked, "--a", "0.1") == 0
    assert {(line["a"], line["b"]) for line in lines(tmp_path, "figure3")} == {
        (0.1, 28),
        (0.1, 14),
        (0.1, 56),
    }
    assert "old" not in {line["digest"] for line in lines(tmp_path, "figure3")}


def without_origin(records: list[Any]) -> list[Any]:
    return [{key: value for key, value in record.items() if key != "commit"} for record in records]


def test_removed_points_with_other_b_are_reported(
    folders: list[object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The best a has moved, and other b are of interest there."""
    asked = ["figure3", *folders, *typed("--seeds 1 --a 0.1,0.5")]
    assert run(*asked) == 0
    points = lines(tmp_path, "figure3")
    moved = [line | {"a": 0.05} if line["b"] != 28 else line for line in points]
    write_records(tmp_path / "figure3.jsonl", moved)
    capsys.readouterr()
    assert run(*asked) == 0
    assert re.search(r"figure3: removed 2 records .*; they are kept in", capsys.readouterr().out)
    assert without_origin(lines(tmp_path, "figure3")) == without_origin(points)


def test_curves_have_the_best_settings_for_four_errors(
    folders: list[object], studies: Path, tmp_path: Path, opened: list[str]
) -> None:
    assert run("figure4", *folders, "--seeds", 2) == 0
    assert set(opened) == {"train", "valid"}, "the figure shows validations"
    curves = PaperResults.read(tmp_path).figure4
    assert {(one.tuned_for, one.seed) for one in curves} == {
        (score, seed) for score in CURVE_ERRORS for seed in (0, 1)
    }
    for one in curves:
        chosen = SearchedLoss.read(studies, "z_loss").best(one.tuned_for)
        assert (one.a, one.b) == (
            chosen.settings["network.head.a"],
            chosen.settings["network.head.b"],
        )
        outcome = SideBySide([chosen.seeded(one.seed)]).train()[0]
        curve = [(point.epoch, *map(point.valid.scores.get, CURVE_ERRORS)) for point in one.curve]
        assert curve == [
            (v.epoch, *map(v.evaluation.score, CURVE_ERRORS)) for v in outcome.validations
        ]
