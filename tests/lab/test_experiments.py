"""Presets, TOML files and settings."""

from itertools import permutations
from pathlib import Path

import pytest

from zloss.heads.config import HEADS
from zloss_lab.configuration import ConfigError
from zloss_lab.experiments import build_experiment, head_changes, preset, preset_names
from zloss_lab.tuning.space import Space

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


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("base", preset_names())
def test_a_head_is_one_word(name: str, base: str, tmp_path: Path) -> None:
    """On the command line, as a table, and in a file; with its own loss and options, whatever the preset has."""
    (tmp_path / "mine.toml").write_text(f'[network]\nhead = "{name}"\n')
    built = build_experiment("c", preset_name=base, settings=[f"network.head={name}"])
    assert built.network.head.head == name
    assert built.network.head.loss == HEADS[name].losses[0]
    assert not built.network.head.options
    assert built == build_experiment(
        "c", preset_name=base, settings=[f'network.head={{head="{name}"}}']
    )
    if name != "factored":  # a file that repeats the head of the preset keeps its options
        assert built == build_experiment("c", preset_name=base, file=tmp_path / "mine.toml")
    # A softmax diverges at the output rates of the Z-loss.
    own_rate = build_experiment("c", preset_name=base).training.output_lr
    is_softmax = built.network.head.loss == "softmax"
    assert built.training.output_lr == (1.0 if is_softmax else own_rate)


def test_options_of_a_head_may_stand_before_its_name() -> None:
    settings = ["network.head=sampled", "network.head.num_samples=64", "training.output_lr=0.3"]
    found = {
        str(build_experiment("c", preset_name="ptb", settings=order))
        for order in permutations(settings)
    }
    assert len(found) == 1
    built = build_experiment("c", preset_name="ptb", settings=settings)
    assert built.network.head.options == {"num_samples": 64}
    assert built.training.output_lr == 0.3
    assert Space.parse({"fixed": {"network": {"head": "sampled"}}, "search": SEARCH}).fixed == {
        "network": {"head": {"head": "sampled"}}
    }


SEARCH = {"training": {"lr": {"low": 0.1, "high": 1.0}}}


def test_what_another_head_leaves_out_is_said() -> None:
    keep = "--set network.head.a=0.2 --set network.head.b=10.0"
    assert head_changes("ptb", settings=["network.head=gram"]) == [
        f"head gram: left out a = 0.2, b = 10.0 of head factored, z_loss; to keep what fits: {keep}"
    ]
    kept = [word for word in keep.split() if word != "--set"]
    assert head_changes("ptb", settings=["network.head=gram", *kept]) == []
    built = build_experiment("c", preset_name="ptb", settings=["network.head=gram", *kept])
    assert built.network.head.options == {"a": 0.2, "b": 10.0}
    assert head_changes("small", settings=["network.head=dense"]) == [
        "head dense: training.output_lr is 1.0, not none"
    ]
    assert head_changes("small", settings=["network.head=dense", "training.output_lr=2"]) == []
    assert head_changes("ptb", settings=["training.lr=0.5", "network.head.a=0.3"]) == []


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("network.head=smapled", "unknown head: 'smapled'; did you mean 'sampled'"),
        ("network.head=5", r"\[network.head\] must be a table, got 5"),
        ("network.head.head=sampled", "cannot train z_loss: .*: --set network.head=sampled"),
        ("network=sampled", r"\[network\] must be a table, got 'sampled'"),
    ],
)
def test_a_wrong_head_is_named(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_experiment("c", preset_name="ptb", settings=[setting])
