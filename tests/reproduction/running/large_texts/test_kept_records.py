"""Records of table 2 that are kept, and records that are made again."""

import json
from pathlib import Path

import pytest

from tests.reproduction.running.command_line import run
from tests.reproduction.running.small import flags, lines, results
from zloss_lab import evaluation
from zloss_lab.records import read_records
from zloss_lab.training import Experiment


def test_existing_records_are_not_made_again(
    table2: list[object], tmp_path: Path, fitted: list[Experiment]
) -> None:
    asked = [*table2, "--budget", 0.1, "--models", "constant,z_loss_net1"]
    assert run(*asked, "--seeds", 1) == 0
    assert [experiment.training.seed for experiment in fitted] == [0]
    before = lines(tmp_path / "records", "table2")
    assert [line["model"] for line in before] == ["constant", "z_loss_net1"]
    fitted.clear()
    assert run(*asked, "--seeds", 1) == 0
    assert (fitted, lines(tmp_path / "records", "table2")) == ([], before)
    assert run(*asked, "--seeds", 2) == 0
    assert [experiment.training.seed for experiment in fitted] == [1]
    assert run(*asked[:-1], "hierarchical_softmax_net1", "--seeds", 1) == 0
    assert {model: len(seeds) for model, seeds in results(tmp_path / "records").items()} == {
        "constant": 1, "z_loss_net1": 2, "hierarchical_softmax_net1": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    "settings",
    [
        ["training.log_every=9"],
        ["training.keep=3", "training.graph=false"],
        ["training.lr=1.0"],
        ["training.patience=0", "network.dropout=0.0"],  # their values without the command
    ],
)
@pytest.mark.parametrize("is_early", [False, True])
def test_a_setting_that_changes_nothing_makes_no_other_record(
    settings: list[str],
    is_early: bool,
    table2: list[object],
    tmp_path: Path,
    fitted: list[Experiment],
) -> None:
    asked = [*table2, "--seeds", 1, "--models", "z_loss_net1", "--budget", 0.1]
    assert run(*asked) == 0
    path = tmp_path / "records" / "table2.jsonl"
    if is_early:
        (line,) = read_records(path)
        path.write_text(json.dumps(line | {"digest": None}))
    fitted.clear()
    assert run(*asked, *flags(*settings)) == 0
    assert fitted == []
    assert run(*asked, *flags("training.patience=1")) == 0
    assert len(fitted) == 1


def test_replaced_records_are_announced_first_and_kept(
    table2: list[object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*table2, "--models", "z_loss_net1", "--budget", 0.1, "--try-for", 0.1]
    assert run(*asked, "--seeds", 2, "--rates", "0.1") == 0
    assert "records with other settings" not in capsys.readouterr().out
    before = lines(tmp_path / "records", "table2")
    assert run(*asked, "--seeds", 1, "--rates", "0.2") == 0
    said = capsys.readouterr().out
    notice = "z_loss_net1, new records will replace records with other settings"
    assert said.index(notice) < said.index("trying lr 0.2")
    assert lines(tmp_path / "records", "table2.replaced") == before
    assert [
        one.settings["training.lr"] for one in results(tmp_path / "records")["z_loss_net1"]
    ] == [0.2]


def test_another_number_of_test_examples_is_another_record(
    table2: list[object], tmp_path: Path
) -> None:
    asked = [*table2, "--seeds", 1, "--models", "z_loss_net1", "--budget", 0.1]
    for limit in (30, 50):
        assert run(*asked, "--limit", limit) == 0
        (line,) = lines(tmp_path / "records", "table2")
        assert line["test"]["examples"] == limit
    stamp = (tmp_path / "records" / "table2.jsonl").stat().st_mtime_ns
    assert run(*asked, "--limit", 50) == 0
    assert (tmp_path / "records" / "table2.jsonl").stat().st_mtime_ns == stamp


@pytest.mark.parametrize("model", ["z_loss_net1", "constant"])
def test_a_record_of_few_test_examples_is_not_one_of_all(
    model: str, table2: list[object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*table2, "--seeds", 1, "--models", model, "--budget", 0.1]
    path = tmp_path / "records" / "table2.jsonl"
    assert run(*asked, "--limit", 30) == 0
    capsys.readouterr()
    assert run(*asked) == 0
    (line,) = read_records(path)
    assert line["test"]["examples"] == line["test"]["population"] > 30
    said = capsys.readouterr().out
    assert (
        f"{model}, the record of seed 0 is of 30 test examples, and {line['test']['examples']} are wanted"
        in said
    )
    assert [
        line["test"]["examples"] for line in lines(tmp_path / "records", "table2.replaced")
    ] == [30]
    stamp = path.stat().st_mtime_ns
    assert run(*asked) == 0
    assert path.stat().st_mtime_ns == stamp


def test_all_models_are_tested_on_as_many_examples(
    table2: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU too, where a network with probabilities takes twice as long, and frequencies no time at all."""
    monkeypatch.setattr(evaluation, "_LEAST_SAMPLE", 10)
    monkeypatch.setattr(evaluation, "_CPU_OPERATIONS", 4 * 1024 * 152 * 30)
    models = "constant,z_loss_net1,hierarchical_softmax_net1,z_loss_net2"
    assert run(*table2, "--seeds", 1, "--models", models, "--budget", 0.1) == 0
    (examples,) = {line["test"]["examples"] for line in lines(tmp_path / "records", "table2")}
    assert examples < 60
