"""The gradient that a backward pass records, and the step that uses it."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.layers.small_layers import CLASSES, HIDDEN, LOSS, batch, loss_of, make_layer, train
from tests.layers.twins import relative_error
from zloss.layers.gradient_norm import norm_of


def test_backward_trains_where_h_needs_no_gradient(device: torch.device) -> None:
    layer = make_layer(device)
    before = layer.weight()
    h, target = batch(layer)
    LOSS(layer(h.detach(), target)).backward()
    layer.step_(20.0)
    assert not torch.equal(layer.weight(), before)


def test_nothing_is_recorded_without_backward_or_without_grad(device: torch.device) -> None:
    layer = make_layer(device)
    loss_of(layer)
    with torch.no_grad():
        assert not loss_of(layer).requires_grad
    with torch.inference_mode():
        loss_of(layer)
    assert layer.recorded_gradient() is None
    assert layer.grad_norm() == 0
    before = layer.weight()
    layer.step_(20.0, weight_decay=0.5)
    assert torch.equal(layer.weight(), before), (
        "without a gradient there is no step, as for torch's SGD"
    )


def test_autograd_grad_leaves_the_layer_alone(device: torch.device) -> None:
    layer = make_layer(device)
    h, target = batch(layer)
    loss = LOSS(layer(h, target))
    (grad,) = torch.autograd.grad(loss, h, retain_graph=True)
    assert layer.recorded_gradient() is None
    loss.backward()
    assert layer.recorded_gradient() is not None
    assert torch.equal(grad, h.grad)  # type: ignore[arg-type]


def test_frozen_layer_passes_gradients_but_records_none(device: torch.device) -> None:
    layer = make_layer(device).requires_grad_(False)
    h, target = batch(layer)
    LOSS(layer(h, target)).backward()
    assert h.grad is not None
    assert h.grad.any()
    assert layer.recorded_gradient() is None


def test_gradient_of_h_by_gradcheck(device: torch.device) -> None:
    layer = make_layer(device, bias=True)
    target = torch.tensor([[1, 2], [3, -100], [4, 4]], device=device)

    def statistics(h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        stats = layer(h, target)
        return stats.target, stats.sum, stats.sumsq

    h = torch.randn(3, HIDDEN, dtype=torch.float64, device=device, requires_grad=True)
    assert torch.autograd.gradcheck(statistics, (h,))


def test_record_does_not_keep_the_network_below_alive(device: torch.device) -> None:
    layer = make_layer(device)
    x = torch.randn(4, HIDDEN, dtype=torch.float64, device=device, requires_grad=True)
    LOSS(layer(x * 2, torch.randint(CLASSES, (4,), device=device))).backward()
    gradient = layer.recorded_gradient()
    assert gradient is not None
    tensors = [value for value in vars(gradient).values() if isinstance(value, Tensor)]
    assert len(tensors) >= 8
    assert not any(tensor.requires_grad for tensor in tensors)


def test_a_step_uses_up_the_gradient(device: torch.device) -> None:
    layer = make_layer(device)
    loss_of(layer).backward()
    layer.step_(20.0)
    once = layer.weight()
    layer.step_(20.0)
    assert torch.equal(layer.weight(), once)


def test_refactor_between_forward_and_backward_is_noticed(device: torch.device) -> None:
    layer = make_layer(device)
    train(layer)
    loss = loss_of(layer)
    layer.refactor()
    with pytest.raises(RuntimeError, match="was refactored"):
        loss.backward()


def test_step_between_forward_and_backward_is_noticed(device: torch.device) -> None:
    layer = make_layer(device)
    stale, fresh = loss_of(layer), loss_of(layer)
    fresh.backward()
    layer.step_(1.0)
    with pytest.raises(RuntimeError, match=r"took a step.* between this forward pass"):
        stale.backward()
    assert layer.recorded_gradient() is None


@pytest.mark.parametrize("rows", [4, 9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_refactor_between_backward_and_step_changes_nothing(
    dtype: torch.dtype, rows: int, device: torch.device
) -> None:
    layer = make_layer(device, dtype=dtype)
    train(layer)
    twin = copy.deepcopy(layer)
    loss_of(layer, rows).backward()
    record = layer.recorded_gradient()
    assert record is not None
    twin.record(record)
    layer.refactor()
    layer.step_(20.0)
    twin.step_(20.0)
    # Some roundings of V and, in float32, of products.
    assert relative_error(layer.weight(), twin.weight()) < 20 * torch.finfo(dtype).eps


def test_the_batch_may_be_overwritten_before_the_step(device: torch.device) -> None:
    layer = make_layer(device)
    twin = copy.deepcopy(layer)
    h, target = batch(layer)
    for each, given in ((layer, h.detach().clone()), (twin, h.detach().clone())):
        LOSS(each(given, target)).backward()
        if each is layer:
            given.zero_()
        each.step_(20.0)
    assert torch.equal(layer.weight(), twin.weight())


def test_a_record_by_kernels_with_float32_products_has_a_norm() -> None:
    """Such a record holds the batch in float32 and the gradient of the targets in float64."""
    layer = make_layer(torch.device("cpu"))
    h, target = torch.randn(6, HIDDEN, dtype=layer.V.dtype), torch.tensor([1, 1, 2, 3, 3, 3])
    LOSS(layer(h, target)).backward()
    record = layer.recorded_gradient()
    assert record is not None
    coarse = replace(
        record, **{name: getattr(record, name).float() for name in ("h", "hg", "target_rows")}
    )
    norm = norm_of(coarse, layer.wbar, CLASSES)
    # A sum of some products in float32.
    assert norm == pytest.approx(layer.grad_norm().item(), rel=1e-5)
