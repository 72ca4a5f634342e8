"""Figures 2 to 5 by the command line: from studies to records, and on from where it was left."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from reproduction.experiments import collecting
from reproduction.experiments.stacks import train_stack
from reproduction.experiments.studies import Searched
from reproduction.report.records import CURVES, PaperRecords
from reproduction.report.scores import SCORES
from tests.lab.command_line import zloss
from tests.reproduction.experiments.small import flags
from zloss_lab.evaluation import Evaluation
from zloss_lab.records import read_records, write_records
from zloss_lab.sidebyside import SideBySide
from zloss_lab.training import Experiment


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> list[list[Experiment]]:
    """What is trained, stack by stack."""
    trained: list[list[Experiment]] = []

    def noted(experiments: list[Experiment], *more: Any) -> Any:
        trained.append(list(experiments))
        return train_stack(experiments, *more)

    monkeypatch.setattr(collecting, "train_stack", noted)
    return trained


def lines(records: Path, name: str) -> list[Any]:
    return read_records(records / f"{name}.jsonl")


def without_origin(records: list[Any]) -> list[Any]:
    return [{key: value for key, value in record.items() if key != "commit"} for record in records]


def test_losses_are_tested_with_what_is_best_for_each_score(
    studies: Path, tmp_path: Path, stacks: list[list[Experiment]]
) -> None:
    asked = ("paper", "figure2", "--studies", studies, "--records", tmp_path, "--seeds", 2)
    assert zloss(*asked, "--losses", "z_loss,softmax") == 0
    results = PaperRecords.read(tmp_path).figure2
    assert {(one.loss, one.tuned_for, one.seed) for one in results} == {
        (loss, score, seed) for loss in ("z_loss", "softmax") for score in SCORES for seed in (0, 1)
    }
    for loss in ("z_loss", "softmax"):
        searched = Searched.read(studies, loss)
        networks = {repr(searched.best(score).settings) for score in SCORES}
        assert sum(len(stack) for stack in stacks if stack[0].network.head.loss == loss) == 2 * len(
            networks
        )
    one = next(
        one for one in results if (one.loss, one.tuned_for, one.seed) == ("z_loss", "mrr", 1)
    )
    experiment = Searched.read(studies, "z_loss").best("mrr").seeded(1)
    stack = SideBySide([replace(experiment, training=replace(experiment.training, score="mrr"))])
    best, test = stack.train()[0].best, stack.evaluate("test")[0]
    assert best is not None
    assert test is not None
    for recorded, evaluation in ((one.valid, best.evaluation), (one.test, test)):
        for score in SCORES:
            assert recorded[score] == pytest.approx(
                evaluation.score(score), rel=1e-5
            )  # six digits are kept
    assert (one.trials, one.settings) == (3, Searched.read(studies, "z_loss").best("mrr").settings)


def test_what_is_there_is_not_trained_again(
    studies: Path, tmp_path: Path, stacks: list[list[Experiment]]
) -> None:
    asked = (
        "paper",
        "figure2",
        "--studies",
        studies,
        "--records",
        tmp_path,
        "--scores",
        "mrr,top_1_error",
    )
    assert zloss(*asked, "--losses", "softmax", "--seeds", 1) == 0
    before = lines(tmp_path, "figure2")
    stacks.clear()
    assert zloss(*asked, "--losses", "softmax", "--seeds", 1) == 0
    assert (stacks, lines(tmp_path, "figure2")) == ([], before)
    assert zloss(*asked, "--losses", "softmax", "--seeds", 2) == 0
    assert {experiment.training.seed for stack in stacks for experiment in stack} == {1}
    stacks.clear()
    assert zloss(*asked, "--losses", "z_loss", "--seeds", 1) == 0
    assert {experiment.network.head.loss for stack in stacks for experiment in stack} == {"z_loss"}
    after = lines(tmp_path, "figure2")
    assert after[:2] == before
    assert len(after) == 2 + 2 + 2


def test_the_same_settings_on_another_text_are_another_choice(
    studies: Path, corpus: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(corpus, other)
    manifest = json.loads((other / "manifest.json").read_text())
    (other / "manifest.json").write_text(json.dumps(manifest | {"name": "other"}))
    asked = (
        "paper",
        "figure2",
        "--studies",
        studies,
        "--records",
        tmp_path,
        "--scores",
        "mrr",
        "--losses",
        "softmax",
    )
    assert zloss(*asked, "--seeds", 1) == 0
    before = lines(tmp_path, "figure2")
    assert zloss(*asked, "--seeds", 1, "--corpus", other) == 0
    (after,) = lines(tmp_path, "figure2")
    assert [after] != before
    assert after["settings"]["corpus"] == "other"


def test_one_is_no_plural(
    studies: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = (
        "paper",
        "figure2",
        "--studies",
        studies,
        "--records",
        tmp_path,
        "--scores",
        "mrr",
        "--losses",
        "softmax",
    )
    assert zloss(*asked, "--seeds", 1) == 0
    assert "figure2: softmax, 1 network for 1 record\n" in capsys.readouterr().out
    assert zloss(*asked, "--seeds", 3) == 0
    assert "figure2: softmax, 2 networks side by side for 2 records\n" in capsys.readouterr().out


def test_new_settings_replace_old_ones(studies: Path, tmp_path: Path) -> None:
    asked = ("paper", "figure2", "--studies", studies, "--records", tmp_path, "--losses", "softmax")
    assert zloss(*asked, "--scores", "mrr,top_1_error", "--seeds", 2) == 0
    assert zloss(*asked, "--scores", "mrr", "--seeds", 1, *flags("training.steps=20")) == 0
    results = PaperRecords.read(tmp_path).figure2
    steps = [(one.tuned_for, one.seed, one.settings["training.steps"]) for one in results]
    assert sorted(steps) == [("mrr", 0, 20), ("top_1_error", 0, 60), ("top_1_error", 1, 60)]


def test_an_interruption_costs_one_stack(
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
    asked = (
        "paper",
        "figure4",
        "--studies",
        studies,
        "--records",
        tmp_path,
        "--seeds",
        1,
        "--at-once",
        1,
    )
    networks = len(
        {repr(Searched.read(studies, "z_loss").best(score).settings) for score in CURVES}
    )
    assert networks > 1, "not a test"
    assert zloss(*asked) == 130
    assert "the same command goes on" in capsys.readouterr().err
    there = len(lines(tmp_path, "figure4"))
    assert 1 <= there < 4
    begun.clear()
    monkeypatch.setattr(
        collecting, "train_stack", lambda *more: begun.append(1) or train_stack(*more)
    )  # type: ignore[func-returns-value]
    assert zloss(*asked) == 0
    assert len(begun) == networks - 1
    assert len(lines(tmp_path, "figure4")) == 4


def test_figure_5_takes_over_what_figure_2_has(
    studies: Path, tmp_path: Path, stacks: list[list[Experiment]]
) -> None:
    asked = ("--studies", studies, "--records", tmp_path, "--seeds", 1, "--scores", "mrr")
    assert zloss("paper", "figure2", *asked, "--losses", "z_loss,softmax") == 0
    stacks.clear()
    assert zloss("paper", "figure5", *asked, "--losses", "z_loss,softmax,z_softmax") == 0
    assert [stack[0].network.head.loss for stack in stacks] == ["z_softmax"]
    two, five = lines(tmp_path, "figure2"), lines(tmp_path, "figure5")
    assert [line | {"figure": 2} for line in five[:2]] == two


def test_what_gives_way_to_the_records_of_another_figure_is_told_once(
    studies: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("--studies", studies, "--records", tmp_path, "--seeds", 1, "--scores", "mrr")
    assert zloss("paper", "figure5", *asked, "--losses", "softmax,z_softmax") == 0
    other = flags("training.steps=20")
    assert zloss("paper", "figure2", *asked, "--losses", "softmax", *other) == 0
    capsys.readouterr()
    assert zloss("paper", "figure5", *asked, "--losses", "softmax,z_softmax", *other) == 0
    said = capsys.readouterr().out
    for loss in ("softmax", "z_softmax"):
        assert len(re.findall(rf"will give way to new ones \([^)]*\b{loss}, mrr", said)) == 1


def test_the_sweep_of_a_and_other_b_where_it_is_best(
    studies: Path, tmp_path: Path, stacks: list[list[Experiment]]
) -> None:
    asked = (
        "paper",
        "figure3",
        "--studies",
        studies,
        "--records",
        tmp_path,
        "--seeds",
        2,
        "--a",
        "0.1,0.5,2.5",
    )
    assert zloss(*asked) == 0
    points = PaperRecords.read(tmp_path).figure3
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
    base = Searched.read(studies, "z_loss").best("top_10_error").settings
    for point in points:
        assert point.settings == {**base, "network.head.a": point.a, "network.head.b": point.b}
    stacks.clear()
    assert zloss(*asked) == 0
    assert stacks == []
    assert zloss(*asked[:-1], "0.1", *flags("training.steps=20")) == 0
    kept = PaperRecords.read(tmp_path).figure3
    assert {(point.a, point.b) for point in kept} == {(0.1, 28.0), (0.1, 14.0), (0.1, 56.0)}, (
        "no mix of settings"
    )


def test_a_sweep_that_cannot_be_made_anew_stays_as_it_is(
    studies: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other settings, with which nothing can be trained or all diverges: nothing has to give way to nothing."""
    asked = (
        "paper",
        "figure3",
        "--studies",
        studies,
        "--records",
        tmp_path,
        "--seeds",
        1,
        "--a",
        "0.1,0.5",
    )
    assert zloss(*asked) == 0
    before = lines(tmp_path, "figure3")
    for settings in (("training.steps=20", "device=cuda:99"), ("training.lr=1e30",)):
        assert zloss(*asked[:-1], "0.1", *flags(*settings)) == 1
        assert lines(tmp_path, "figure3") == before
        assert "will give way" in capsys.readouterr().out


def test_a_sweep_is_of_one_preset(studies: Path, tmp_path: Path) -> None:
    """Points that were made before it changed go, whether they are asked for now or not."""
    asked = ("paper", "figure3", "--studies", studies, "--records", tmp_path, "--seeds", 1)
    assert zloss(*asked, "--a", "0.1,0.5") == 0
    write_records(
        tmp_path / "figure3.jsonl",
        [line | {"digest": "old"} for line in lines(tmp_path, "figure3")],
    )
    assert zloss(*asked, "--a", "0.1") == 0
    assert {(line["a"], line["b"]) for line in lines(tmp_path, "figure3")} == {
        (0.1, 28),
        (0.1, 14),
        (0.1, 56),
    }
    assert "old" not in {line["digest"] for line in lines(tmp_path, "figure3")}


def test_other_b_that_give_way_are_told(
    studies: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The best a has moved, and other b are of interest there."""
    asked = (
        "paper",
        "figure3",
        "--studies",
        studies,
        "--records",
        tmp_path,
        "--seeds",
        1,
        "--a",
        "0.1,0.5",
    )
    assert zloss(*asked) == 0
    points = lines(tmp_path, "figure3")
    moved = [line | {"a": 0.05} if line["b"] != 28 else line for line in points]
    write_records(tmp_path / "figure3.jsonl", moved)
    capsys.readouterr()
    assert zloss(*asked) == 0
    assert re.search(
        r"figure3: 2 records .* have given way; they are kept in", capsys.readouterr().out
    )
    assert without_origin(lines(tmp_path, "figure3")) == without_origin(points)


def test_curves_of_what_is_best_for_four_errors(
    studies: Path, tmp_path: Path, opened: list[str]
) -> None:
    assert zloss("paper", "figure4", "--studies", studies, "--records", tmp_path, "--seeds", 2) == 0
    assert set(opened) == {"train", "valid"}, "the figure shows validations"
    curves = PaperRecords.read(tmp_path).figure4
    assert {(one.tuned_for, one.seed) for one in curves} == {
        (score, seed) for score in CURVES for seed in (0, 1)
    }
    for one in curves:
        chosen = Searched.read(studies, "z_loss").best(one.tuned_for)
        assert (one.a, one.b) == (
            chosen.settings["network.head.a"],
            chosen.settings["network.head.b"],
        )
        outcome = SideBySide([chosen.seeded(one.seed)]).train()[0]
        told = [(point["epoch"], *(point[score] for score in CURVES)) for point in one.curve]
        assert told == [
            (v.epoch, *(v.evaluation.score(score) for score in CURVES)) for v in outcome.validations
        ]


def test_the_test_split_is_opened_when_all_is_trained(
    studies: Path, tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    train = SideBySide.train

    def noted(self: SideBySide, *judge: Any) -> Any:
        opened.append("training")
        outcomes = train(self, *judge)
        opened.append("trained")
        return outcomes

    monkeypatch.setattr(SideBySide, "train", noted)
    asked = (
        "paper",
        "figure2",
        "--studies",
        studies,
        "--records",
        tmp_path,
        "--losses",
        "softmax",
        "--seeds",
        1,
    )
    assert zloss(*asked, "--scores", "mrr") == 0
    assert opened == ["valid", "train", "training", "trained", "test"]


def test_one_that_diverges_has_no_record(
    studies: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = (
        "paper",
        "figure2",
        "--studies",
        studies,
        "--records",
        tmp_path,
        "--seeds",
        1,
        "--losses",
        "softmax",
    )
    assert zloss(*asked, "--scores", "mrr", *flags("training.lr=1e30")) == 1
    assert "no record: figure2, softmax, mrr, seed 0: it diverged" in capsys.readouterr().err
    assert not (tmp_path / "figure2.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("figure2", "--studies", "STUDIES", "--losses", "z_softmax"),
            "unknown loss of figure 2: 'z_softmax'",
        ),
        (
            ("figure5", "--studies", "STUDIES", "--scores", "mmr"),
            "unknown score: 'mmr'; did you mean 'mrr'?",
        ),
        (
            ("figure4", "--studies", "STUDIES", "--corpus", "NOWHERE"),
            "NOWHERE is no prepared corpus",
        ),
        (("figure4", "--studies", "STUDIES", "--set", "training.lrr=1"), "did you mean 'lr'"),
        (
            ("figure4", "--studies", "STUDIES", "--set", "lr=1"),
            "unknown key: 'lr'; did you mean 'training.lr'?",
        ),
        (
            ("figure4", "--studies", "STUDIES", "--set", "corpus=CORPUS"),
            "name the corpus by --corpus FOLDER",
        ),
        (
            ("figure4", "--studies", "STUDIES", "--device", "cuda:99"),
            "device 'cuda:99' is not here",
        ),
        (
            ("figure3", "--studies", "STUDIES", "--a", "0.1,none"),
            "--a must be numbers above 0, separated by commas",
        ),
        (
            ("figure3", "--studies", "STUDIES", "--b", "nan"),
            "--b must be numbers above 0, separated by commas",
        ),
        (("search", "--corpus", "NOWHERE"), "NOWHERE is no prepared corpus"),
        (
            ("search", "--corpus", "CORPUS", "--losses", "zloss"),
            "unknown loss: 'zloss'; did you mean 'z_loss'?",
        ),
    ],
)
def test_mistakes_end_with_a_line(
    arguments: tuple[str, ...],
    message: str,
    studies: Path,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"STUDIES": studies, "CORPUS": corpus}
    assert zloss("paper", *(places.get(word, word) for word in arguments)) == 1
    error = capsys.readouterr().err
    assert message in error.replace("\n", " ")
    assert "Traceback" not in error
    assert list(tmp_path.iterdir()) == []


def test_a_corpus_without_all_splits_is_refused_before_training(
    studies: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    stacks: list[list[Experiment]],
) -> None:
    (tmp_path / "text.txt").write_text("a text of some words\n" * 300)
    assert (
        zloss(
            "data",
            "prepare",
            tmp_path / "text.txt",
            "--to",
            tmp_path / "it",
            "--fractions",
            "0.1",
            "0",
        )
        == 0
    )
    asked = (
        "paper",
        "figure4",
        "--studies",
        studies,
        "--corpus",
        tmp_path / "it",
        "--records",
        tmp_path / "records",
    )
    assert zloss(*asked) == 1
    assert "has no test split: all three are needed here" in capsys.readouterr().err.replace(
        "\n", " "
    )
    assert stacks == []


def test_ranks_make_records() -> None:
    scores = collecting.scores_of(
        Evaluation.of_ranks(torch.tensor([1, 3]), log_prob=torch.tensor([0.0, -torch.inf]))
    )
    assert scores["top_1_error"] == 0.5
    assert scores["perplexity"] is None, "JSON has no infinity"
