"""A small text, and a search of every loss on it by the command line."""

from pathlib import Path

import pytest

from tests.lab.command_line import zloss
from tests.reproduction.experiments.small import SEARCHED, small_corpus
from zloss_lab.corpora import Corpus


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_corpus(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="session")
def studies(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Path:
    folder = tmp_path_factory.mktemp("studies")
    assert (
        zloss("paper", "search", "--corpus", corpus, "--studies", folder, "--trials", 3, *SEARCHED)
        == 0
    )
    return folder


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
