"""Row-wise Adagrad for looked-up rows where nothing waits for the device, by both implementations."""

import random

import pytest
import torch
from torch import Tensor

import zloss
from tests.gpu import device_that_does_not_wait, no_synchronisation
from tests.layers.row_rule_twin import (
    CLASSES,
    HIDDEN,
    ROW_LR,
    DenseTwin,
    make_layer,
    make_optimizer,
    squares_of,
)
from tests.layers.test_rows import LOSS, ids_like
from tests.layers.twins import relative_error
from zloss.layers.stepper import Implementation

# From NumPy in Triton's interpreter: without a batch every learning rate is safe, which is one divided by zero.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture
def place(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    return device_that_does_not_wait(device, monkeypatch)


@pytest.mark.parametrize(
    ("implementation", "dtype", "largest"),
    [
        ("torch", torch.float64, 1e-9),
        # Float32 weights are rounded at every step. Adagrad divides two float32 gradients.
        ("torch", torch.float32, 2e-5),
        ("triton", torch.float32, 2e-5),
    ],
)
def test_steps_without_waiting(
    implementation: Implementation, dtype: torch.dtype, largest: float, place: torch.device
) -> None:
    layer = make_layer(place, dtype=dtype, synchronous=False, implementation=implementation)
    assert layer.uses_kernels == (implementation == "triton")
    twin, optimizer, chance = DenseTwin(layer), make_optimizer(layer), random.Random(0)
    for step in range(8):
        h, ids = torch.randn(5, HIDDEN, device=place), ids_like(chance, (5, 3), place)
        for each in (layer, twin):
            rows = each.rows(ids)
            loss = 0.1 * rows.square().sum()
            if step % 4:  # else there is no batch
                loss = loss + LOSS(each(h.to(rows.dtype) + rows.sum(1), ids[:, 0].long()))
            loss.backward()
        optimizer.step()
        twin.step(0.5, ROW_LR)
        assert relative_error(layer.weight(), twin.W) < largest, f"step {step}"
        assert relative_error(squares_of(optimizer), twin.squares) < largest, f"step {step}"
    layer.raise_faults()


@pytest.mark.parametrize("implementation", ["torch", "triton"])
def test_a_step_that_the_device_refuses_keeps_the_squares(
    implementation: Implementation, place: torch.device
) -> None:
    layer = make_layer(place, dtype=torch.float32, synchronous=False, implementation=implementation)
    optimizer, ids = make_optimizer(layer), torch.tensor([3, 4], device=place)
    layer.rows(ids).sum().backward()
    optimizer.step()
    squares, V = squares_of(optimizer).clone(), layer.V.clone()
    for weight in (torch.nan, 1.0):  # the second step comes after a fault that nobody has seen
        layer.rows(ids).backward(torch.full((2, HIDDEN), weight, device=place))
        optimizer.step()
        assert torch.equal(squares_of(optimizer), squares)
        assert torch.equal(layer.V, V)


def test_nothing_waits_for_the_device(cuda: torch.device) -> None:
    layer = zloss.FactoredLinear(HIDDEN, CLASSES, device=cuda)
    optimizer, ids = make_optimizer(layer), torch.tensor([3, 4], device=cuda)

    def step() -> None:
        layer.rows(ids).sum().backward()
        optimizer.step()

    step()
    with no_synchronisation():
        step()


def test_a_captured_step(cuda: torch.device) -> None:
    layer = zloss.FactoredLinear(HIDDEN, CLASSES, device=cuda)
    twin = DenseTwin(layer)
    optimizer = make_optimizer(layer)

    def step(ids: Tensor) -> Tensor:
        loss = layer.rows(ids).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    captured = zloss.CapturedStep(step, optimizers=[optimizer])
    for number in range(8):
        ids = torch.tensor([number, 3, 3], device=cuda)
        captured(ids)
        twin.rows(ids).square().sum().backward()
        twin.step(0.5, ROW_LR)
    assert relative_error(layer.weight(), twin.W) < 2e-5
    assert relative_error(squares_of(optimizer), twin.squares) < 2e-5
