"""A small corpus, and a run on it that was made by commands."""

from pathlib import Path

import pytest

from tests.lab.command_line import SETTINGS, zloss
from tests.lab.pets import pets_corpus, pets_text


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pets_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(pets_text(400))
    assert zloss("data", "prepare", tmp_path / "text.txt", "--to", tmp_path / "corpus") == 0
    assert (
        zloss("train", tmp_path / "runs" / "one", "--corpus", tmp_path / "corpus", *SETTINGS) == 0
    )
    return tmp_path / "runs" / "one"
