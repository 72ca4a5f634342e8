"""Presets, TOML files and settings."""

from pathlib import Path

import pytest

from zloss_lab.experiments import build_experiment, preset, preset_names

# Context, width of an embedding and widths of the hidden layers, as the paper has them.
PAPER_SHAPES = {
    "ptb": (6, 128, (512, 256)),
    "net1": (10, 512, (2048, 2048, 512)),
    "net2": (10, 1024, (4096, 4096, 1024)),
}


def test_presets_are_those_of_the_paper() -> None:
    assert {"ptb", "net1", "net2", "small"} == set(preset_names())
    for name, shape in PAPER_SHAPES.items():
        built = build_experiment("corpus", preset_name=name).network
        assert (built.context, built.embedding, built.hidden) == shape
    assert preset("net1")["training"]["batch_size"] == 200
    assert preset("ptb")["training"]["batch_size"] == 250


def test_explicit_negatives_are_refused() -> None:
    with pytest.raises(ValueError, match=r"network\.head\.negatives must be none: the optimizers"):
        build_experiment("corpus", preset_name="ptb", settings=["network.head.negatives=256"])


def test_a_file_goes_over_the_preset_and_settings_over_both(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[training]\nlr = 0.7\nseed = 3\n[network.head]\na = 0.4\n")
    built = build_experiment(
        "c", preset_name="ptb", file=tmp_path / "mine.toml", settings=["training.seed=4"]
    )
    assert (built.training.lr, built.training.seed, built.training.batch_size) == (0.7, 4, 250)
    assert built.network.head.options["a"] == 0.4
    assert built.network.head.options["b"] == 10.0
