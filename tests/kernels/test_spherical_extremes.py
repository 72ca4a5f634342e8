"""The kernels of the spherical losses with extreme rows and hyper-parameters."""

import math

import pytest
import torch
from torch import Tensor

import zloss
from tests.kernels.spherical_problems import (
    CLASSES,
    DTYPES,
    assert_close,
    by_definition,
    by_kernel,
    moments,
    moved,
    random_stats,
)
from tests.losses.registry import LossCase, every_spherical_loss
from tests.losses.test_extremes import FLAT, ROWS
from zloss import SphericalStats, kernels
from zloss.losses.spherical import kernel_loss

if not kernels.available():
    pytest.skip("triton is not installed", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("poisoned")


def stats_of_row(row: Tensor) -> SphericalStats:
    """Return the statistics of `row` with each class as the target in turn."""
    stats = SphericalStats.from_logits(
        row.repeat(len(row), 1), torch.arange(len(row), device=row.device)
    )
    return moved(stats, row.dtype, row.device)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("row", ROWS)
@every_spherical_loss
def test_extreme_values_and_gradients_are_those_of_autograd(
    case: LossCase, row: str, dtype: torch.dtype, kernel_device: torch.device
) -> None:
    stats, loss = stats_of_row(ROWS[row].to(kernel_device, dtype)), case.make(reduction="none")
    value = loss(stats)
    expected = [value.detach(), *torch.autograd.grad(value.sum(), moments(stats))]
    for x, y in zip(by_kernel(loss, stats, None), expected, strict=True):
        assert x.isfinite().all()
        # Autograd rounds a dozen operations in this dtype, relative to the largest number, because 1 + x cancels.
        torch.testing.assert_close(
            x, y, rtol=0, atol=12 * torch.finfo(dtype).eps * float(y.abs().max())
        )


@pytest.mark.parametrize("a", [1e-6, 1e6, 1e30])
@pytest.mark.parametrize("row", ROWS)
def test_an_extreme_a_is_finite(row: str, a: float, kernel_device: torch.device) -> None:
    loss = zloss.ZLoss(a=a, b=1e9, reduction="none")
    for x in by_kernel(loss, stats_of_row(ROWS[row].to(kernel_device)), None):
        assert x.isfinite().all()


@pytest.mark.parametrize("b", [0.0, 5e-324, -5e-324, 1e-310, 10])
def test_a_small_b_is_a_number_like_others(b: float, kernel_device: torch.device) -> None:
    """The kernel gets the number as an integer, and Triton has two kinds of integers."""
    stats, loss = random_stats((5,), torch.float64, kernel_device), zloss.ZLoss(a=0.5, b=b)
    assert_close(by_kernel(loss, stats, None), by_definition(loss, stats, None))


@pytest.mark.parametrize("row", FLAT)
def test_a_row_without_spread_has_a_gradient_of_zero(row: str, kernel_device: torch.device) -> None:
    loss = zloss.ZLoss(a=0.7, b=1.5, reduction="none")
    value, *grads = by_kernel(loss, stats_of_row(ROWS[row].to(kernel_device)), None)
    # The value is rounded once, to float32: half a unit is 6e-8.
    torch.testing.assert_close(
        value, torch.full_like(value, math.log1p(math.exp(0.7 * 1.5)) / 0.7), rtol=6e-8, atol=0
    )
    for grad in grads:
        assert grad.count_nonzero() == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_counts_as_spread(dtype: torch.dtype, kernel_device: torch.device) -> None:
    # Standard deviations from half to twice the rounding error of the mean, which is 4 eps times the mean.
    mean = torch.full((5,), 3.0, dtype=dtype, device=kernel_device)
    std = (
        4
        * torch.finfo(dtype).eps
        * mean
        * torch.tensor([0.5, 0.9, 1.1, 2.0, 0.0], device=kernel_device)
    )
    stats = SphericalStats.from_moments(mean + 8 * std, mean, CLASSES * std.square(), CLASSES)
    stats = moved(stats, dtype, kernel_device)
    for grad in by_kernel(zloss.ZLoss(a=1.0, b=1.0, reduction="none"), stats, None)[1:]:
        assert (grad != 0).tolist() == [False, False, True, True, False]


@pytest.mark.parametrize("z", [-1000.0, -50.0, -0.1, 0.0, 1e-9, 5.0, 36.7, 37.0, 50.0, 700.0])
def test_softplus_to_the_last_digits(z: float, kernel_device: torch.device) -> None:
    # log1p and exp are exact to a unit of 2e-16, in the standard library and on a GPU. Four of them are used.
    x = -z
    expected = max(x, 0.0) + math.log1p(math.exp(-abs(x)))
    target = torch.tensor([z], dtype=torch.float64, device=kernel_device)
    stats = SphericalStats.from_moments(
        target, torch.zeros_like(target), torch.full_like(target, 4.0), 4
    )
    value = kernel_loss(zloss.ZLoss(a=1.0, b=0.0), moved(stats, torch.float64, kernel_device))
    assert value.item() == pytest.approx(expected, rel=1e-15, abs=0)
