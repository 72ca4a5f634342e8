"""Small experiments that can stand in a stack."""

from pathlib import Path
from typing import Any

from zloss.heads import HeadConfig
from zloss_lab.networks import NetworkConfig
from zloss_lab.training import Experiment, TrainingConfig


def trial(
    corpus: Path,
    *,
    loss: str = "z_loss",
    network: Any = None,
    head: Any = None,
    device: str = "cpu",
    **training: Any,
) -> Experiment:
    """With options of the network and of the head as mappings; all others are those of training."""
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
