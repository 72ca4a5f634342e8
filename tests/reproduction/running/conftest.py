"""A small text, and a search of every loss on it by the command line."""

from pathlib import Path
from typing import Any

import pytest

from reproduction.running import collecting
from reproduction.running.stacks import train_stack
from tests.reproduction.running.command_line import run
from tests.reproduction.running.small import SEARCHED, small_corpus
from zloss_lab.corpora import Corpus
from zloss_lab.training import Experiment


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_corpus(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="session")
def studies(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Path:
    folder = tmp_path_factory.mktemp("studies")
    asked = ("search", "--corpus", corpus, "--studies", folder, "--trials", 3)
    assert run(*asked, *SEARCHED) == 0
    return folder


@pytest.fixture
def folders(studies: Path, tmp_path: Path) -> list[object]:
    """The options of a figure that is made in an empty folder with the settings of the studies."""
    return ["--studies", studies, "--records", tmp_path]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The splits of any corpus that are opened, in order."""
    names: list[str] = []
    split = Corpus.split

    def noted(self: Corpus, name: str) -> object:
        names.append(name)
        return split(self, name)

    monkeypatch.setattr(Corpus, "split", noted)
    return names


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> list[list[Experiment]]:
    """The experiments that are trained, stack by stack."""
    trained: list[list[Experiment]] = []

    def noted(experiments: list[Experiment], *more: Any) -> Any:
        trained.append(list(experiments))
        return train_stack(experiments, *more)

    monkeypatch.setattr(collecting, "train_stack", noted)
    return trained
