"""Settings for tests of corpora."""

import pytest

from zloss_lab.corpora import building, reading


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make blocks and chunks so small that a little text has many."""
    monkeypatch.setattr(reading, "BLOCK_BYTES", 32)
    monkeypatch.setattr(building, "_CHUNK_WORDS", 7)
