"""A small corpus for tests of the lab."""

from pathlib import Path

import pytest

from tests.lab.pets import pets_corpus


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pets_corpus(tmp_path_factory.mktemp("corpus"))
