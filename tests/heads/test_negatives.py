"""Explicit negatives beside a spherical loss, against their definition on a dense W in float64, after every step."""

import random
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

import zloss
from tests.heads.negative_problems import (
    CLASSES,
    HIDDEN,
    IGNORED,
    SAMPLERS,
    SCORED_BY,
    dense_loss,
    make_head,
    random_batch,
)
from tests.layers.row_rule_twin import DECAY, EPS, ROW_LR, DenseTwin
from tests.layers.test_exactness import EXACT
from tests.layers.twins import relative_error
from zloss.heads.samplers import Sampler


@pytest.mark.parametrize("row_lr", [None, ROW_LR])
@pytest.mark.parametrize("scored_by", SCORED_BY)
@pytest.mark.parametrize("name", SAMPLERS)
def test_every_step_is_the_dense_step(
    name: str, scored_by: str, row_lr: float | None, device: torch.device
) -> None:
    """Random steps of the head, of tied embeddings and of the number c, with row weights and several targets."""
    chance, bias = random.Random(0), scored_by == "logits"
    torch.manual_seed(0)
    head = make_head(name, device, bias=bias, scored_by=scored_by)
    assert isinstance(head.layer, zloss.FactoredLinear)
    assert head.negatives is not None
    embedding, twin = zloss.TiedEmbedding(head.layer), DenseTwin(head.layer)
    optimizer = zloss.FactoredSGD(head.layer, 0.5, weight_decay=DECAY, row_lr=row_lr, row_eps=EPS)
    of_scale = torch.optim.SGD(head.negatives.parameters(), 0.1)
    c = first = head.negatives.log_scale.exp().item()
    for step in range(12):
        head.negatives.strength = chance.choice([0.7, 2.0, 0.0])
        batch = random_batch(chance, device)
        torch.manual_seed(step)  # for the draws
        value = head(batch.hidden(embedding), batch.target, weight=batch.weight)
        value.backward()
        for each in (optimizer, of_scale):
            each.step()
            each.zero_grad()

        torch.manual_seed(step)
        log_c = torch.tensor(c, dtype=torch.float64, device=device).log().requires_grad_()
        scale = log_c.exp() if scored_by == "z" else None
        expected = dense_loss(twin, name, batch, head.negatives.strength, scale)
        expected.backward()
        if log_c.grad is not None and head.negatives.strength:
            c = (log_c - 0.1 * log_c.grad).exp().item()
        if row_lr is None:
            twin.of_loss.grad, twin.of_rows.grad = torch.stack(twin.grads()).sum(0), None
        twin.step(0.5, row_lr or 0.0)
        assert (value - expected).abs() <= EXACT * expected.abs()
        assert relative_error(head.layer.materialised(), twin.W) <= EXACT, f"step {step}"
        assert abs(head.negatives.log_scale.exp().item() - c) <= EXACT
    assert scored_by == "logits" or c != first


@pytest.mark.parametrize("scored_by", SCORED_BY)
@pytest.mark.parametrize("layer", [zloss.DenseLinear, zloss.GramLinear, zloss.FactoredLinear])
def test_every_layer_gives_the_same_loss_and_gradients(
    layer: Any, scored_by: str, device: torch.device
) -> None:
    head = make_head("uniform", device, bias=True, scored_by=scored_by)
    other = zloss.SphericalOutput(
        layer.from_linear(head.layer.to_linear()), head.loss, head.negatives
    )
    target, results = torch.tensor([3, IGNORED, 7], device=device), []
    for each in (head, other):
        h = torch.linspace(-1, 2, 24, dtype=torch.float64, device=device).reshape(3, 8)
        h.requires_grad_()
        torch.manual_seed(0)
        value = each(h, target)
        value.backward()
        assert h.grad is not None
        assert not h.grad[1].any(), "an ignored row has no gradient"
        results.append((value, h.grad))
    for value, expected in zip(*results, strict=True):
        assert relative_error(value, expected) <= EXACT


@pytest.mark.parametrize("name", SAMPLERS)
def test_gradients_are_numerical_derivatives(name: str) -> None:
    head = make_head(name, torch.device("cpu"))
    dense = zloss.DenseLinear.from_linear(head.layer.to_linear())
    other = zloss.SphericalOutput(dense, head.loss, head.negatives)
    h, log_scale = torch.randn(3, HIDDEN).double(), torch.tensor(0.3).double()
    target = torch.tensor([[3, 5], [7, IGNORED], [3, 3]])

    def loss(*inputs: Tensor) -> Tensor:
        torch.manual_seed(1)  # the same draws
        parts = {"negatives.log_scale": inputs[1]}
        value: Tensor = torch.func.functional_call(other, parts, (inputs[0], target))
        return value

    assert torch.autograd.gradcheck(loss, (h.requires_grad_(), log_scale.requires_grad_()))


class EveryClass(Sampler):
    """A sampler that "draws" every class once."""

    def draw(self, num_samples: int, *, generator: Generator | None = None) -> Tensor:
        assert num_samples == CLASSES
        return torch.arange(CLASSES, device=self._home.device)

    def log_prob(self, classes: Tensor) -> Tensor:
        return zloss.UniformSampler(CLASSES).log_prob(classes)


def test_with_all_classes_it_is_the_softmax(device: torch.device) -> None:
    head = make_head("uniform", device, sampler=EveryClass(CLASSES), num_samples=CLASSES)
    assert head.negatives is not None
    c = head.negatives.log_scale.exp().item()
    h = torch.randn(4, HIDDEN, dtype=torch.float64, device=device)
    target = torch.tensor([3, 60, IGNORED, 7], device=device)
    stats = head.layer(h, target)
    softmax = zloss.ZNormalized(zloss.SoftmaxCrossEntropy(reduction="none"), a=c)
    expected = c * softmax(head.logits(h), target)
    assert relative_error(head.negatives(head.layer, h, stats), expected) <= EXACT


def test_draws_that_are_targets_alone_leave_nothing_to_learn(device: torch.device) -> None:
    head = make_head("batch", device)
    assert head.negatives is not None
    h = torch.randn(3, HIDDEN, dtype=torch.float64, device=device, requires_grad=True)
    stats = head.layer(h, torch.full((3,), 5, device=device))
    term = head.negatives(head.layer, h, stats)
    assert not term.any()
    (grad,) = torch.autograd.grad(term.sum(), h)
    assert not grad.any()


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("shape", [(3,), (3, 2), (0,)])
def test_a_batch_without_targets_is_zero(
    name: str, shape: tuple[int, ...], device: torch.device
) -> None:
    head = make_head(name, device)
    h = torch.randn(shape[0], HIDDEN, dtype=torch.float64, device=device, requires_grad=True)
    value = head(h, torch.full(shape, IGNORED, device=device))
    value.backward()
    assert value == 0
    assert h.grad is not None
    assert not h.grad.any()
    head.sgd(0.5).step()


def test_a_row_without_spread_has_no_nan(device: torch.device) -> None:
    head = make_head("uniform", device)
    h = torch.zeros(2, HIDDEN, dtype=torch.float64, device=device, requires_grad=True)
    value = head(h, torch.tensor([1, 2], device=device))
    value.backward()
    assert value.isfinite()
    assert h.grad is not None
    assert h.grad.isfinite().all()
