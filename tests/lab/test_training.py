"""Training runs: they learn, keep records, and say so when they diverge or a setting is wrong."""

import dataclasses
import json
import math
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import zloss
from tests.lab.small_runs import experiment
from zloss.heads import HeadConfig
from zloss.heads.config import HEADS
from zloss.inputs import NotFiniteError
from zloss_lab.configuration import to_table
from zloss_lab.evaluation import Evaluation, evaluate
from zloss_lab.inspection.plotting import plot_runs
from zloss_lab.inspection.run_table import run_row
from zloss_lab.networks import NgramNetwork
from zloss_lab.runs import Run, RunError
from zloss_lab.training import (
    DivergedError,
    Trainer,
    TrainingConfig,
    TrainingProgress,
    fit,
    resumed,
    trainer,
)


def test_a_run_learns_and_leaves_a_record(corpus: Path, tmp_path: Path) -> None:
    seen: list[TrainingProgress] = []
    run = fit(experiment(corpus, steps=200), tmp_path / "run", watch=seen.append)
    validations = [record for record in run.metrics() if record["kind"] == "validation"]
    # There are 13 words, and most of them are determined by the words before.
    assert validations[-1]["top_1_error"] < 0.5 < 0.9
    assert run.best_step is not None
    assert run.config == to_table(experiment(corpus, steps=200))
    assert seen[0].condition is not None
    told = seen[0].z_scores
    assert told is not None
    assert told.a == 0.5
    assert 0 < told.beyond_b < 1
    logged = next(record for record in run.metrics() if record["kind"] == "training")
    assert (logged["a"], logged["beyond_b"]) == told
    assert {progress.step for progress in seen if progress.validation is None} == set(
        range(10, 201, 10)
    )


def test_without_a_rate_of_the_output_layer_it_is_the_relative_one(
    corpus: Path, tmp_path: Path
) -> None:
    run = fit(experiment(corpus, output_lr=None), tmp_path / "run")
    unit = run.load().tensors["optimizer.2.0.lr_unit"]
    assert unit.dtype == torch.float64
    softmax = HeadConfig(head="hierarchical")
    built = NgramNetwork(experiment(corpus, head=softmax).network, 13)
    assert built.optimizers(lr=0.3)[-1].param_groups[0]["lr"] == 0.3


@pytest.mark.parametrize("name", ["steps", "validate_every", "stop_after", "patience", "clip"])
def test_nonsense_is_refused_before_anything_is_made(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be .*, got -1"):
        TrainingConfig(**{name: -1})  # type: ignore[arg-type]


def test_a_second_process_does_not_train_in_the_same_folder(corpus: Path, tmp_path: Path) -> None:
    run = fit(experiment(corpus, steps=20), tmp_path / "run")
    with run.alone(), pytest.raises(RunError, match="another process is training in"):
        fit(resumed(run.folder), run.folder, resume=True)


def test_the_log_has_the_refactors_since_the_last_line(corpus: Path, tmp_path: Path) -> None:
    config = experiment(corpus, log_every=5)
    trainer = Trainer(config, Run(tmp_path / "run").create(to_table(config)), lambda _: None)
    layer = trainer.network.head.layer
    assert isinstance(layer, zloss.FactoredLinear)
    for number in (0, 2, 1):
        for _ in range(number):
            layer.refactor()
        for _ in range(5):
            trainer._after_step(trainer.take_step())
    lines = [line for line in trainer.run.metrics() if line["kind"] == "training"]
    assert [(line["step"], line["refactors"]) for line in lines] == [(5, 0), (10, 2), (15, 1)]


def test_weight_decay_goes_to_the_optimizers(corpus: Path, tmp_path: Path) -> None:
    config = experiment(corpus, steps=2, weight_decay=0.01, output_weight_decay=0.02)
    trainer = Trainer(config, Run(tmp_path / "run"), lambda _: None)
    groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
    assert [group.get("weight_decay") for group in groups] == [None, 0.01, 0.02]


def test_a_diverging_run_says_so(corpus: Path, tmp_path: Path) -> None:
    """This covers a loss that is NaN, and a layer that refuses its input."""
    good = experiment(corpus, log_every=1, checkpoint_every=1)
    head = HeadConfig(head="dense", loss="squared_error")
    for name, bad in {
        "loss": experiment(
            corpus, head=head, lr=1e-9, output_lr=1e30, log_every=1, checkpoint_every=1
        ),
        "layer": dataclasses.replace(good, training=dataclasses.replace(good.training, lr=1e30)),
    }.items():
        with pytest.raises(
            DivergedError,
            match=r"step \d+: (the loss is|h has a NaN|step refused).*\. Lower the learning rates .*last",
        ):
            fit(bad, tmp_path / name)
        last = Run.open(tmp_path / name).load()
        assert all(tensor.isfinite().all() for tensor in last.tensors.values()), (
            "what has diverged is not kept"
        )


WILD: list[dict[str, Any]] = [
    {"lr": 1e30},
    {"lr": 1e300},
    {"lr": 1e15, "log_every": 1},
    {"lr": 1e-9, "output_lr": 1e30},
    {"lr": 1e38, "clip": 1e-3},
    {"lr": 1e38, "optimizer": "adam"},
]
OPTIONS: dict[str, dict[str, Any]] = {"adaptive": {"cutoffs": [4]}, "sampled": {"num_samples": 4}}


@pytest.mark.parametrize("head", HEADS)
def test_no_head_has_another_word_for_divergence(head: str, corpus: Path, tmp_path: Path) -> None:
    """A training either reaches its end, because all its numbers are finite, or says that it has diverged."""
    chance = random.Random(head)
    for number, wild in enumerate(WILD):
        config = HeadConfig(
            head=head, loss=chance.choice(HEADS[head].losses), options=OPTIONS.get(head, {})
        )
        with suppress(DivergedError):
            run = fit(experiment(corpus, steps=20, head=config, **wild), tmp_path / str(number))
            assert all(tensor.isfinite().all() for tensor in run.load().tensors.values())


@pytest.mark.parametrize(
    ("owner", "name"), [(trainer, "evaluate"), (zloss.FactoredLinear, "condition")]
)
def test_a_layer_may_refuse_later_what_has_diverged(
    owner: object, name: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU reports a refused step later, when the next result is read."""

    def refuse(*_: object, **__: object) -> None:
        raise NotFiniteError("h has a NaN")

    monkeypatch.setattr(owner, name, refuse)
    with pytest.raises(DivergedError, match=r"step \d+: h has a NaN\. Lower the learning rates"):
        fit(experiment(corpus), tmp_path / "run")


def test_a_mistake_of_a_watcher_is_its_own(corpus: Path, tmp_path: Path) -> None:
    def watch(progress: TrainingProgress) -> None:
        raise ValueError("no such colour")

    with pytest.raises(ValueError, match=r"^no such colour$"):
        fit(experiment(corpus), tmp_path / "run", watch=watch)


def no_json(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


@pytest.mark.parametrize("perplexities", [[math.inf, 7.0, 7.0], [math.inf] * 3])
def test_metrics_have_null_for_what_is_not_finite(
    perplexities: list[float], corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs that read the metrics accept null."""
    left = iter(perplexities)

    def judged(*asked: Any, **options: Any) -> Evaluation:
        return dataclasses.replace(evaluate(*asked, **options), perplexity=next(left))

    monkeypatch.setattr(trainer, "evaluate", judged)
    run = fit(experiment(corpus), tmp_path / "run")
    lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line, parse_constant=no_json) for line in lines]
    validations = [record for record in found if record["kind"] == "validation"]
    assert [record["perplexity"] or math.inf for record in validations] == perplexities
    assert run_row(run)["perplexity"] in (None, 7.0)
    if 7.0 in perplexities:
        assert plot_runs([run], tmp_path / "picture.png", "perplexity") == []
    else:
        with pytest.raises(
            RunError, match=r"has no perplexity; it has top_1_error, .*, mean_rank$"
        ):
            plot_runs([run], tmp_path / "picture.png", "perplexity")


def test_mistakes(corpus: Path, tmp_path: Path) -> None:
    config = experiment(corpus, steps=4)
    fit(config, tmp_path / "run")
    with pytest.raises(RunError, match="is not empty"):
        fit(config, tmp_path / "run")
    other = dataclasses.replace(config, network=dataclasses.replace(config.network, embedding=9))
    with pytest.raises(RunError, match="another config"):
        fit(other, tmp_path / "run", resume=True)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        TrainingConfig(batch_size=0)
    with pytest.raises(ValueError, match="lr must be a finite number > 0"):
        TrainingConfig(lr=float("nan"))
    with pytest.raises(ValueError, match="weight_decay must be a finite number >= 0, got -1"):
        TrainingConfig(weight_decay=-1.0)
    with pytest.raises(ValueError, match="seconds must be a finite number > 0, got 0"):
        TrainingConfig(seconds=0.0)
    with pytest.raises(
        ValueError, match=r"output_lr=20.0 is a rate for sgd: adam changes each weight"
    ):
        TrainingConfig(output_optimizer="adam")
    assert TrainingConfig(output_optimizer="adagrad", output_lr=0.1).output_lr == 0.1


def test_a_factored_output_is_refused_another_optimizer(corpus: Path, tmp_path: Path) -> None:
    config = experiment(corpus, output_optimizer="adam")
    with pytest.raises(ValueError, match="has no gradient for 'adam'"):
        fit(config, tmp_path / "run")
    assert not (tmp_path / "run").exists(), "nothing was written"


def test_other_losses_have_no_z_scores(corpus: Path, tmp_path: Path) -> None:
    seen: list[TrainingProgress] = []
    head = HeadConfig(head="dense", loss="z_loss")
    run = fit(experiment(corpus, head=head, steps=10), tmp_path / "run", watch=seen.append)
    assert seen[0].z_scores is None
    assert all("beyond_b" not in record for record in run.metrics())
