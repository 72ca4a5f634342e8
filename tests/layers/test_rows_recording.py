"""The gradients of looked-up rows: when they are recorded, when they are dropped, and what is refused."""

import copy

import pytest
import torch
from torch import nn

import zloss
from tests.layers.test_exactness import EXACT
from tests.layers.twins import make_twins, relative_error

HIDDEN, CLASSES = 8, 61


def small_layer(device: torch.device) -> zloss.FactoredLinear:
    return make_twins(HIDDEN, CLASSES, device=device, synchronous=True).factored


def test_nothing_is_recorded_without_backward_without_grad_or_frozen(device: torch.device) -> None:
    layer, ids = small_layer(device), torch.tensor([1, 2], device=device)
    layer.rows(ids)
    with torch.no_grad():
        assert not layer.rows(ids).requires_grad
    with torch.inference_mode():
        layer.rows(ids)
    layer.requires_grad_(False)
    assert not layer.rows(ids).requires_grad
    assert layer.recorded_gradient() is None


def test_autograd_grad_leaves_the_layer_alone(device: torch.device) -> None:
    layer, ids = small_layer(device), torch.tensor([1, 2, 2], device=device)
    factor = torch.tensor(3.0, dtype=torch.float64, device=device, requires_grad=True)
    rows = layer.rows(ids)
    loss = (factor * rows).sum()
    of_factor, of_rows = torch.autograd.grad(loss, (factor, rows), retain_graph=True)
    assert layer.recorded_gradient() is None
    assert relative_error(of_factor, rows.sum()) <= 1e-14
    assert torch.equal(of_rows, torch.full_like(rows, 3.0))
    loss.backward()
    assert layer.recorded_gradient() is not None


def test_a_retained_graph_counts_twice(device: torch.device) -> None:
    twins = make_twins(HIDDEN, CLASSES, device=device, synchronous=True)
    ids = torch.tensor([1, 2, 2], device=device)
    for layer in (twins.factored, twins.dense):
        loss = layer.rows(ids).exp().sum()
        loss.backward(retain_graph=True)
        loss.backward()
    assert twins.step() <= EXACT


def test_rows_may_be_changed_in_place(device: torch.device) -> None:
    twins = make_twins(HIDDEN, CLASSES, device=device, synchronous=True)
    ids = torch.tensor([1, 2, 2], device=device)
    for layer in (twins.factored, twins.dense):
        layer.rows(ids).mul_(2).add_(1).square().sum().backward()
    assert twins.step() <= EXACT


@pytest.mark.parametrize("change", ["step", "refactor", "load"])
def test_a_backward_after_a_change_of_the_weights_is_refused(
    change: str, device: torch.device
) -> None:
    layer, ids = small_layer(device), torch.tensor([1], device=device)
    stale = layer.rows(ids).sum()
    if change == "step":
        layer.rows(ids).sum().backward()
        layer.step_(1.0)
    elif change == "refactor":
        layer.refactor()
    else:
        layer.load_state_dict(layer.state_dict())
    with pytest.raises(RuntimeError, match="between this forward pass and its backward"):
        stale.backward()
    assert layer.recorded_gradient() is None


def test_zero_grad_drops_the_gradients_of_rows(device: torch.device) -> None:
    layer, ids = small_layer(device), torch.tensor([1], device=device)
    layer.rows(ids).sum().backward()
    assert layer.grad_norm() > 0
    nn.Sequential(layer).zero_grad()
    assert layer.recorded_gradient() is None
    assert layer.grad_norm() == 0


def test_second_derivatives_are_refused(device: torch.device) -> None:
    layer = small_layer(device)
    loss = layer.rows(torch.tensor([1], device=device)).square().sum()
    with pytest.raises(RuntimeError, match="first ones only"):
        loss.backward(create_graph=True)


def test_a_scaler_unscales_the_gradients_of_rows(device: torch.device) -> None:
    twins = make_twins(HIDDEN, CLASSES, device=device, lr=0.5, synchronous=True)
    # Without an update in between, a scaler steps once.
    first, second = (torch.amp.GradScaler(device.type, init_scale=2.0**20) for _ in range(2))
    ids = torch.tensor([4, 4, 9], device=device)
    first.scale(twins.factored.rows(ids).square().sum()).backward()
    twins.dense.rows(ids).square().sum().backward()
    first.step(twins.factored_optimizer)
    twins.dense_optimizer.step()
    assert twins.weight_error() <= EXACT
    before = twins.factored.weight()
    second.scale(twins.factored.rows(ids).square().sum() * float("inf")).backward()
    second.step(twins.factored_optimizer)
    assert torch.equal(twins.factored.weight(), before), (
        "a step without finite gradients is skipped"
    )
    assert twins.factored.recorded_gradient() is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_gradient_that_is_not_finite_is_refused(value: float, device: torch.device) -> None:
    layer = small_layer(device)
    before = copy.deepcopy(layer.state_dict())
    rows = layer.rows(torch.tensor([1, 2], device=device))
    weight = torch.ones_like(rows)
    weight[1, 3] = value
    rows.backward(weight)
    with pytest.raises(zloss.RefusedStepError, match="the gradient has a NaN or an infinity"):
        layer.step_(0.1)
    assert all(torch.equal(before[name], tensor) for name, tensor in layer.state_dict().items())


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, CLASSES], f"id {CLASSES} is out of range: expected 0 <= id < {CLASSES}"),
        ([-1, 3], "id -1 is out of range"),
        ([1.0], "integer class indices, got dtype torch.float32"),
        ([True], "integer class indices, got dtype torch.bool"),
    ],
)
def test_bad_ids_are_refused(ids: list[object], message: str, device: torch.device) -> None:
    layer = small_layer(device)
    for each in (layer, zloss.DenseLinear.from_linear(layer.to_linear())):
        with pytest.raises(ValueError, match=message):
            each.rows(torch.tensor(ids, device=device))
        with pytest.raises(ValueError, match="tensor of integer class indices, got list"):
            each.rows([1, 2])  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="bias=True"):
            each.rows(torch.tensor([1], device=device), with_bias=True)


def test_a_narrow_type_does_not_wrap(device: torch.device) -> None:
    layer = zloss.FactoredLinear(4, 1000, device=device, synchronous=True)
    ids = torch.tensor([200], dtype=torch.uint8, device=device)
    assert torch.equal(layer.rows(ids), layer.weight()[200:201])
    with pytest.raises(ValueError, match="id -56 is out of range"):
        layer.rows(ids.view(torch.int8))
