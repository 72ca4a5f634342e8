"""The settings that trials of a stack must share, and the numbers in which they may differ."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.lab.sidebyside.small_trials import trial
from zloss_lab.sidebyside.trial_settings import TrialSettings, check_trials, grouped

CORPUS = Path("nowhere")
FREE: dict[str, dict[str, Any]] = {
    "rates": {
        "lr": 0.3,
        "output_lr": 0.7,
        "weight_decay": 0.1,
        "output_weight_decay": 0.2,
        "seed": 9,
    },
    "scales": {"network": {"dropout": 0.5, "embedding_scale": 2.0, "output_scale": 0.1}},
    "loss": {"head": {"a": 0.9, "b": 3.0}},
}
BOUND: dict[str, dict[str, Any]] = {
    "training.batch_size": {"batch_size": 30},
    "training.steps": {"steps": 61},
    "training.score": {"score": "mrr"},
    "network.hidden": {"network": {"hidden": (16,)}},
    "network.precision": {"network": {"precision": "tf32"}},
    "network.head.loss": {"loss": "softmax"},
    "network.head.head": {"head": {"head": "factored"}},
    "network.head.softmax": {"head": {"softmax": "logits"}},
    "device": {"device": "cuda"},
}
UNSUITED: dict[str, dict[str, Any]] = {
    "network.head.head must be one of dense, factored, gram, got 'sampled'": {
        "loss": "",
        "head": {"head": "sampled"},
    },
    "network.head.bias must be false": {"head": {"bias": True}},
    "network.head.balance must be 0": {"head": {"balance": 0.5}},
    "network.head.reduction must be 'mean', got 'sum'": {"head": {"reduction": "sum"}},
    "network.precision must be 'float32' or 'tf32', got 'bf16'": {"network": {"precision": "bf16"}},
    "training.optimizer must be 'sgd', got 'adam'": {"optimizer": "adam"},
    "training.output_optimizer must be 'sgd', got 'adagrad'": {
        "loss": "softmax",
        "head": {"head": "dense"},
        "output_optimizer": "adagrad",
        "output_lr": 0.1,
    },
    "training.clip must be none, got 1.0": {"clip": 1.0},
    "training.output_lr must be a number, got none": {"output_lr": None},
    "training.seconds must be none, got 60.0": {"seconds": 60.0},
    "training.schedule must be 'linear', got 'plateau'": {"schedule": "plateau"},
    "training.score must be one of ranks, got 'perplexity'": {"score": "perplexity"},
}


@pytest.mark.parametrize("case", FREE)
def test_trials_may_differ(case: str) -> None:
    check_trials([trial(CORPUS), trial(CORPUS, **FREE[case])])


@pytest.mark.parametrize("key", BOUND)
def test_trials_must_agree(key: str) -> None:
    message = rf"trials of a stack must agree in {re.escape(key)}: trial 0 has .*, trial 1 has .*; use `grouped`"
    with pytest.raises(ValueError, match=message):
        check_trials([trial(CORPUS), trial(CORPUS, **BOUND[key])])


@pytest.mark.parametrize("demand", UNSUITED)
def test_some_experiments_stand_in_no_stack(demand: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"to be trained side by side, {demand}")):
        check_trials([trial(CORPUS, **UNSUITED[demand])])


def test_other_mistakes() -> None:
    with pytest.raises(ValueError, match="a stack needs at least one experiment"):
        check_trials([])
    with pytest.raises(ValueError, match="unknown score: 'top_7_error'"):
        check_trials([trial(CORPUS, score="top_7_error")])
    with pytest.raises(ValueError, match="a must be a finite number > 0, got -1"):
        check_trials([trial(CORPUS), trial(CORPUS, head={"a": -1.0})])


def test_groups_are_what_fits_together() -> None:
    options = [*FREE.values(), *BOUND.values(), {}]
    experiments = [trial(CORPUS, **each) for each in (*options, *options)]
    groups = grouped(experiments)
    count = len(options)
    free = [*range(len(FREE)), count - 1]
    alone = [[number, number + count] for number in range(len(FREE), count - 1)]
    assert groups == [[*free, *(number + count for number in free)], *alone]
    assert grouped([]) == []


def test_settings_are_columns(device: torch.device) -> None:
    experiments = [
        trial(CORPUS, lr=0.5, network={"dropout": 0.25}),
        trial(CORPUS, head={"a": 0.3, "b": 2.0}),
    ]
    settings = TrialSettings.of(experiments, 400, device)
    assert settings.lr.shape == (2, 1, 1)
    assert settings.lr.flatten().tolist() == pytest.approx([0.5, 0.1])
    assert settings.dropout.flatten().tolist() == [0.25, 0.0]
    assert settings.loss_options["a"].flatten().tolist() == pytest.approx([0.5, 0.3]), (
        "where none is given, 10 / sqrt(C)"
    )
    second = settings.select(torch.tensor([1], device=device))
    for field in dataclasses.fields(TrialSettings):
        whole, part = getattr(settings, field.name), getattr(second, field.name)
        pairs = (
            [(whole, part)]
            if isinstance(whole, torch.Tensor)
            else [(whole[name], part[name]) for name in whole]
        )
        assert all(torch.equal(one[1:], other) for one, other in pairs)
