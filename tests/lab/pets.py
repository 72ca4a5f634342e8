"""A small text about pets, to train on in a second."""

import random
from pathlib import Path

from zloss_lab.corpora import prepare

SENTENCES = (
    "the cat sat on the mat .",
    "the dog ate the cat .",
    "a bird saw the dog on a mat .",
    "a cat saw a bird .",
)


def pets_text(lines: int) -> str:
    """Return sentences in a random order that is the same every time."""
    chance = random.Random(0)
    return "\n".join(chance.choice(SENTENCES) for _ in range(lines)) + "\n"


def pets_corpus(place: Path, lines: int = 600) -> Path:
    """Prepare the corpus with all its words, a tenth each for validation and test, and return its folder."""
    (place / "text.txt").write_text(pets_text(lines))
    prepare(place / "text.txt", place / "prepared", fractions=(0.1, 0.1), min_count=1)
    return place / "prepared"
