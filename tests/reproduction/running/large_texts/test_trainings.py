"""Trainings of table 2: for a fixed time, for some epochs or until they converge."""

from pathlib import Path
from typing import Any

import pytest

from reproduction.report.evidence import Evidence
from reproduction.report.large_text_tables import final_tables
from reproduction.running.large_texts import run_folders
from tests.reproduction.running.command_line import run
from tests.reproduction.running.small import flags, lines, results
from zloss_lab.inspection.trained_model import TrainedModel
from zloss_lab.runs import Run
from zloss_lab.training import Experiment, fit


def test_until_it_converges(table2: list[object], tmp_path: Path) -> None:
    settings = flags(
        "training.validate_every=20", "training.stop_after=2", "training.lr_factor=0.1"
    )
    asked = [*table2, "--seeds", 1, "--models", "z_loss_net1", "--keep-runs", *settings]
    assert run(*asked, "--converged") == 0
    assert run(*asked, "--budget", 0.1) == 0
    one, other = results(tmp_path / "records")["z_loss_net1"]
    assert (one.budget, one.budget_s, other.budget, other.budget_s) == (
        "converged",
        None,
        "fixed",
        0.1,
    )
    trainings = [Run.open(path.parent) for path in (tmp_path / "runs").rglob("config.json")]
    (training,) = [it for it in trainings if it.config["training"]["schedule"] == "plateau"]
    assert training.state().schedule.lowered == 2
    assert training.metrics()[-1]["epoch"] == one.epochs
    assert training.state().seconds == one.train_s
    scores = TrainedModel.load(training.folder).evaluate("test")
    expected = {name: scores.score(name) for name in one.test.scores}
    assert one.test.scores == pytest.approx(expected, rel=1e-5)  # six digits are kept


def test_for_some_epochs(table2: list[object], tmp_path: Path, fitted: list[Experiment]) -> None:
    """Few and many stand side by side: that is how to see whether more would help."""
    asked = [*table2, "--seeds", 1, "--models", "z_loss_net1"]
    assert run(*asked, "--epochs", 1) == 0
    assert run(*asked, "--epochs", 2, "--shared-device") == 0
    assert run(*asked, "--epochs", 1) == 0, "it is there"
    assert [experiment.training.schedule for experiment in fitted] == ["linear", "linear"]
    one, two = results(tmp_path / "records")["z_loss_net1"]
    assert [(one.budget, one.epochs, one.is_alone), (two.budget, two.epochs, two.is_alone)] == [
        ("1_epoch", 1, True), ("2_epochs", 2, False),
    ]  # fmt: skip
    titles = [
        title
        for title, _ in final_tables(Evidence.read(tmp_path / "records", tmp_path / "timings"))
    ]
    assert [title.split(", ", 2)[2] for title in titles] == [
        "1 epoch of training each",
        "2 epochs of training each",
    ]


def test_seeds_may_be_shared_out(
    table2: list[object],
    tmp_path: Path,
    fitted: list[Experiment],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Among commands that run at once, on one device too: then their times do not count."""
    settings = flags(
        "training.validate_every=20", "training.stop_after=1", "training.lr_factor=0.1"
    )
    asked = [*table2, "--models", "z_loss_net1", "--seeds", 1, *settings]
    assert run(*asked, "--converged", "--first-seed", 1, "--shared-device") == 0
    assert run(*asked, "--converged") == 0
    assert [experiment.training.seed for experiment in fitted] == [1, 0]
    found = {one.seed: one.is_alone for one in results(tmp_path / "records")["z_loss_net1"]}
    assert found == {0: True, 1: False}
    capsys.readouterr()
    assert run(*asked, "--budget", 0.1, "--shared-device") == 1
    assert "depends on all that the device does" in capsys.readouterr().err


def test_records_name_the_commit_that_was_trained(
    table2: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZLOSS_COMMIT", "before")

    def changing(*asked: Any, **options: Any) -> Run:
        monkeypatch.setenv("ZLOSS_COMMIT", "after")
        return fit(*asked, **options)

    monkeypatch.setattr(run_folders, "fit", changing)
    assert run(*table2, "--budget", 0.1, "--seeds", 1, "--models", "z_loss_net1") == 0
    assert [line["commit"] for line in lines(tmp_path / "records", "table2")] == ["before"]
