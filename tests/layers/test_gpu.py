"""Behaviour on a GPU: nothing waits for the device, and faults are found there and reported later."""

import pytest
import torch
from torch import Tensor

import zloss
from tests.gpu import no_synchronisation
from tests.layers.twins import k1_of, make_twins

HIDDEN, CLASSES = 16, 300
LOSS = zloss.ZLoss(a=0.2, b=8.0)


@pytest.fixture
def layer(cuda: torch.device) -> zloss.FactoredLinear:
    layer = zloss.FactoredLinear(HIDDEN, CLASSES, device=cuda)
    train_steps(layer, 3)
    return layer


def batch(layer: zloss.FactoredLinear, rows: int = 8) -> tuple[Tensor, Tensor]:
    h = torch.randn(rows, HIDDEN, device=layer.V.device, dtype=layer.V.dtype, requires_grad=True)
    return h, torch.randint(CLASSES, (rows,), device=layer.V.device)


def train_step(layer: zloss.FactoredLinear, lr: float = 20.0, rows: int = 8) -> None:
    LOSS(layer(*batch(layer, rows))).backward()
    layer.step_(lr)


def train_steps(layer: zloss.FactoredLinear, steps: int) -> None:
    for _ in range(steps):
        train_step(layer)


@pytest.mark.parametrize("rows", [8, 40])
def test_training_never_waits_for_the_device(layer: zloss.FactoredLinear, rows: int) -> None:
    batches = [batch(layer, rows) for _ in range(20)]
    with no_synchronisation():
        for h, target in batches:
            LOSS(layer(h, target)).backward()
            zloss.clip_grad_norm_([layer], 1.0)
            layer.step_(20.0, weight_decay=1e-4)


@pytest.mark.parametrize("rows", [5, 40])
def test_asynchronous_steps_are_the_dense_steps(cuda: torch.device, rows: int) -> None:
    twins = make_twins(HIDDEN, CLASSES, device=cuda, lr=20.0, weight_decay=2e-3, max_condition=1.05)
    for _ in range(300):
        h, target = batch(twins.factored, rows)
        assert twins.backward(LOSS, h.detach(), target) < 1e-9
        assert twins.step() < 1e-9
    assert twins.factored.refactors >= 2, "refactors happen, a few steps late"


def state_of(layer: zloss.FactoredLinear) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in layer.state_dict().items()}


def assert_unchanged(layer: zloss.FactoredLinear, state: dict[str, Tensor]) -> None:
    for name, tensor in layer.state_dict().items():
        assert torch.equal(tensor, state[name]), name


def assert_reported_and_recovers(
    layer: zloss.FactoredLinear, state: dict[str, Tensor], message: str
) -> None:
    """Steps after a fault change nothing until it is reported, within the depth of the queue; then training goes on."""
    with pytest.raises(ValueError, match=message):
        train_steps(layer, 20)
    assert_unchanged(layer, state)
    train_step(layer)
    layer.raise_faults()
    assert not torch.equal(layer.V, state["V"])


def test_target_out_of_range(layer: zloss.FactoredLinear) -> None:
    state = state_of(layer)
    h, target = batch(layer)
    target[3] = CLASSES
    loss = LOSS(layer(h, target))
    loss.backward()
    assert loss.isnan(), "visible at once to whoever looks"
    assert h.grad is not None
    assert not h.grad.any(), "the layers below learn nothing from the batch"
    layer.step_(20.0)
    assert_reported_and_recovers(layer, state, "a target is out of range")


def test_non_finite_h(layer: zloss.FactoredLinear) -> None:
    state = state_of(layer)
    h, target = batch(layer)
    with torch.no_grad():
        h[2, 2] = float("nan")
    LOSS(layer(h, target)).backward()
    assert h.grad is not None
    assert not h.grad.any()
    layer.step_(20.0)
    assert_reported_and_recovers(layer, state, "h has a NaN or an infinity")


def test_non_finite_gradient(layer: zloss.FactoredLinear) -> None:
    state = state_of(layer)
    (LOSS(layer(*batch(layer))) * float("inf")).backward()
    layer.step_(20.0)
    assert_reported_and_recovers(layer, state, "the gradient has a NaN or an infinity")


def _record_squared_error(layer: zloss.FactoredLinear) -> float:
    """Leave a gradient in the layer; returns the learning rate at which its P is singular."""
    zloss.SquaredError()(layer(*batch(layer))).backward()
    return 1 / float(torch.linalg.eigvalsh(k1_of(layer)).max())


def test_singular_step_is_refused_with_a_safe_rate(layer: zloss.FactoredLinear) -> None:
    state = state_of(layer)
    layer.step_(_record_squared_error(layer))
    with pytest.raises(zloss.RefusedStepError, match="nearly singular; use lr <=") as refusal:
        layer.condition()
    assert_unchanged(layer, state)
    _record_squared_error(layer)
    layer.step_(refusal.value.safe_lr)
    assert layer.condition() < 100
    layer.raise_faults()


def test_results_are_not_read_over_a_fault(layer: zloss.FactoredLinear) -> None:
    h, target = batch(layer)
    for read in (
        layer.weight,
        layer.to_linear,
        layer.condition,
        lambda: layer.topk(h, 3),
        lambda: layer.logits(h),
    ):
        layer(h, torch.full_like(target, CLASSES))
        with pytest.raises(ValueError, match="out of range"):
            read()
        read()


def test_training_goes_on_after_a_conversion(cuda: torch.device) -> None:
    """Kernels and definition report on a step in different lengths, from a width of more than one tile on."""
    layer = zloss.FactoredLinear(40, CLASSES, device=cuda)
    for dtype in (torch.float32, torch.float64, torch.float32):
        layer.to(dtype)
        for _ in range(20):
            h, target = (
                torch.randn(8, 40, device=cuda, dtype=dtype),
                torch.randint(CLASSES, (8,), device=cuda),
            )
            LOSS(layer(h, target)).backward()
            layer.step_(1.0)
        layer.raise_faults()


def test_many_steps_ahead_the_host_waits(layer: zloss.FactoredLinear) -> None:
    train_steps(layer, 100)
    reports = layer._stepper.supervisor._reports
    assert len(reports._pending) <= reports.DEPTH
