"""A corpus and a space for studies that take a second."""

from pathlib import Path

import pytest

from tests.lab.tuning.tiny import SPACE, tiny_corpus
from zloss_lab.tuning.recipe import toml_value


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def space(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("space") / "tiny.toml"
    path.write_text("".join(f"{part} = {toml_value(table)}\n" for part, table in SPACE.items()))
    return path
