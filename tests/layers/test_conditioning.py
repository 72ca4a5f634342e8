"""Refactoring: by itself, by force, exactly, and in the memory of one layer."""

import pytest
import torch

import zloss
from tests.layers.twins import k1_of, make_twins, relative_error
from zloss.layers.matrix import centred_moments, condition_of, materialise_
from zloss.layers.storage import InMemory

CLASSES, HIDDEN = 100, 8
LOSS = zloss.ZLoss(a=0.2, b=8.0)
# The loss is scale-invariant: without decay W grows until steps of this size no longer turn it.
LR, DECAY = 20.0, 2e-3


def random_batch(rows: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, HIDDEN, dtype=torch.float64, device=device), torch.randint(
        CLASSES, (rows,), device=device
    )


@pytest.mark.parametrize("rows", [3, 20])
def test_refactors_by_itself_and_stays_exact(rows: int, device: torch.device) -> None:
    twins = make_twins(
        HIDDEN,
        CLASSES,
        device=device,
        lr=LR,
        weight_decay=DECAY,
        max_condition=1.05,
        synchronous=True,
    )
    for _ in range(200):
        twins.backward(LOSS, *random_batch(rows, device))
        assert (
            twins.step() < 1e-11
        )  # 200 steps at a condition near 1 gather no more than some 1e-13
        assert twins.factored.condition() <= 1.05
    assert twins.factored.refactors >= 5
    assert 0 < twins.factored.drift() < 1e-12


def test_without_refactoring_the_condition_grows(device: torch.device) -> None:
    twins = make_twins(
        HIDDEN,
        CLASSES,
        device=device,
        lr=LR,
        weight_decay=DECAY,
        max_condition=1e300,
        synchronous=True,
    )
    for _ in range(200):
        twins.backward(LOSS, *random_batch(3, device))
        twins.step()
    assert twins.factored.refactors == 0
    assert twins.factored.condition() > 1.2, "or the test above shows nothing"


def test_forced_refactor_leaves_the_weights(device: torch.device) -> None:
    twins = make_twins(HIDDEN, CLASSES, device=device, lr=20.0, bias=True, synchronous=True)
    for _ in range(20):
        twins.backward(LOSS, *random_batch(3, device))
        twins.step()
    layer = twins.factored
    weight, gram, wbar = layer.weight(), layer.gram.clone(), layer.wbar.clone()
    layer.refactor()
    assert layer.condition() == pytest.approx(1.0)
    assert layer.refactors == 1
    assert relative_error(layer.weight(), weight) < 1e-14
    assert relative_error(layer.gram, gram) < 1e-12
    assert relative_error(layer.wbar, wbar) < 1e-12
    assert torch.equal(layer.U, torch.eye(HIDDEN + 1, dtype=torch.float64, device=device))
    assert not layer.omega.any()


def _singular_rate(layer: zloss.FactoredLinear, weight_decay: float) -> float:
    """The learning rate at which the recorded gradient makes P = (1 - lr decay) I - lr K1 singular."""
    return 1 / (float(torch.linalg.eigvalsh(k1_of(layer)).max()) + weight_decay)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("rows", [3, 20])
@pytest.mark.parametrize("nearly", [1.0, 1 + 1e-9, 1 - 1e-5])
def test_singular_step_is_still_exact(
    nearly: float, rows: int, weight_decay: float, device: torch.device
) -> None:
    twins = make_twins(
        HIDDEN, CLASSES, device=device, lr=1.0, weight_decay=weight_decay, synchronous=True
    )
    loss = zloss.SquaredError()
    for _ in range(4):
        twins.backward(loss, *random_batch(rows, device))
        lr = nearly * _singular_rate(twins.factored, weight_decay)
        for optimizer in (twins.factored_optimizer, twins.dense_optimizer):
            optimizer.param_groups[0]["lr"] = lr
        assert twins.step() < 1e-12
        assert twins.factored.condition() < 1e4
    assert twins.factored.refactors == 4


@pytest.mark.parametrize("rows", [3, 20])
def test_overshooting_step_is_exact(rows: int, device: torch.device) -> None:
    """P indefinite: dense SGD overshoots, and the factors follow without complaint."""
    twins = make_twins(HIDDEN, CLASSES, device=device, lr=1.0, synchronous=True)
    twins.backward(zloss.SquaredError(), *random_batch(rows, device))
    rate = 3 * _singular_rate(twins.factored, 0.0)
    for optimizer in (twins.factored_optimizer, twins.dense_optimizer):
        optimizer.param_groups[0]["lr"] = rate
    assert twins.step() < 1e-12


def test_decay_of_everything_is_exact(device: torch.device) -> None:
    """lr * weight_decay = 1 wipes the weights out: P is singular in every direction but those of the batch."""
    twins = make_twins(HIDDEN, CLASSES, device=device, lr=2.0, weight_decay=0.5, synchronous=True)
    twins.backward(LOSS, *random_batch(3, device))
    assert twins.step() < 1e-12
    assert twins.factored.refactors == 1


def test_strong_weight_decay_keeps_its_digits(device: torch.device) -> None:
    """Through refactors of a U that has shrunk a million times, float32 weights stay within some 100 roundings."""
    twins = make_twins(
        HIDDEN,
        CLASSES,
        device=device,
        lr=1.0,
        weight_decay=0.1,
        dtype=torch.float32,
        synchronous=True,
    )
    for _ in range(300):
        h, target = random_batch(3, device)
        twins.backward(LOSS, h.float(), target)
        assert twins.step() < 100 * torch.finfo(torch.float32).eps
    assert twins.factored.refactors >= 2


def test_long_weight_decay_does_not_overflow(device: torch.device) -> None:
    """Decay by 10 % a step takes U below 1e-38 within 900 steps; V must not grow beyond float32 to match."""
    twins = make_twins(
        HIDDEN,
        CLASSES,
        device=device,
        lr=1.0,
        weight_decay=0.1,
        dtype=torch.float32,
        synchronous=True,
    )
    for _ in range(900):
        h, target = random_batch(3, device)
        twins.factored(h.float(), target).scatter.mul(0).sum().backward()
        twins.factored_optimizer.step()
        assert twins.factored.V.isfinite().all()
    assert twins.factored.refactors >= 6
    assert twins.factored.weight().abs().max() < 1e-35


def test_hasty_refactors_are_pointed_out(device: torch.device) -> None:
    twins = make_twins(HIDDEN, CLASSES, device=device, lr=1.0, synchronous=True)

    def singular_steps() -> None:
        for _ in range(8):
            twins.backward(zloss.SquaredError(), *random_batch(3, device))
            twins.factored.step_(_singular_rate(twins.factored, 0.0))

    with pytest.warns(UserWarning, match="learning rate is too large for the factors; about"):
        singular_steps()


def test_moments_and_materialise_against_their_definitions(device: torch.device) -> None:
    V = torch.randn(70_000, 40, device=device)  # several blocks
    U, omega = (
        torch.randn(40, 40, dtype=torch.float64, device=device),
        torch.randn(40, dtype=torch.float64, device=device),
    )
    expected = V.double() @ U + omega
    materialise_(InMemory(V), U, omega, torch.float64)
    assert relative_error(V, expected) < 1e-7, "one rounding to float32"
    mean, gram = centred_moments(InMemory(V), torch.float64, torch.float64)
    centred = V.double() - V.double().mean(0)
    assert relative_error(mean, V.double().mean(0)) < 1e-12
    assert relative_error(gram, centred.T @ centred) < 1e-12


@pytest.mark.parametrize("width", [4, 64])
def test_limit_is_that_of_one_shrunken_direction(width: int) -> None:
    layer = zloss.FactoredLinear(width, 10)
    U = torch.eye(width, dtype=torch.float64)
    U[0, 0] = 1 / 30
    # The estimate leaves out terms of relative order 1/H.
    limit = layer._stepper.conditioning.limit(width, torch.float32)
    assert limit == pytest.approx(condition_of(U, U.inverse()).item(), rel=1 / width)


def test_condition_of_known_matrices() -> None:
    U = torch.diag(torch.tensor([1.0, 1.0, 1e-3]))
    assert condition_of(torch.eye(5), torch.eye(5)) == pytest.approx(1.0)
    assert condition_of(U, U.inverse()).item() == pytest.approx(
        (2 + 1e-6) ** 0.5 * (2 + 1e6) ** 0.5 / 3, rel=1e-5
    )
