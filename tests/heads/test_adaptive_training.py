"""Training of the adaptive softmax: losses and gradients against torch's own module and against plain definitions."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.heads.adaptive_problems import (
    CLASSES,
    CUTOFFS,
    HIDDEN,
    IGNORED,
    assert_close,
    assert_same_gradients,
    batch,
    clusters,
    gradients,
    log_prob_of_torch,
    make_head,
    shuffled_counts,
    with_and_without_counts,
)
from zloss.heads.adaptive import AdaptiveSoftmax


@pytest.mark.parametrize("head_bias", [False, True])
def test_loss_and_gradients_are_those_of_torch(head_bias: bool, device: torch.device) -> None:
    head = make_head(device, head_bias=head_bias)
    h, target = batch(head, 40)
    assert_close(make_like(head, reduction="none")(h, target), -head.softmax(h, target).output)
    expected = head.softmax(h, target).loss
    assert_close(head(h, target), expected)
    assert_same_gradients(head(h, target), expected, head, h)


def make_like(head: AdaptiveSoftmax, **options: Any) -> AdaptiveSoftmax:
    """Return a head with the same weights and another reduction."""
    twin = copy.deepcopy(head)
    twin.softmax, twin.reduction = head.softmax, options["reduction"]
    return twin


@pytest.mark.parametrize("stretch", range(4))
def test_targets_of_one_stretch_touch_no_other(stretch: int) -> None:
    """The other stretches get no gradient, as in torch's module, and take no time."""
    head = make_head()
    h, _ = batch(head, 6)
    low = [0, *CUTOFFS][stretch]
    target = torch.full((6,), low)
    assert_close(head(h, target), head.softmax(h, target).loss)
    head(h, target).backward()
    touched = [tail[1].weight.grad is not None for tail in clusters(head)]
    assert touched == [cluster == stretch for cluster in (1, 2, 3)]


@with_and_without_counts
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("captured", [False, True])
def test_several_targets_weights_and_ignored_ones(
    counts: Tensor | None,
    reduction: Any,
    captured: bool,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step that waits for the device and a step that cannot wait give the same results."""
    monkeypatch.setattr("zloss.heads.adaptive.must_not_wait", lambda: captured)
    head = make_head(device, counts=counts, reduction=reduction)
    h, target = batch(head, 20, 5)
    target[torch.rand(target.shape, device=device) < 0.4] = IGNORED
    target[3] = target[8] = IGNORED
    weight = torch.randn(20, dtype=h.dtype, device=device)

    valid = target != IGNORED
    nll = torch.where(valid, -log_prob_of_torch(head, h).gather(1, target.clamp_min(0)), 0)
    rows = weight * nll.sum(1) / valid.sum(1).clamp_min(1)
    expected = {"none": rows, "sum": rows.sum(), "mean": rows.sum() / valid.any(1).sum()}[reduction]

    value = head(h, target, weight=weight)
    assert_close(value, expected)
    upstream = torch.randn_like(value)  # not the same for all rows
    assert_same_gradients((value * upstream).sum(), (expected * upstream).sum(), head, h)
    assert gradients(value.sum(), head, h)[0][[3, 8]].count_nonzero() == 0  # type: ignore[index]


def test_gradcheck() -> None:
    head = make_head(head_bias=True, counts=shuffled_counts())
    h, target = batch(head, 3, 2)
    target[0, 1] = IGNORED
    parameters = dict(head.named_parameters())

    def loss(h: Tensor, *values: Tensor) -> Tensor:
        named = dict(zip(parameters, values, strict=True))
        result: Tensor = torch.func.functional_call(head, named, (h, target))
        return result

    assert torch.autograd.gradcheck(loss, (h, *parameters.values()), fast_mode=True)


@pytest.mark.parametrize("shape", [(4,), (4, 3), (0,), (0, 2)])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_a_batch_without_targets_is_zero(
    shape: tuple[int, ...], reduction: Any, device: torch.device
) -> None:
    # Ignored targets have the index 0. These counts make class 0 the rarest one, so it is in the last cluster.
    counts = torch.arange(CLASSES)
    head = make_head(device, counts=counts, reduction=reduction)
    h = torch.randn(shape[0], HIDDEN, dtype=torch.float64, device=device, requires_grad=True)
    value = head(h, torch.full(shape, IGNORED, device=device))
    assert value.count_nonzero() == 0
    value.sum().backward()
    assert h.grad is not None
    assert h.grad.count_nonzero() == 0
    assert head.reference_weight.grad is not None
    assert head.reference_weight.grad.count_nonzero() == 0
    assert all(parameter.grad is None for parameter in head.softmax.tail.parameters())


def test_a_row_with_several_targets_in_a_cluster_goes_through_it_once() -> None:
    head = make_head()
    seen = []
    head.softmax.tail[1].register_forward_hook(
        lambda _module, inputs, _output: seen.append(len(inputs[0]))
    )
    h, _ = batch(head, 3)
    head(h, torch.tensor([[12, 13, 14], [29, 0, 59], [0, 6, 59]]))
    assert seen == [2]


def test_sgd_trains_it(device: torch.device) -> None:
    # The head is made on the CPU, so that the weights, and the result of the training, are equal on all devices.
    head = make_head(torch.device("cpu"), dtype=torch.float32, counts=shuffled_counts())
    h, target = batch(head, 30)
    head, h, target = head.to(device), h.detach().to(device), target.to(device)
    optimizer = head.sgd(0.3)
    before = head.perplexity(h, target)
    for _ in range(200):
        optimizer.zero_grad()
        head(h, target).backward()
        optimizer.step()
    assert head.perplexity(h, target) < min(
        2.0, before / 10
    )  # from about 100; each row has a target to memorise


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("hidden_dtype", [None, torch.float32])
def test_autocast(
    dtype: torch.dtype, hidden_dtype: torch.dtype | None, device: torch.device
) -> None:
    """Products are in half precision. Their normalisers and the loss are in float32."""
    head = make_head(device, dtype=torch.float32, head_bias=True)
    h, target = batch(head, 50, 2)
    expected, full = head(h, target), gradients(head(h, target), head, h)
    half = h.detach().to(hidden_dtype or dtype).requires_grad_()
    with torch.autocast(device.type, dtype=dtype):
        loss = head(half, target)
    loss.backward()
    assert loss.dtype == torch.float32
    # bfloat16 has 8 bits, so logits of size 4 err by up to 2^-6, and the loss, about 8, by less than 1%. The gradients
    # are proportional to probabilities. They err by a few times 2^-7 (seen: 0.9%).
    torch.testing.assert_close(loss, expected, rtol=0.01, atol=0)
    assert half.grad is not None
    assert half.grad.dtype == half.dtype
    for parameter, exact in zip(head.parameters(), full[1:], strict=True):
        assert exact is not None
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32
        assert (parameter.grad - exact).norm() <= 0.05 * exact.norm()
