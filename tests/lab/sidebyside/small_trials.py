"""Small experiments that can stand in a stack."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zloss.heads import HeadConfig
from zloss_lab.networks import NetworkConfig
from zloss_lab.sidebyside import SideBySide
from zloss_lab.training import Experiment, TrainingConfig

HOPELESS = 1e30  # a learning rate


def trial(
    corpus: Path,
    *,
    loss: str = "z_loss",
    network: Any = None,
    head: Any = None,
    device: str = "cpu",
    **training: Any,
) -> Experiment:
    """Return a small experiment. `network` and `head` are mappings; all other options are those of training."""
    defaults: dict[str, Any] = {
        "batch_size": 32,  # whole vectors: see the docstring of `zloss_lab.sidebyside.stacked_training`
        "steps": 60,
        "validate_every": 20,
        "log_every": 10,
        "lr": 0.1,
        "output_lr": 0.05,
        "score": "top_1_error",
        "schedule": "linear",
        "validation_examples": 200,
    }
    config = HeadConfig.from_dict({"head": "dense", "loss": loss} | (head or {}))
    shape: dict[str, Any] = {"context": 3, "embedding": 8, "hidden": (16, 12), "head": config}
    return Experiment(
        corpus=str(corpus),
        network=NetworkConfig(**shape | (network or {})),
        training=TrainingConfig(**defaults | training),
        device=device,
    )


def weights_of(stack: SideBySide, number: int) -> list[Tensor]:
    """Return the weights of a trial, given by its first place in the stack."""
    row = stack.trials.index(number)
    return [tensor[row] for tensor in stack.network.weights.tensors()]


def assert_same_trial(stack: SideBySide, number: int, other: SideBySide, other_number: int) -> None:
    """Assert that the weights and the validations of two trials are equal to the last bit."""
    pairs = zip(weights_of(stack, number), weights_of(other, other_number), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)
    ours, theirs = stack.outcomes[number], other.outcomes[other_number]
    assert (ours.validations, ours.best) == (theirs.validations, theirs.best)
