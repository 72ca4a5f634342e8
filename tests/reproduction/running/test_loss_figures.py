"""Figures 2 and 5 on the command line: every loss, tuned for each score."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from reproduction.results.paper_results import PaperResults
from reproduction.results.schema import SplitScores
from reproduction.running.studies import SearchedLoss
from reproduction.scores import PAPER_SCORES
from tests.reproduction.running.command_line import run, typed
from tests.reproduction.running.small import flags, lines
from zloss_lab.corpora.manifest import read_manifest, write_manifest
from zloss_lab.evaluation import Evaluation
from zloss_lab.sidebyside import SideBySide
from zloss_lab.training import Experiment


def test_losses_are_tested_with_the_best_settings_for_each_score(
    folders: list[object], studies: Path, tmp_path: Path, stacks: list[list[Experiment]]
) -> None:
    asked = ["figure2", *folders, "--seeds", 2]
    assert run(*asked, "--losses", "z_loss,softmax") == 0
    results = PaperResults.read(tmp_path).figure2
    assert {(one.loss, one.tuned_for, one.seed) for one in results} == {
        (loss, score, seed)
        for loss in ("z_loss", "softmax")
        for score in PAPER_SCORES
        for seed in (0, 1)
    }
    for loss in ("z_loss", "softmax"):
        searched = SearchedLoss.read(studies, loss)
        networks = {repr(searched.best(score).settings) for score in PAPER_SCORES}
        assert sum(len(stack) for stack in stacks if stack[0].network.head.loss == loss) == 2 * len(
            networks
        )
    one = next(
        one for one in results if (one.loss, one.tuned_for, one.seed) == ("z_loss", "mrr", 1)
    )
    experiment = SearchedLoss.read(studies, "z_loss").best("mrr").seeded(1)
    stack = SideBySide([replace(experiment, training=replace(experiment.training, score="mrr"))])
    best, test = stack.train()[0].best, stack.evaluate("test")[0]
    assert best is not None
    assert test is not None
    for recorded, evaluation in ((one.valid, best.evaluation), (one.test, test)):
        for score in PAPER_SCORES:
            assert recorded[score] == pytest.approx(
                evaluation.score(score), rel=1e-5
            )  # six digits are kept
    assert (one.trials, one.settings) == (
        3,
        SearchedLoss.read(studies, "z_loss").best("mrr").settings,
    )


def test_existing_records_are_not_made_again(
    folders: list[object], tmp_path: Path, stacks: list[list[Experiment]]
) -> None:
    asked = ["figure2", *folders, *typed("--scores mrr,top_1_error")]
    assert run(*asked, "--losses", "softmax", "--seeds", 1) == 0
    before = lines(tmp_path, "figure2")
    stacks.clear()
    assert run(*asked, "--losses", "softmax", "--seeds", 1) == 0
    assert (stacks, lines(tmp_path, "figure2")) == ([], before)
    assert run(*asked, "--losses", "softmax", "--seeds", 2) == 0
    assert {experiment.training.seed for stack in stacks for experiment in stack} == {1}
    stacks.clear()
    assert run(*asked, "--losses", "z_loss", "--seeds", 1) == 0
    assert {experiment.network.head.loss for stack in stacks for experiment in stack} == {"z_loss"}
    after = lines(tmp_path, "figure2")
    assert after[:2] == before
    assert len(after) == 2 + 2 + 2


def test_the_same_settings_on_another_text_are_another_choice(
    folders: list[object], corpus: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(corpus, other)
    write_manifest(other, read_manifest(other) | {"name": "other"})
    asked = ["figure2", *folders, *typed("--scores mrr --losses softmax")]
    assert run(*asked, "--seeds", 1) == 0
    before = lines(tmp_path, "figure2")
    assert run(*asked, "--seeds", 1, "--corpus", other) == 0
    (after,) = lines(tmp_path, "figure2")
    assert [after] != before
    assert after["settings"]["corpus"] == "other"


def test_one_is_no_plural(
    folders: list[object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["figure2", *folders, *typed("--scores mrr --losses softmax")]
    assert run(*asked, "--seeds", 1) == 0
    assert "figure2: softmax, 1 network for 1 record\n" in capsys.readouterr().out
    assert run(*asked, "--seeds", 3) == 0
    assert "figure2: softmax, 2 networks side by side for 2 records\n" in capsys.readouterr().out


def test_new_settings_replace_old_ones(folders: list[object], tmp_path: Path) -> None:
    asked = ["figure2", *folders, "--losses", "softmax"]
    assert run(*asked, "--scores", "mrr,top_1_error", "--seeds", 2) == 0
    assert run(*asked, "--scores", "mrr", "--seeds", 1, *flags("training.steps=20")) == 0
    results = PaperResults.read(tmp_path).figure2
    steps = [(one.tuned_for, one.seed, one.settings["training.steps"]) for one in results]
    assert sorted(steps) == [("mrr", 0, 20), ("top_1_error", 0, 60), ("top_1_error", 1, 60)]


def test_figure_5_takes_over_records_of_figure_2(
    folders: list[object], tmp_path: Path, stacks: list[list[Experiment]]
) -> None:
    asked = [*folders, *typed("--seeds 1 --scores mrr")]
    assert run("figure2", *asked, "--losses", "z_loss,softmax") == 0
    stacks.clear()
    assert run("figure5", *asked, "--losses", "z_loss,softmax,z_softmax") == 0
    assert [stack[0].network.head.loss for stack in stacks] == ["z_softmax"]
    two, five = lines(tmp_path, "figure2"), lines(tmp_path, "figure5")
    assert [line | {"figure": 2} for line in five[:2]] == two


def test_a_replacement_by_records_of_another_figure_is_announced_once(
    folders: list[object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*folders, *typed("--seeds 1 --scores mrr")]
    assert run("figure5", *asked, "--losses", "softmax,z_softmax") == 0
    other = flags("training.steps=20")
    assert run("figure2", *asked, "--losses", "softmax", *other) == 0
    capsys.readouterr()
    assert run("figure5", *asked, "--losses", "softmax,z_softmax", *other) == 0
    said = capsys.readouterr().out
    for loss in ("softmax", "z_softmax"):
        assert len(re.findall(rf"will replace records .* \([^)]*\b{loss}, mrr", said)) == 1


def test_the_test_split_is_opened_when_all_is_trained(
    folders: list[object], tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    train = SideBySide.train

    def noted(self: SideBySide, *judge: Any) -> Any:
        opened.append("training")
        outcomes = train(self, *judge)
        opened.append("trained")
        return outcomes

    monkeypatch.setattr(SideBySide, "train", noted)
    asked = ["figure2", *folders, *typed("--losses softmax --seeds 1")]
    assert run(*asked, "--scores", "mrr") == 0
    assert opened == ["valid", "train", "training", "trained", "test"]


def test_one_that_diverges_has_no_record(
    folders: list[object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["figure2", *folders, *typed("--seeds 1 --losses softmax")]
    assert run(*asked, "--scores", "mrr", *flags("training.lr=1e30")) == 1
    assert "no record: figure2, softmax, mrr, seed 0: it diverged" in capsys.readouterr().err
    assert not (tmp_path / "figure2.jsonl").exists()


def test_ranks_make_records() -> None:
    ranks, log_prob = torch.tensor([1, 3]), torch.tensor([0.0, -torch.inf])
    scores = SplitScores.of(Evaluation.of_ranks(ranks, log_prob=log_prob))
    assert scores["top_1_error"] == 0.5
    assert "perplexity" not in scores.scores, "JSON has no infinity"
