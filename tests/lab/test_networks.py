"""Networks: shape, definition, initial weights and wrong settings."""

import math
import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import zloss
from tests.lab.small_networks import (
    CLASSES,
    batch,
    build,
    clones,
    every_head,
    linear_of,
    logits_of,
    made,
    small,
)
from zloss.heads.config import HEADS
from zloss_lab.experiments import preset_network
from zloss_lab.networks import SCALABLE_HEADS, NetworkConfig, NgramNetwork

# ---- shape -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("net1", (10 * 512, 2048, 2048, 512)),
        ("net2", (10 * 1024, 4096, 4096, 1024)),
        ("ptb", (6 * 128, 512, 256)),
    ],
)
def test_presets_have_the_sizes_of_the_paper(name: str, sizes: tuple[int, ...]) -> None:
    config = preset_network(name)
    assert config.sizes == sizes
    assert (config.head.head, config.head.loss, config.dropout) == ("factored", "z_loss", 0.0)
    assert config.context == (6 if name == "ptb" else 10)
    network = NgramNetwork(replace(config, head=made("dense")), 793_471, device="meta")
    assert network.embedding.weight.shape == (793_471, config.embedding)
    widths = [
        (layer.in_features, layer.out_features)
        for layer in network.layers
        if isinstance(layer, nn.Linear)
    ]
    assert widths == list(pairwise(sizes))
    assert network.head.in_features == sizes[-1]


def test_a_forward_pass_by_hand(device: torch.device) -> None:
    network = build(small("dense"), device)
    context, target = batch(device)
    first, second = network.layers
    assert isinstance(first, nn.Linear)
    assert isinstance(second, nn.Linear)
    with torch.no_grad():
        first.bias.normal_()
        second.bias.normal_()
    rows = []
    for words in context.tolist():
        x = torch.cat([network.embedding.weight[word] for word in words])
        x = (first.weight @ x + first.bias).clamp_min(0)
        rows.append((second.weight @ x + second.bias).clamp_min(0))
    h = torch.stack(rows)
    torch.testing.assert_close(network.hidden(context), h)
    assert isinstance(network.head, zloss.DenseOutput)
    expected = F.cross_entropy(h @ network.head.linear.weight.T, target)
    torch.testing.assert_close(network(context, target), expected)


def test_there_may_be_no_hidden_layer(device: torch.device) -> None:
    network = build(small(hidden=()), device)
    context, target = batch(device)
    assert torch.equal(network.hidden(context), network.embedding(context).flatten(1))
    network(context, target).backward()
    for optimizer in network.optimizers(lr=0.1):
        optimizer.step()


def test_activations_of_all_layers_are_of_the_size_of_the_embeddings() -> None:
    network = NgramNetwork(
        NetworkConfig(embedding=64, hidden=(512, 512, 512), embedding_scale=0.3), 1000
    )
    h = network.embedding(torch.randint(1000, (500, 6))).flatten(1)
    for layer in network.layers:
        assert h.square().mean().sqrt().item() == pytest.approx(0.3, rel=0.2)
        h = layer(h)
    assert h.square().mean().sqrt().item() == pytest.approx(0.3, rel=0.2)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("head", SCALABLE_HEADS)
def test_the_head_starts_at_its_scale(head: str, bias: bool, device: torch.device) -> None:
    networks = []
    for output_scale in (1.0, 0.25):
        torch.manual_seed(0)
        config = zloss.HeadConfig(head=head, options={"bias": bias})
        networks.append(build(replace(small(), head=config, output_scale=output_scale), device))
    plain, scaled = networks
    context, target = batch(device)
    assert torch.equal(plain.hidden(context), scaled.hidden(context)), "it is for the head alone"
    torch.testing.assert_close(logits_of(scaled, context), 0.25 * logits_of(plain, context))
    # The statistics of a factored layer belong to its scaled weights.
    linear = nn.Linear(scaled.head.in_features, CLASSES, bias=bias, device=device)
    with torch.no_grad():
        for name, parameter in linear_of(scaled).named_parameters():
            linear.get_parameter(name).copy_(parameter)
    expected = config.build_loss(CLASSES)(linear(scaled.hidden(context)), target)
    torch.testing.assert_close(scaled(context, target), expected)


def test_seeds_decide_the_weights() -> None:
    networks = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        networks.append(clones(build(small())))
    assert all(torch.equal(networks[0][name], networks[1][name]) for name in networks[0])
    assert not torch.equal(networks[0]["embedding.weight"], networks[2]["embedding.weight"])


@every_head
def test_state_goes_into_another_network(head: str, device: torch.device) -> None:
    network, other = build(small(head), device), build(small(head), device)
    context, target = batch(device)
    other.load_state_dict(network.state_dict())
    assert torch.equal(other.hidden(context), network.hidden(context))
    assert torch.equal(
        other.head.rank(other.hidden(context), target),
        network.head.rank(network.hidden(context), target),
    )


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": 0}, "at least 1 and at most 16,777,216, got 0, 5 and (16, 8)"),
        ({"embedding": -1}, "at least 1 and at most 16,777,216, got 3, -1 and (16, 8)"),
        ({"hidden": (16, 0)}, "got 3, 5 and (16, 0)"),
        ({"embedding": 2**63}, "got 3, 9223372036854775808 and (16, 8)"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
        ({"dropout": math.nan}, "dropout must be at least 0 and below 1, got nan"),
        ({"embedding_scale": 0.0}, "embedding_scale must be a finite number > 0, got 0.0"),
        ({"output_scale": math.inf}, "output_scale must be a finite number > 0, got inf"),
        (
            {"precision": "bf61"},
            "unknown precision: 'bf61'; did you mean 'bf16'? known: float32, tf32, bf16",
        ),
    ],
)
def test_bad_configs(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        small(**options)


@pytest.mark.parametrize("head", sorted(set(HEADS) - set(SCALABLE_HEADS)))
def test_other_heads_have_no_scale(head: str) -> None:
    assert small(head, output_scale=1.0) == small(head)
    message = f"output_scale=0.5 is for the heads dense, factored, gram: the {head} head starts at a scale of its own"
    with pytest.raises(ValueError, match=message):
        small(head, output_scale=0.5)


def test_lists_are_taken_for_tuples() -> None:
    hidden: Any = [16, 8]
    assert small(hidden=hidden) == small()


@pytest.mark.parametrize(
    ("context", "message"),
    [
        (torch.zeros(4, 2, dtype=torch.long), "context must have shape (B, 3), got (4, 2)"),
        (torch.zeros(3, dtype=torch.long), "context must have shape (B, 3), got (3,)"),
        (torch.zeros(4, 3), "context must hold integer class indices, got dtype torch.float32"),
        (torch.full((4, 3), 40), "word 40 of a context is out of range: expected 0 <= word < 40"),
        (torch.full((4, 3), -1), "word -1 of a context is out of range: expected 0 <= word < 40"),
    ],
)
def test_bad_contexts(context: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        build(small())(context, torch.zeros(len(context), dtype=torch.long))


def test_an_unknown_optimizer() -> None:
    name: Any = "adma"
    with pytest.raises(
        ValueError, match=re.escape("unknown optimizer: 'adma'; did you mean 'adam'?")
    ):
        build(small()).optimizers(name, lr=0.1)
