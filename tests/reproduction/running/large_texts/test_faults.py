"""Table 2 after mistakes of users, trainings that diverge, and interruptions."""

import json
from pathlib import Path
from typing import Any

import pytest

from reproduction.running.large_texts import run_folders
from tests.reproduction.running.command_line import run, typed
from tests.reproduction.running.small import flags, results
from zloss_lab.inspection.trained_model import TrainedModel
from zloss_lab.records import read_records
from zloss_lab.runs import Run
from zloss_lab.training import DivergedError, Experiment, fit


def test_a_model_that_diverges_leaves_the_others_alone(
    table2: list[object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [
        *table2,
        *typed("--budget 0.2 --seeds 1 --models hierarchical_softmax_net1,z_loss_net1"),
    ]
    assert run(*asked, *flags("training.lr=1e30")) == 1
    error = capsys.readouterr().err
    assert "no record: table2, text, hierarchical_softmax_net1, seed 0: step" in error
    assert "no record: table2, text, z_loss_net1, seed 0: step" in error
    assert run(*asked, "--rates", "1e30,1e35") == 1
    assert "z_loss_net1: it diverges with all learning rates" in capsys.readouterr().err
    assert not (tmp_path / "records" / "table2.jsonl").exists()


def test_a_seed_that_diverges_leaves_the_others_alone(
    table2: list[object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As with --at-once."""

    def unlucky(experiment: Experiment, *more: Any, **options: Any) -> Run:
        if experiment.training.seed == 0:
            raise DivergedError("step 7: the loss is nan\nand more")
        return fit(experiment, *more, **options)

    monkeypatch.setattr(run_folders, "fit", unlucky)
    assert run(*table2, "--budget", 0.1, "--seeds", 2, "--models", "z_loss_net1") == 1
    assert (
        "no record: table2, text, z_loss_net1, seed 0: step 7: the loss is nan\n"
        in capsys.readouterr().err
    )
    assert [one.seed for one in results(tmp_path / "records")["z_loss_net1"]] == [1]


def test_an_interrupted_training_goes_on(
    table2: list[object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = [*table2, "--budget", 0.3, "--seeds", 1, "--models", "z_loss_net1", "--keep-runs"]
    asked += flags("training.checkpoint_every=5")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TrainedModel, "load", killed)  # when it has been trained
        assert run(*asked) == 130
    assert capsys.readouterr().err == "\nstopped; the same command goes on with what is missing\n"
    (config,) = (tmp_path / "runs").rglob("config.json")
    step = Run.open(config.parent).load().step
    assert run(*asked) == 0
    assert Run.open(config.parent).load().step == step
    assert len(results(tmp_path / "records")["z_loss_net1"]) == 1


@pytest.mark.parametrize(
    ("begun", "resumed"), [(["--shared-device"], []), ([], ["--shared-device"])]
)
def test_the_time_of_a_training_that_was_alone_for_a_while_does_not_count(
    begun: list[str],
    resumed: list[str],
    table2: list[object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = [*table2, "--epochs", 1, "--seeds", 1, "--models", "z_loss_net1"]

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TrainedModel, "load", killed)
        assert run(*asked, *begun) == 130
    assert run(*asked, *resumed) == 0
    assert [one.is_alone for one in results(tmp_path / "records")["z_loss_net1"]] == [False]
    assert not list((tmp_path / "runs").iterdir()), "nothing is left"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "say for how long to train, by one of --budget SECONDS, --epochs N or --converged"),
        (
            ("--budget", "1", "--converged"),
            "say for how long to train, by one of --budget SECONDS, --epochs N or --converged",
        ),
        (
            ("--epochs", "1", "--converged"),
            "say for how long to train, by one of --budget SECONDS, --epochs N or",
        ),
        (
            ("--epochs", "2", "--set", "training.epochs=3"),
            "training.epochs is not to be set here: use --budget",
        ),
        (("--budget", "0"), "seconds must be a finite number > 0, got 0.0"),
        (
            ("--budget", "1", "--models", "z_loss_net3"),
            "unknown model: 'z_loss_net3'; did you mean 'z_loss_net",
        ),
        (("--converged", "--rates", "0.1,1"), "--rates without --budget needs --try-for SECONDS"),
        (
            ("--budget", "1", "--rates", "0.1,high"),
            "--rates must be numbers above 0, separated by commas",
        ),
        (
            ("--budget", "1", "--rates", "0.1,nan"),
            "--rates must be numbers above 0, separated by commas",
        ),
        (
            ("--budget", "1", "--rates", "inf"),
            "--rates must be numbers above 0, separated by commas",
        ),
        (
            ("--budget", "1", "--rates", "1", "--try-for", "0"),
            "--try-for must be a finite number of seconds above 0",
        ),
        (
            ("--budget", "1", "--rates", "1", "--try-for", "-1"),
            "--try-for must be a finite number of seconds above 0",
        ),
        (
            ("--budget", "1", "--set", "training.steps=4"),
            "training.steps is not to be set here: use --budget",
        ),
        (
            ("--budget", "1", "--set", "training.seconds=4"),
            "use --budget SECONDS, --epochs N or --converged",
        ),
        (
            ("--budget", "1", "--set", "training={lr=2.0}"),
            "training is not to be set here: use --budget SECONDS",
        ),
        (
            ("--converged", "--set", "training.schedule=linear"),
            "use --budget SECONDS, --epochs N or --converged",
        ),
        (("--budget", "1", "--set", "training.lrr=1"), "did you mean 'lr'"),
        (("--budget", "1", "--set", "lr=1"), "unknown key: 'lr'; did you mean 'training.lr'?"),
        (("--budget", "1", "--set", "corpus=x"), "name the corpus by --corpus FOLDER"),
        (("--budget", "1", "--corpus", "NOWHERE"), "NOWHERE is no prepared corpus"),
    ],
)
def test_mistakes_end_with_a_line(
    arguments: tuple[str, ...],
    message: str,
    table2: list[object],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(*table2, *arguments) == 1
    error = capsys.readouterr().err
    assert message in error.replace("\n", " ")
    assert "Traceback" not in error
    assert list(tmp_path.iterdir()) == []


def test_records_of_another_text_of_the_name_are_no_match(
    table2: list[object], corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*table2, "--seeds", 1, "--models", "constant", "--budget", 0.1]
    assert run(*asked) == 0
    path = tmp_path / "records" / "table2.jsonl"
    path.write_text(json.dumps(read_records(path)[0] | {"classes": 7}) + "\n")
    capsys.readouterr()
    assert run(*asked) == 1
    assert "with 7 classes, and" in capsys.readouterr().err
