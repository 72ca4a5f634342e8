"""Search spaces: the meaning of a table, and the messages for wrong ones."""

import random
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from tests.lab.tuning.tiny import SPACE, tiny_corpus, tiny_plan
from zloss.heads.config import LOSSES
from zloss_lab.configuration import ConfigError
from zloss_lab.corpora.manifest import read_manifest, write_manifest
from zloss_lab.tuning.space import Space, space_names, space_table

SOFTMAX = {"head": "dense", "loss": "softmax"}
SOFTMAX_OR_Z_LOSS = {
    "search": {"network": {"head": {"choices": [SOFTMAX, {"head": "factored", "loss": "z_loss"}]}}}
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_corpus(tmp_path_factory.mktemp("corpus"))


def searching(**search: Any) -> dict[str, Any]:
    return {"search": {"training": search}}


def test_entries_become_distributions() -> None:
    space = Space.parse(
        tomllib.loads("""
            [search]
            training.lr = { low = 0.1, high = 1.0, log = true }
            network.dropout = { low = 0, high = 0.5 }
            network.context = { low = 2, high = 8, step = 2 }
            network.hidden = { choices = [[512], [512, 256]] }
            network.embedding = { choices = [64, 128] }
        """)
    )
    assert space.distributions == {
        "training.lr": FloatDistribution(0.1, 1.0, log=True),
        "network.dropout": FloatDistribution(0, 0.5),
        "network.context": IntDistribution(2, 8, step=2),
        "network.hidden": CategoricalDistribution(["[512]", "[512, 256]"]),
        "network.embedding": CategoricalDistribution([64, 128]),
    }
    drawn = {"training.lr": 0.3, "network.hidden": "[512, 256]", "network.embedding": 64}
    assert space.settings(drawn) == {
        "training.lr": 0.3,
        "network.hidden": [512, 256],
        "network.embedding": 64,
    }


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "needs a table [search]"),
        ({"searched": {}}, "unknown table of a space: 'searched'; did you mean 'search'?"),
        ({"search": 3}, "[search] must be a table, got 3"),
        (searching(lr=0.1), "[search.training.lr] must be { low, high } or { choices }, got 0.1"),
        (searching(lr={"low": 1.0}), "[search.training.lr] needs low and high, or choices"),
        (
            searching(lr={"low": 0.1, "hihg": 1.0}),
            "[search.training.lr] unknown key: 'hihg'; did you mean 'high'?",
        ),
        (
            searching(lr={"low": "a", "high": 1.0}),
            "search.training.lr.low must be int or float, got 'a'",
        ),
        (
            searching(lr={"low": 2.0, "high": 1.0}),
            "[search.training.lr] low must not be above high, got low 2.0 and",
        ),
        (
            searching(lr={"low": 2, "high": 1}),
            "[search.training.lr] low must not be above high, got low 2 and high 1",
        ),
        (
            searching(lr={"low": 0.0, "high": 1.0, "log": True}),
            "[search.training.lr] low must be above 0 where log is",
        ),
        (
            searching(lr={"low": 0, "high": 9, "log": True}),
            "[search.training.lr] low must be above 0 where log",
        ),
        (
            searching(lr={"low": 1, "high": 9, "step": 0}),
            "[search.training.lr] step must be above 0, got 0",
        ),
        (
            searching(lr={"low": 0.0, "high": 1.0, "step": -0.5}),
            "[search.training.lr] step must be above 0, got -0.5",
        ),
        (
            searching(lr={"low": 1, "high": 9, "step": 2, "log": True}),
            "step 2 and log do not go together",
        ),
        (searching(lr={"low": 0.0, "high": float("inf")}), "finite numbers"),
        (searching(lr={"low": 0.0, "high": 1.0, "step": 0.3}), "is no multiple of step 0.3"),
        (searching(lr={"choices": []}), "choices must be some different values"),
        (searching(lr={"choices": [1, 1]}), "choices must be some different values"),
        (searching(lr={"choices": [1], "low": 2}), "unknown key: 'low'"),
    ],
)
def test_mistakes_are_named(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Space.parse(table)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"space": searching(lrr={"low": 1, "high": 2})},
            "'training.lrr'; did you mean 'training.lr",
        ),
        ({"space": {"search": {"lr": {"low": 1, "high": 2}}}}, "unknown key in [search]: 'lr'"),
        (
            {"space": searching(score={"choices": ["mrr"]})},
            "unknown key in [search]: 'training.score'",
        ),
        (
            {"space": {"search": {"network": {"head": {"aa": {"low": 1, "high": 2}}}}}},
            "did you mean 'network.head.a'",
        ),
        (
            {"space": searching(lr={"low": -1.0, "high": 2.0})},
            "lr must be a finite number > 0, got -1.0",
        ),
        (
            {"space": searching(mode={"choices": ["running", "sideways"]})},
            "training.mode must be 'running'",
        ),
        ({"space": SPACE | {"fixed": {"training": {"lrr": 1}}}}, "[training] unknown key: 'lrr'"),
        ({"space": SPACE | {"fixed": {"corpus": "here"}}}, "name the corpus by --corpus"),
        ({"settings": ["training.score=mrr"]}, "training.score does not belong there"),
        ({"settings": ["lr=1"]}, "did you mean 'training.lr'?"),
        ({"settings": ["training={}", "network={}"]}, "nothing is left to search"),
        ({"settings": ["device=abacus"]}, "there is no device 'abacus'"),
        ({"score": "mmr"}, "unknown score: 'mmr'; did you mean 'mrr'"),
        ({"score": "perplexity"}, "no perplexity"),
        (
            {"space": {"search": {"network": {"context": {"low": 4, "high": 8, "step": 0.5}}}}},
            "must be int, got 4.0",
        ),
        ({"space": SOFTMAX_OR_Z_LOSS, "score": "perplexity"}, "no perplexity"),
        ({"trials": 0}, "--trials must be at least 1"),
        ({"first": 0}, "--first must be at least 1"),
    ],
)
def test_what_cannot_work_is_refused_beforehand(
    changes: dict[str, Any], message: str, corpus: Path
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        tiny_plan(corpus, **changes).check()


def test_a_corpus_without_validation_split(tmp_path: Path, corpus: Path) -> None:
    shutil.copytree(corpus, tmp_path / "corpus")
    manifest = read_manifest(corpus)
    del manifest["splits"]["valid"]
    write_manifest(tmp_path / "corpus", manifest)
    with pytest.raises(ValueError, match="has no validation split"):
        tiny_plan(tmp_path / "corpus").check()


def test_what_the_user_sets_is_not_searched(corpus: Path) -> None:
    plan = tiny_plan(corpus, settings=["training.lr=0.25", "network.head.a=0.5"])
    assert plan.searched.search.keys() == {
        "training.output_lr",
        "network.embedding",
        "network.hidden",
    }
    experiment = plan.experiment({"network.hidden": [8]})
    assert experiment.training.lr == 0.25
    assert experiment.network.head.options == {"a": 0.5, "b": 2.0}
    assert experiment.network.hidden == (8,)


def test_a_space_for_every_loss_that_stands_on_its_own() -> None:
    assert set(space_names()) == {name for name, loss in LOSSES.items() if loss.make is not None}


@pytest.mark.parametrize("name", space_names())
def test_spaces_that_come_with_the_lab(name: str, corpus: Path) -> None:
    plan = tiny_plan(corpus, space=space_table(name))
    plan.check()
    chance = random.Random(0)
    settings = {key: chance.choice(entry.examples) for key, entry in plan.searched.search.items()}
    experiment = plan.experiment(settings)
    assert experiment.network.head.loss == name
    assert experiment.training.schedule == "linear"
    assert (experiment.network.context, experiment.training.batch_size) == (6, 250)


def test_a_space_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown space: 'z_los'; did you mean 'z_loss'\?"):
        space_table("z_los")
    with pytest.raises(ConfigError, match=r"z_softmax, or the path of a TOML file$"):
        space_table("nothing")
    with pytest.raises(ConfigError, match="cannot be read as TOML"):
        space_table(str(tmp_path / "mine.toml"))
    (tmp_path / "mine.toml").write_text("[search]\ntraining.lr = { low = 0.1, high = 1.0 }\n")
    assert Space.parse(space_table(str(tmp_path / "mine.toml"))).search.keys() == {"training.lr"}


def test_the_space_of_the_documentation(corpus: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "lab.md").read_text(encoding="utf-8")
    section = text.partition("## Tuning")[2].partition("\n## ")[0]
    assert all(f"`{name}`" in section for name in space_names())
    (block,) = re.findall(r"```toml\n(.*?)```", section, re.DOTALL)
    plan = tiny_plan(
        corpus, space=tomllib.loads(block), settings=["network.dropout=0", "training.epochs=8"]
    )
    plan.check()
    assert plan.searched.search.keys() == {"training.lr", "network.context", "network.hidden"}
