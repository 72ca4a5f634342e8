"""Sampled softmax and noise-contrastive estimation against their slow definitions."""

import copy

import pytest
import torch
from torch import Generator, Tensor

from tests.heads.sampled_problems import (
    CLASSES,
    COUNTS,
    ONE_TARGET,
    SAMPLER_OPTIONS,
    SAMPLES,
    SEED,
    TARGETS,
    THREE_TARGETS,
    Prescribed,
    assert_as_defined,
    draws_of,
    every_loss,
    every_sampler,
    every_target,
    gradients,
    make_batch,
    make_head,
    slow_losses,
    slow_reduction,
)
from tests.layers.twins import relative_error


@every_target
@every_loss
@every_sampler
def test_value_and_gradients(sampler: str, loss: str, target: Tensor, device: torch.device) -> None:
    head = make_head(device, loss=loss, bias=True, **SAMPLER_OPTIONS[sampler])
    h, target = make_batch(target, device)
    assert set(draws_of(head)) & set(target.flatten().tolist()), "some draws hit a target"
    assert len(set(draws_of(head))) < SAMPLES, "some are repeated"
    assert_as_defined(head, h, target, sampler)


@every_target
@every_loss
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("bias", [False, True])
def test_reductions_and_row_weights(
    reduction: str, bias: bool, loss: str, target: Tensor, device: torch.device
) -> None:
    head = make_head(device, loss=loss, reduction=reduction, bias=bias)
    h, target = make_batch(target, device)
    weight = torch.linspace(-1, 3, len(target), dtype=torch.float64, device=device)
    assert_as_defined(head, h, target, "log_uniform", weight)


@every_target
def test_hits_may_stay(target: Tensor) -> None:
    head = make_head(remove_accidental_hits=False)
    assert_as_defined(head, *make_batch(target), "log_uniform")


@every_loss
def test_gradient_of_the_bias_alone(loss: str) -> None:
    head = make_head(loss=loss, bias=True)
    head.linear.weight.requires_grad_(False)
    h, target = make_batch(THREE_TARGETS)
    head(h.detach(), target).backward()
    assert head.linear.weight.grad is None
    assert head.linear.bias.grad is not None
    grad = head.linear.bias.grad.to_dense()
    head.zero_grad()
    slow_reduction(
        slow_losses(head, h.detach(), target, "log_uniform"), target, "mean", None
    ).backward()
    assert relative_error(grad, head.linear.bias.grad) < 1e-12


@every_loss
@every_target
def test_ignored_examples_count_for_nothing(
    loss: str, target: Tensor, device: torch.device
) -> None:
    head = make_head(device, loss=loss, bias=True, reduction="none")
    h, target = make_batch(target, device)
    value = head(h, target)
    value.sum().backward()
    assert h.grad is not None
    assert value[2] == 0
    assert not h.grad[2].any()
    head.zero_grad()
    head(h, torch.full_like(target, -100)).sum().backward()
    for parameter in head.parameters():
        assert parameter.grad is not None
        assert not parameter.grad.to_dense().any()


@every_loss
def test_a_batch_without_targets_or_rows_has_mean_zero(loss: str) -> None:
    head = make_head(loss=loss)
    h, target = make_batch(ONE_TARGET)
    assert head(h, torch.full_like(target, -100)) == 0
    assert head(h[:0], target[:0]) == 0


def test_a_step_with_nothing_but_hits() -> None:
    sampler = Prescribed(torch.full((CLASSES,), 1 / CLASSES, dtype=torch.float64))
    head = make_head(sampler=sampler, num_samples=2)
    sampler.draws = torch.tensor([4, 4])
    for target in (torch.tensor([4, 4]), torch.tensor([[4, 4], [4, 4]])):
        h, target = make_batch(target)
        value = head(h, target)
        value.backward()
        assert value == 0
        assert not any(grad.any() for grad in gradients(head, h)), "0, and not NaN"


def test_targets_that_are_never_drawn() -> None:
    counts = COUNTS.clone()
    counts[3] = counts[7] = 0
    head = make_head(sampler="unigram", counts=counts)
    for target in TARGETS.values():
        h, target = make_batch(target)
        value = head(h, target)
        value.backward()
        assert value.isfinite()
        assert all(grad.isfinite().all() for grad in gradients(head, h))


# ---- precision -------------------------------------------------------------------------------------------------------


@every_loss
@every_target
def test_half_precision_of_the_products_only(
    loss: str, target: Tensor, device: torch.device
) -> None:
    head = make_head(device, loss=loss, bias=True, dtype=torch.float32)
    h, target = make_batch(target, device)
    h = h.detach().float()
    exact = head(h, target)
    head.generator = Generator(device).manual_seed(SEED)
    with torch.autocast(device.type, torch.bfloat16):
        value = head(h.bfloat16(), target)
    assert value.dtype == torch.float32
    # Activations up to 8 with 8 bits are exact to 0.02, with the rounding of the inputs. So is the loss.
    torch.testing.assert_close(value, exact, rtol=0.02, atol=0.03)
    value.backward()
    assert all(
        parameter.grad is not None and parameter.grad.dtype == torch.float32
        for parameter in head.parameters()
    )


@every_loss
def test_a_layer_in_half_precision(loss: str, device: torch.device) -> None:
    head = make_head(
        device, loss=loss, bias=True, sampler="unigram", counts=COUNTS, dtype=torch.float32
    )
    half = copy.deepcopy(head).to(torch.bfloat16)
    h, target = make_batch(THREE_TARGETS, device)
    half.generator = Generator(device).manual_seed(SEED)
    # As above, but weights and biases are rounded as well.
    torch.testing.assert_close(
        half(h.bfloat16(), target), head(h.float(), target), rtol=0.04, atol=0.05
    )


@every_loss
def test_large_activations(loss: str) -> None:
    head = make_head(loss=loss, dtype=torch.float32)
    h, target = make_batch(THREE_TARGETS)
    h = (1e4 * h.detach()).float().requires_grad_()
    value = head(h, target)
    value.backward()
    assert value.isfinite()
    assert all(grad.isfinite().all() for grad in gradients(head, h))
