"""Mistakes of users in the commands of figures and of the search."""

from pathlib import Path

import pytest

from tests.reproduction.running.command_line import run
from zloss_lab.corpora import prepare
from zloss_lab.training import Experiment


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
    assert run(*(places.get(word, word) for word in arguments)) == 1
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
    prepare(tmp_path / "text.txt", tmp_path / "it", fractions=(0.1, 0.0))
    asked = ("figure4", "--studies", studies, "--corpus", tmp_path / "it")
    assert run(*asked, "--records", tmp_path / "records") == 1
    error = capsys.readouterr().err.replace("\n", " ")
    assert "has no test split: all three are needed here" in error
    assert stacks == []
