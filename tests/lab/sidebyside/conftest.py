"""A small text to train on."""

import random
from pathlib import Path

import pytest

from zloss.lab.corpora import prepare

SENTENCES = ("the cat sat on the mat .", "the dog ate the cat .", "a bird saw the dog on a mat .", "a cat saw a bird .")


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("corpus")
    chance = random.Random(0)
    (place / "text.txt").write_text("\n".join(chance.choice(SENTENCES) for _ in range(600)) + "\n")
    prepare(place / "text.txt", place / "prepared", fractions=(0.1, 0.1), min_count=1)
    return place / "prepared"
