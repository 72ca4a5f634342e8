"""Searches, and what they have found to be best."""

from pathlib import Path

import pytest

from reproduction.paper_figures import LOSS_TITLES
from reproduction.running.studies import SearchedLoss
from reproduction.scores import PAPER_SCORES
from tests.reproduction.running.command_line import run
from tests.reproduction.running.small import SEARCHED
from zloss_lab.runs import RunError
from zloss_lab.tuning.study import TuningStudy


def search(loss: str, corpus: Path, studies: Path) -> list[object]:
    """Return the command that searches for the settings of a loss, with small networks."""
    return ["search", "--corpus", corpus, "--studies", studies, "--losses", loss, *SEARCHED]


def test_a_search_leaves_a_study_of_every_loss(studies: Path) -> None:
    assert sorted(folder.name for folder in studies.iterdir()) == sorted(LOSS_TITLES)
    for loss in LOSS_TITLES:
        searched = SearchedLoss.read(studies, loss)
        assert searched.trials("mrr") == 3
        assert searched.best("mrr").experiment.network.head.loss == loss


def test_a_search_goes_on_and_never_sees_the_test_split(
    corpus: Path, tmp_path: Path, opened: list[str]
) -> None:
    asked = search("z_loss", corpus, tmp_path)
    assert run(*asked, "--trials", 2) == 0
    assert set(opened) == {"train", "valid"}
    opened.clear()
    assert run(*asked, "--trials", 2) == 0
    assert opened == [], "nothing is left to do"
    assert run(*asked, "--trials", 5, "--at-once", 3) == 0
    assert SearchedLoss.read(tmp_path, "z_loss").trials("mrr") == 5
    assert set(opened) == {"train", "valid"}


def test_what_is_set_stands_over_named_options(corpus: Path, tmp_path: Path) -> None:
    asked = search("softmax", corpus, tmp_path)
    assert run(*asked, "--trials", 1, "--epochs", 3, "--set", "training.epochs=2") == 0
    assert SearchedLoss.read(tmp_path, "softmax").best("mrr").experiment.training.epochs == 2


@pytest.mark.parametrize("score", PAPER_SCORES)
def test_the_best_is_that_of_the_score(score: str, studies: Path) -> None:
    trials = TuningStudy.open(studies / "z_loss").trials()
    sign = -1 if score == "mrr" else 1
    best = min(trials, key=lambda trial: sign * (trial.value(score) or 0.0))
    chosen = SearchedLoss.read(studies, "z_loss").best(score)
    assert chosen.settings.items() >= best.settings.items()
    assert chosen.experiment.training.lr == best.settings["training.lr"]
    assert chosen.settings["training.steps"] == 60
    assert not {"training.seed", "device"} & chosen.settings.keys()


def test_a_study_for_a_score_of_its_own_counts_too(corpus: Path, tmp_path: Path) -> None:
    asked = search("softmax", corpus, tmp_path)
    assert run(*asked, "--trials", 2, "--scores", "top_10_error,mrr") == 0
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["softmax", "softmax-mrr"]
    searched = SearchedLoss.read(tmp_path, "softmax")
    assert searched.trials("mrr") == 4
    values = [trial.value("mrr") or 0.0 for _, trial in searched.tried]
    best = searched.tried[values.index(max(values))][1]
    assert searched.best("mrr").settings.items() >= best.settings.items()


def test_changes_stand_over_what_was_found(studies: Path, corpus: Path) -> None:
    changes = {"training.steps": 7, "training.lr": 0.5, "device": "cpu"}
    chosen = SearchedLoss.read(studies, "z_loss", corpus=corpus, changes=changes).best("mrr")
    assert (chosen.experiment.training.steps, chosen.experiment.training.lr) == (7, 0.5)
    assert (chosen.settings["training.steps"], chosen.settings["training.lr"]) == (7, 0.5)
    assert chosen.experiment.corpus == str(corpus.resolve())
    assert "device" not in chosen.settings
    assert chosen.seeded(4).training.seed == 4


def test_a_study_of_another_loss_is_refused(studies: Path, tmp_path: Path) -> None:
    (tmp_path / "softmax").symlink_to(studies / "z_loss")
    with pytest.raises(RunError, match="the study z_loss is one of z_loss, not of softmax"):
        SearchedLoss.read(tmp_path, "softmax").best("mrr")
