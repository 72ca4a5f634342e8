"""Small networks of every head, and batches for them."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zloss
from zloss.heads.config import HEADS
from zloss_lab.networks import NetworkConfig, NgramNetwork

CLASSES, CONTEXT, ROWS = 40, 3, 12
COUNTS = torch.arange(CLASSES, 0, -1)
every_head = pytest.mark.parametrize("head", HEADS)
every_trunk = pytest.mark.parametrize("trunk", ["sgd", "adam"])


def small(head: str = "factored", **options: Any) -> NetworkConfig:
    defaults: dict[str, Any] = {
        "context": CONTEXT,
        "embedding": 5,
        "hidden": (16, 8),
        "head": made(head),
    }
    return NetworkConfig(**(defaults | options))


def made(head: str) -> zloss.HeadConfig:
    """Return a head with cutoffs and samples that fit a few classes."""
    options: dict[str, dict[str, Any]] = {
        "adaptive": {"cutoffs": [8], "div_value": 2.0},
        "sampled": {"num_samples": 10},
    }
    return zloss.HeadConfig(head=head, options=options.get(head, {}))


def build(config: NetworkConfig, device: torch.device | None = None) -> NgramNetwork:
    return NgramNetwork(config, CLASSES, counts=COUNTS, device=device)


def batch(device: torch.device | None = None, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    # The rarer half of the classes never occurs in a context.
    words = torch.arange(rows * (CONTEXT + 1)).square() % (CLASSES // 2)
    windows = words.reshape(rows, CONTEXT + 1).to(device)
    return windows[:, :-1], windows[:, -1]


def clones(network: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in network.named_parameters()}


def trunk_parameters(network: NgramNetwork) -> list[nn.Parameter]:
    return [*network.embedding.parameters(), *network.layers.parameters()]


def linear_of(network: NgramNetwork) -> nn.Linear:
    if isinstance(network.head, zloss.DenseOutput):
        return network.head.linear
    assert isinstance(network.head, zloss.SphericalOutput)
    return network.head.layer.to_linear()


def logits_of(network: NgramNetwork, context: Tensor) -> Tensor:
    assert isinstance(network.head, zloss.DenseOutput | zloss.SphericalOutput)
    return network.head.logits(network.hidden(context))
