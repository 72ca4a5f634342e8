"""The choice between the kernels of the spherical losses and autograd."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zloss
from tests.kernels.spherical_problems import (
    ROUNDINGS,
    moments,
    random_stats,
)
from tests.losses.registry import LossCase, every_spherical_loss
from zloss import SphericalStats, kernels
from zloss.losses import spherical
from zloss.losses.spherical import has_kernel, kernel_loss, suits_kernels

if not kernels.available():
    pytest.skip("triton is not installed", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("poisoned")


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every loss with a kernel use it, for any statistics."""
    monkeypatch.setattr(spherical, "suits_kernels", lambda stats, weight: True)


class Doubled(zloss.ZLoss):
    def per_example(self, stats: SphericalStats) -> Tensor:
        return 2 * super().per_example(stats)


class Renamed(zloss.ZLoss):
    """A loss with another name and the same definition."""


@pytest.mark.usefixtures("forced")
def test_a_loss_of_a_users_own_is_honoured(kernel_device: torch.device) -> None:
    stats = random_stats((5,), torch.float64, kernel_device)
    value = zloss.ZLoss(a=1.0, b=2.0)(stats)
    assert type(value.grad_fn).__name__ == "_ReducedLossBackward"
    assert Renamed(a=1.0, b=2.0)(stats) == value
    own = Doubled(a=1.0, b=2.0)(stats)
    assert type(own.grad_fn).__name__ != "_ReducedLossBackward"
    torch.testing.assert_close(own, 2 * value, rtol=ROUNDINGS, atol=0)
    patched = zloss.ZLoss(a=1.0, b=2.0, reduction="sum")
    patched.per_example = lambda stats: stats.target * 0 + 1  # type: ignore[method-assign]
    stats.target.data.nan_to_num_()
    assert patched(stats) == 5


@every_spherical_loss
def test_every_loss_of_the_family_has_a_kernel(case: LossCase) -> None:
    loss = case.make()
    assert isinstance(loss, zloss.SphericalLoss)
    assert has_kernel(loss)


def test_a_hyper_parameter_that_is_trained_has_none() -> None:
    loss = zloss.ZLoss(a=1.0, b=2.0)
    loss.b = nn.Parameter(torch.tensor(2.0))  # type: ignore[assignment]
    assert not has_kernel(loss)


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize(("name", "value"), [("a", 0.0), ("a", -1.0), ("b", math.inf)])
def test_bad_hyper_parameters_are_refused(
    name: str, value: float, kernel_device: torch.device
) -> None:
    loss = zloss.ZLoss(a=1.0, b=2.0)
    setattr(loss, name, value)
    with pytest.raises(ValueError, match=f"{name} must be a finite number"):
        loss(random_stats((5,), torch.float64, kernel_device))


def test_a_kernel_is_only_once_differentiable(kernel_device: torch.device) -> None:
    stats = random_stats((5,), torch.float64, kernel_device)
    value = kernel_loss(zloss.ZLoss(a=1.0, b=2.0), stats)
    (grad,) = torch.autograd.grad(value.square(), stats.mean, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_statistics_are_twice_differentiable_unless_they_say_otherwise() -> None:
    logits, target = torch.randn(4, 9), torch.tensor([0, 3, 8, -100])
    dense = SphericalStats.from_logits(logits, target)
    assert not dense.once_differentiable
    assert not SphericalStats(dense.target, dense.sum, dense.sumsq, 9).once_differentiable
    assert SphericalStats.from_moments(
        *moments(dense), 9, once_differentiable=True
    ).once_differentiable


def test_a_cpu_does_without(device: torch.device) -> None:
    stats = random_stats((5,), torch.float32, device)
    assert suits_kernels(stats, None) == (device.type == "cuda")
    assert suits_kernels(stats, torch.ones(5, device=device)) == (device.type == "cuda")


Spoil = Callable[[SphericalStats], object]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda stats: setattr(stats, "once_differentiable", False),
        lambda stats: setattr(stats, "mean", stats.mean.double()),
        lambda stats: setattr(stats, "scatter", stats.scatter.cpu()),
        lambda stats: setattr(stats, "target", stats.target.half()),
        lambda stats: setattr(stats, "target", stats.target[:0]),
        lambda stats: setattr(stats, "target", stats.target.repeat(10_000)),
    ],
    ids=[
        "twice differentiable",
        "mixed dtypes",
        "mixed devices",
        "half precision",
        "no rows",
        "many rows",
    ],
)
def test_statistics_that_are_left_to_autograd(spoil: Spoil, cuda: torch.device) -> None:
    stats = random_stats((5,), torch.float32, cuda)
    assert suits_kernels(stats, None)
    spoil(stats)
    assert not suits_kernels(stats, None)


@pytest.mark.parametrize(
    "weight",
    [torch.ones(4), torch.ones(5, dtype=torch.long), torch.ones(5, requires_grad=True), [1.0] * 5],
    ids=["wrong shape", "integers", "with a gradient", "list"],
)
def test_weights_that_are_left_to_autograd(weight: Any, cuda: torch.device) -> None:
    weight = weight.to(cuda) if isinstance(weight, Tensor) else weight
    assert not suits_kernels(random_stats((5,), torch.float32, cuda), weight)
