"""Rows that a network looks up where nothing waits for the device: steps by both implementations, and captured ones.

A CPU always waits. The fixture lets it work as a GPU does, with kernels in Triton's interpreter.
"""

import copy
import random
from functools import partial

import pytest
import torch
from torch import Tensor

import zloss
from tests.gpu import device_that_does_not_wait, no_synchronisation
from tests.layers.test_rows import CLASSES, HIDDEN, LOSS, ids_like
from tests.layers.twins import make_twins, relative_error
from zloss.layers.stepper import Implementation

# From NumPy in the interpreter: without a batch every learning rate is safe, which is one divided by zero.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture
def place(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    return device_that_does_not_wait(device, monkeypatch)


@pytest.mark.parametrize(
    ("implementation", "dtype", "largest"),
    [
        ("torch", torch.float64, 1e-9),
        # Float32 weights are rounded at every step.
        ("torch", torch.float32, 1e-5),
        ("triton", torch.float32, 1e-5),
    ],
)
def test_steps_are_the_dense_steps(
    implementation: Implementation, dtype: torch.dtype, largest: float, place: torch.device
) -> None:
    twins = make_twins(
        HIDDEN, CLASSES, device=place, dtype=dtype, lr=0.5, implementation=implementation
    )
    assert twins.factored.uses_kernels == (implementation == "triton")
    chance = random.Random(0)
    for step in range(20):
        h, ids = torch.randn(5, HIDDEN, device=place), ids_like(chance, (5, 3), place)
        for layer in (twins.factored, twins.dense):
            rows = layer.rows(ids)
            loss = 0.1 * rows.square().sum()
            if step % 4:  # else there is no batch
                loss = loss + LOSS(layer(h.to(rows.dtype) + rows.sum(1), ids[:, 0]))
            loss.backward()
        zloss.clip_grad_norm_(twins.factored, 2.0)
        torch.nn.utils.clip_grad_norm_(twins.dense.parameters(), 2.0)
        assert twins.step() < largest
    twins.factored.raise_faults()


@pytest.mark.parametrize("implementation", ["torch", "triton"])
def test_a_bad_id_stops_the_layer(implementation: Implementation, place: torch.device) -> None:
    layer = zloss.FactoredLinear(HIDDEN, CLASSES, device=place, implementation=implementation)
    before = layer.V.clone()
    rows = layer.rows(torch.tensor([1, CLASSES], device=place))
    assert rows[0].any()
    assert not rows[1].any(), "zeros do less harm to the layers above than a NaN"
    rows.sum().backward()
    layer.step_(1.0)
    with pytest.raises(ValueError, match=r"an id of rows\(\) is out of range"):
        layer.raise_faults()
    assert torch.equal(layer.V, before)
    layer.rows(torch.tensor([1], device=place)).sum().backward()
    layer.step_(1.0)
    layer.raise_faults()
    assert not torch.equal(layer.V, before), "after the report it goes on"


@pytest.mark.parametrize("implementation", ["torch", "triton"])
def test_a_gradient_that_is_not_finite_stops_the_layer(
    implementation: Implementation, place: torch.device
) -> None:
    layer = zloss.FactoredLinear(HIDDEN, CLASSES, device=place, implementation=implementation)
    before = layer.V.clone()
    (layer.rows(torch.tensor([1, 2], device=place)).sum() * float("nan")).backward()
    layer.step_(1.0)
    with pytest.raises(zloss.RefusedStepError, match="the gradient has a NaN or an infinity"):
        layer.raise_faults()
    assert torch.equal(layer.V, before)


def test_a_captured_step_with_rows_is_the_step(cuda: torch.device) -> None:
    layer = zloss.FactoredLinear(HIDDEN, CLASSES, device=cuda)
    optimizer = zloss.FactoredSGD(layer, lr=1.0)
    twin = copy.deepcopy(layer)
    twin_optimizer = zloss.FactoredSGD(twin, lr=1.0)

    def step_of(
        layer: zloss.FactoredLinear, optimizer: zloss.FactoredSGD, ids: Tensor, target: Tensor
    ) -> Tensor:
        loss: Tensor = LOSS(layer(layer.rows(ids).sum(1).tanh(), target))
        loss.backward()
        optimizer.step()
        return loss

    captured = zloss.CapturedStep(partial(step_of, layer, optimizer), optimizers=[optimizer])
    plain = partial(step_of, twin, twin_optimizer)
    for _ in range(20):
        ids = torch.randint(CLASSES, (5, 3), device=cuda)
        target = torch.randint(CLASSES, (5,), device=cuda)
        loss, expected = captured(ids, target), plain(ids, target)
        # Sums in no fixed order, and another way to the inverse.
        assert relative_error(loss, expected) < 1e-4
    layer.raise_faults()
    assert relative_error(layer.weight(), twin.weight()) < 1e-4


@pytest.mark.parametrize("implementation", ["torch", "triton"])
def test_training_never_waits_for_the_device(
    cuda: torch.device, implementation: Implementation
) -> None:
    layer = zloss.FactoredLinear(HIDDEN, CLASSES, device=cuda, implementation=implementation)
    embedding = zloss.TiedEmbedding(layer, padding_idx=-1)
    ids, target = (torch.randint(CLASSES, (5, k), device=cuda) for k in (3, 1))
    LOSS(layer(embedding(ids).sum(1), target)).backward()
    layer.step_(1.0)
    with no_synchronisation():
        for _ in range(10):
            LOSS(layer(embedding(ids).sum(1), target)).backward()
            zloss.clip_grad_norm_([layer], 1.0)
            layer.step_(1.0, weight_decay=1e-4)
