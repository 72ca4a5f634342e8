"""The tables of docs/lab.md agree with the code: corpora, presets and configuration."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from zloss_lab.configuration import to_table
from zloss_lab.corpora import CATALOGUE
from zloss_lab.corpora.catalogue import SPLITS
from zloss_lab.experiments import build_experiment, preset_names
from zloss_lab.networks import NetworkConfig
from zloss_lab.training import Experiment, TrainingConfig

TEXT = (Path(__file__).parents[2] / "docs" / "lab.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(?P<name>[\w.-]+)` \| (?P<cells>.*) \|$", re.MULTILINE)
TABLES = {"network": NetworkConfig, "training": TrainingConfig}
KEYS = [
    f"{table}.{field.name}"
    for table, config in TABLES.items()
    for field in dataclasses.fields(config)
]


def rows(section: str) -> dict[str, list[str]]:
    """Return the table of a section as a mapping from the name to the other cells."""
    text = re.split(r"^## ", TEXT.partition(f"## {section}\n")[2], flags=re.MULTILINE)[0]
    return {row["name"]: row["cells"].split(" | ") for row in ROW.finditer(text)}


def shown(value: Any) -> str:
    """Return the value as it is written in TOML."""
    return (
        "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )


@pytest.mark.parametrize("key", KEYS)
def test_every_key_has_its_default(key: str) -> None:
    table, _, name = key.partition(".")
    default = to_table(Experiment(corpus=""))[table][name]
    assert rows("Configuration")[key][0] == (
        "factored Z-loss" if key == "network.head" else shown(default)
    )


def test_there_are_no_other_keys() -> None:
    assert list(rows("Configuration")) == ["device", *KEYS]
    assert rows("Configuration")["device"][0] == Experiment(corpus="").device


@pytest.mark.parametrize("name", preset_names())
def test_presets(name: str) -> None:
    built = build_experiment("", preset_name=name)
    network, training, head = built.network, built.training, built.network.head
    assert (head.head, head.loss) == ("factored", "z_loss")
    assert rows("Presets")[name] == [
        f"[{network.context} * {network.embedding}, {', '.join(map(str, network.hidden))}]",
        str(training.batch_size),
        training.mode,
        f"{head.options['a']:g}, {head.options['b']:g}" if head.options else "10 / √C, 10",
        f"{training.lr:g}, {'relative' if training.output_lr is None else f'{training.output_lr:g}'}",
        str(training.epochs),
    ]


@pytest.mark.parametrize("name", CATALOGUE)
def test_corpora(name: str) -> None:
    entry = CATALOGUE[name]
    _, words, vocabulary, _ = rows("Corpora")[name]
    expected = (entry.expected_words.get(split) for split in SPLITS)
    assert words == " / ".join(
        "unknown" if number is None else f"{number:,}" for number in expected
    )
    assert vocabulary == f"{entry.expected_vocabulary:,}"
