"""The best trial as a command and as a file: both give the same training."""

import itertools
import shlex
import tomllib
from pathlib import Path

import pytest

from tests.lab.tuning.tiny import tiny_plan
from zloss_lab.configuration import to_table
from zloss_lab.experiments import build_experiment
from zloss_lab.tuning.recipe import toml_value, train_command, train_config
from zloss_lab.tuning.space import space_table
from zloss_lab.tuning.trials import Trial


@pytest.mark.parametrize("name", ["z_loss", "softmax", "spherical_softmax"])
def test_a_trial_as_a_training(name: str, corpus: Path, tmp_path: Path) -> None:
    """The command and the file give the same experiment, also if the preset has another head."""
    plan = tiny_plan(
        corpus, space=space_table(name), settings=["training.epochs=3"], first=7, name="two\nlines"
    )
    settings = next(plan.searched.examples())
    trial = Trial(0, "complete", settings, [], "", None)
    words = shlex.split(train_command(plan, trial, "mrr"))
    sets = [value for flag, value in itertools.pairwise(words) if flag == "--set"]
    by_command = build_experiment(
        words[words.index("--corpus") + 1], preset_name="ptb", settings=sets
    )
    (tmp_path / "it.toml").write_text(train_config(plan, trial, "mrr"))
    by_file = build_experiment(str(corpus), preset_name="ptb", file=tmp_path / "it.toml")
    assert to_table(by_command) == to_table(by_file)
    assert to_table(by_file)["network"]["head"]["loss"] == name
    assert (by_file.training.epochs, by_file.training.score, by_file.training.validate_every) == (
        3,
        "mrr",
        None,
    )
    assert by_file.training.lr == settings["training.lr"]


def test_a_config_with_another_head_takes_none_of_the_options_of_the_preset(tmp_path: Path) -> None:
    def head(text: str) -> dict[str, object]:
        (tmp_path / "it.toml").write_text(text)
        experiment = build_experiment("nowhere", preset_name="ptb", file=tmp_path / "it.toml")
        return experiment.network.head.to_dict()

    kept = {"reduction": "mean", "ignore_index": -100}
    assert head("[network.head]\nb = 5.0") == kept | {
        "head": "factored",
        "loss": "z_loss",
        "a": 0.2,
        "b": 5.0,
    }
    assert head('[network.head]\nloss = "z_loss"\nb = 5.0')["a"] == 0.2
    assert head('[network.head]\nhead = "dense"') == kept | {"head": "dense", "loss": "softmax"}
    assert head('[network.head]\nloss = "squared_error"') == kept | {
        "head": "factored",
        "loss": "squared_error",
    }


def test_toml_values_are_read_back() -> None:
    value = {
        "text": 'a "b"',
        "list": [1, 2.5, [True]],
        "tiny": 1e-30,
        "large": 1e30,
        "table": {"inner": -3},
    }
    assert tomllib.loads(f"value = {toml_value(value)}")["value"] == value
