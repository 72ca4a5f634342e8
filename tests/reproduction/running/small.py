"""Experiments of the paper that take a second: a small text, small networks and few steps."""

import random
from pathlib import Path
from typing import Any

from reproduction.results.paper_results import PaperResults
from reproduction.results.schema import LargeTextResult
from zloss_lab.corpora import prepare
from zloss_lab.records import read_records

WORDS = [f"word{number}" for number in range(150)]  # 100 words would make all top-100 errors 0


def small_text(lines: int = 400, seed: int = 0) -> str:
    """Every word says something about the next one."""
    chance = random.Random(seed)
    text = []
    for _ in range(lines):
        place, words = chance.randrange(len(WORDS)), []
        for _ in range(8):
            words.append(WORDS[place])
            place = (2 * place + chance.choice((0, 1, 1, 7))) % len(WORDS)
        text.append(" ".join(words))
    return "\n".join(text) + "\n"


def small_corpus(place: Path) -> Path:
    (place / "text.txt").write_text(small_text())
    prepare(place / "text.txt", place / "prepared", fractions=(0.1, 0.1), min_count=1)
    return place / "prepared"


def lines(records: Path, name: str) -> list[Any]:
    """Return the records of a figure or table as JSON objects."""
    return read_records(records / f"{name}.jsonl")


def results(folder: Path) -> dict[str, list[LargeTextResult]]:
    """Return the results of table 2 in a folder, by model."""
    found: dict[str, list[LargeTextResult]] = {}
    for result in PaperResults.read(folder).table2:
        found.setdefault(result.model, []).append(result)
    return found


def flags(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


# Batches of whole vectors, for results that do not depend on the other networks of a stack.
SEARCHED = flags(
    "network.context=3",
    "network.embedding=8",
    "network.hidden=[16]",
    "training.batch_size=32",
    "training.steps=60",
    "training.validate_every=20",
    "training.validation_examples=200",
)
MODEL = flags(
    "network.context=3",
    "network.embedding=8",
    "network.hidden=[32]",
    "training.batch_size=20",
    "training.validation_examples=50",
    "training.log_every=5",
)
