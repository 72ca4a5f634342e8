"""Training of networks: gradients, every head and optimizer, learning rates, weight decay and a step of learning."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import zloss
from tests.lab.small_networks import (
    CLASSES,
    CONTEXT,
    batch,
    build,
    clones,
    every_head,
    every_trunk,
    small,
    trunk_parameters,
)
from zloss_lab.hidden import RectifiedLinear


def test_gradients_of_embeddings_are_row_sparse(device: torch.device) -> None:
    network = build(small(), device)
    context, target = batch(device)
    network(context, target).backward()
    grad = network.embedding.weight.grad
    assert grad is not None
    assert grad.layout == torch.sparse_coo
    rows = grad.coalesce().indices()[0]
    assert set(rows.tolist()) == set(context.flatten().tolist())


@every_head
@every_trunk
def test_every_head_trains(head: str, trunk: Any, device: torch.device) -> None:
    network = build(small(head), device)
    context, target = batch(device)
    before = clones(network)
    optimizers = network.optimizers(trunk, lr=0.01, output_lr=0.02)
    losses = []
    for _ in range(30):
        torch.manual_seed(0)  # the same samples in every step, so that losses can be compared
        loss = network(context, target)
        losses.append(loss.item())
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert losses[-1] < losses[0]
    trunk_names = [name for name in before if not name.startswith("head.")]
    assert len(trunk_names) == 5
    for name, parameter in network.named_parameters():
        if name in trunk_names:
            assert not torch.equal(parameter, before[name]), name
    unseen = torch.arange(CLASSES // 2, CLASSES)
    assert torch.equal(network.embedding.weight[unseen], before["embedding.weight"][unseen])
    assert any(
        not torch.equal(p, before[f"head.{name}"]) for name, p in network.head.named_parameters()
    )


@every_head
def test_plain_sgd_is_that_of_a_dense_twin(head: str, device: torch.device) -> None:
    """The gradients of repeated words of a context add up."""
    network = build(small(head), device)
    context, target = batch(device)
    context[:, 1] = context[:, 0]
    before = clones(network)
    torch.manual_seed(0)
    h = F.embedding(context, weight := before["embedding.weight"].requires_grad_()).flatten(1)
    layers = [
        before[f"layers.{n}.{kind}"].requires_grad_()
        for n in range(2)
        for kind in ("weight", "bias")
    ]
    h = F.relu(F.linear(F.relu(F.linear(h, *layers[:2])), *layers[2:]))
    torch.manual_seed(0)
    network.head(h, target).backward()
    network.zero_grad()
    torch.manual_seed(0)
    network(context, target).backward()
    for optimizer in network.optimizers(lr=0.3, output_lr=0.7):
        optimizer.step()
    for parameter, twin in zip(trunk_parameters(network), (weight, *layers), strict=True):
        assert twin.grad is not None
        torch.testing.assert_close(parameter.detach(), (twin - 0.3 * twin.grad).detach())


def test_learning_rates_go_to_their_layers() -> None:
    rows, dense, head = build(small()).optimizers(lr=0.1, output_lr=50.0)
    assert [o.param_groups[0]["lr"] for o in (rows, dense, head)] == [0.1, 0.1, 50.0]
    assert isinstance(head, zloss.FactoredSGD)
    _, _, default = build(small()).optimizers("adam", lr=0.1)
    assert default.param_groups[0]["lr"] == 1.0
    assert default.param_groups[0]["is_relative"]
    others = build(small("hierarchical")).optimizers("adam", lr=0.1)
    assert [o.param_groups[0]["lr"] for o in others] == [0.1, 0.1, 0.1]


@pytest.mark.parametrize(
    ("kind", "name", "made"),
    [
        ("sampled", "adam", zloss.RowAdam),
        ("hierarchical", "adam", zloss.RowAdam),
        ("adaptive", "adagrad", torch.optim.Adagrad),
        ("dense", "adam", torch.optim.Adam),
        ("hierarchical", "sgd", zloss.RowSGD),
    ],
)
def test_the_output_has_an_optimizer_of_its_own(kind: str, name: Any, made: type) -> None:
    *_, of_head = build(small(kind)).optimizers(lr=0.1, output=name, output_lr=0.02)
    assert type(of_head) is made
    assert of_head.param_groups[0]["lr"] == 0.02


def test_a_factored_output_has_sgd_only() -> None:
    with pytest.raises(ValueError, match="has no gradient for 'adam'"):
        build(small()).optimizers(lr=0.1, output="adam", output_lr=0.02)


def test_hidden_layers_take_their_step_in_one_launch_on_a_gpu(device: torch.device) -> None:
    _, dense, _ = build(small(), device).optimizers(lr=0.1)
    assert dense.param_groups[0]["fused"] == (True if device.type == "cuda" else None)


@every_trunk
def test_weight_decay_is_for_dense_layers(trunk: Any) -> None:
    rows, dense, head = build(small()).optimizers(
        trunk, lr=0.1, weight_decay=0.01, output_weight_decay=0.02
    )
    assert rows.param_groups[0].get("weight_decay", 0) == 0
    assert (dense.param_groups[0]["weight_decay"], head.param_groups[0]["weight_decay"]) == (
        0.01,
        0.02,
    )
    with pytest.raises(ValueError, match="would change every row at every step"):
        build(small("sampled")).optimizers(trunk, lr=0.1, output_weight_decay=0.02)


def test_it_learns_a_text_by_heart(device: torch.device) -> None:
    """Every word of this text is determined by the word before it."""
    words = torch.arange(400, device=device) * 7 % CLASSES
    windows = words.unfold(0, CONTEXT + 1, 1)
    context, target = windows[:, :-1], windows[:, -1]
    network = build(small("dense"), device)
    optimizers = network.optimizers(lr=0.5)
    for _ in range(150):
        network(context, target).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert (network.head.rank(network.hidden(context), target) == 1).float().mean() > 0.95


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_steps_without_gradients_in_memory_are_the_same(
    weight_decay: float, precision: Any, device: torch.device
) -> None:
    plain = build(small(precision=precision), device)
    network = copy.deepcopy(plain)
    expected = plain.optimizers(lr=0.1, weight_decay=weight_decay)
    optimizers = network.optimizers(lr=0.1, weight_decay=weight_decay, forms_gradients=False)
    for number in range(5):
        context, target = batch(device)
        for _ in range(1 + number % 2):  # gradients add up
            plain(context, target).backward()
            network(context, target).backward()
        for optimizer in (*expected, *optimizers):
            optimizer.step()
            optimizer.zero_grad()
    # A step without a gradient in memory rounds once less.
    for one, other in zip(trunk_parameters(network), trunk_parameters(plain), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert all(
        not layer.grad_factors for layer in network.layers if isinstance(layer, RectifiedLinear)
    )


def test_gradients_that_are_not_formed_can_be_dropped(device: torch.device) -> None:
    network = build(small(), device)
    before = [parameter.detach().clone() for parameter in trunk_parameters(network)]
    optimizers = network.optimizers(lr=0.1, forms_gradients=False)
    network(*batch(device)).backward()
    for optimizer in optimizers:
        optimizer.zero_grad()
    for optimizer in optimizers:
        optimizer.step()
    for parameter, old in zip(trunk_parameters(network), before, strict=True):
        assert torch.equal(parameter, old)


def test_what_is_not_formed_cannot_be_clipped(device: torch.device) -> None:
    network = build(small(), device)
    before, optimizers = clones(network), network.optimizers(lr=0.1, forms_gradients=False)
    with pytest.raises(
        ValueError, match=r"clip=1e-06 needs the gradients of all layers.*forms_gradients=True"
    ):
        network.learn(*batch(device), optimizers, clip=1e-6)
    assert all(torch.equal(tensor, before[name]) for name, tensor in clones(network).items())


@pytest.mark.parametrize("clip", [None, 0.1])
def test_learning_takes_one_step_of_all_optimizers(
    clip: float | None, device: torch.device
) -> None:
    plain = build(small("dense"), device)
    network = copy.deepcopy(plain)
    context, target = batch(device)
    expected = plain.optimizers(lr=0.1)
    loss = plain(context, target)
    loss.backward()
    if clip is not None:
        zloss.clip_grad_norm_(plain, clip)
    for optimizer in expected:
        optimizer.step()
    assert torch.equal(
        network.learn(context, target, network.optimizers(lr=0.1), clip=clip), loss.detach()
    )
    for one, other in zip(network.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)
        assert one.grad is None or not one.grad.any()
