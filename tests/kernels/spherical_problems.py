"""Statistics for the kernels of the spherical losses, and their results by definition in float64."""

from typing import Any

import torch
from torch import Tensor, nn

from zloss import SphericalStats
from zloss.losses.spherical import kernel_loss

CLASSES = 50
REDUCTIONS = ["mean", "sum", "none"]
DTYPES = [torch.float64, torch.float32]
SHAPES = [(1,), (13,), (7, 3), (16, 1)]  # of the targets
# Both sides compute in float64 from the same numbers, with a dozen roundings of 2e-16 each. The terms of a sum have one
# sign, or they are sums over rows and targets, whose size is a part of the scale below. The result is rounded once
# more, to its own dtype.
ROUNDINGS = 1e-14


def random_stats(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> SphericalStats:
    """Return statistics with ignored rows, some of which hold NaN. The last of many rows has no spread."""
    rows = shape[0]
    valid = torch.rand(shape) < 0.7
    target = torch.where(valid, 2 * torch.randn(shape), torch.nan)
    mean, scatter = torch.randn(rows), CLASSES * (0.1 + torch.rand(rows))
    if rows > 2:
        valid[0], valid[1], valid[-1] = True, False, True
        target[0], target[-1] = 1.0, 2.0
        scatter[-1] = 0
    classes = torch.randint(CLASSES, shape)
    stats = moved(
        SphericalStats.from_moments(target, mean, scatter, CLASSES, valid=valid, classes=classes),
        dtype,
        device,
    )
    stats.once_differentiable = True
    return stats


def moved(stats: SphericalStats, dtype: torch.dtype, device: torch.device) -> SphericalStats:
    """Return the same numbers on a device and in a dtype, as leaves. No loss chooses its kernel for them."""
    target, mean, scatter = (
        x.detach().to(device, dtype, copy=True).requires_grad_() for x in moments(stats)
    )
    classes = None if stats.classes is None else stats.classes.to(device)
    return SphericalStats.from_moments(
        target, mean, scatter, stats.num_classes, valid=stats.valid.to(device), classes=classes
    )


def moments(stats: SphericalStats) -> tuple[Tensor, Tensor, Tensor]:
    return stats.target, stats.mean, stats.scatter


def by_definition(
    loss: nn.Module, stats: SphericalStats, weight: Tensor | None, upstream: Tensor | None = None
) -> list[Tensor]:
    """Return the value and the gradients by autograd in float64."""
    exact = moved(stats, torch.float64, stats.target.device)
    exact.target.data.nan_to_num_()  # an ignored NaN would spoil the gradients of autograd
    value = loss(exact, weight=None if weight is None else weight.double())
    upstream = torch.ones_like(value) if upstream is None else upstream.double()
    return [value.detach(), *torch.autograd.grad(value, moments(exact), upstream)]


def by_kernel(
    loss: Any, stats: SphericalStats, weight: Tensor | None, upstream: Tensor | None = None
) -> list[Tensor]:
    value = kernel_loss(loss, stats, weight)
    assert value.dtype == stats.target.dtype
    upstream = torch.ones_like(value) if upstream is None else upstream
    grads = torch.autograd.grad(value, moments(stats), upstream)
    assert [grad.dtype for grad in grads] == 3 * [stats.target.dtype]
    return [value.detach(), *grads]


def assert_close(got: list[Tensor], expected: list[Tensor]) -> None:
    """Allow half a unit of the dtype for each element, and the roundings of float64 relative to the largest element."""
    for name, x, y in zip(
        ("value", "by target", "by mean", "by scatter"), got, expected, strict=True
    ):
        assert x.shape == y.shape
        rounding = torch.finfo(x.dtype).eps / 2 * y.abs() if x.dtype != torch.float64 else 0
        bound = rounding + ROUNDINGS * y.abs().max().clamp_min(1e-30)
        assert ((x.double() - y).abs() <= bound).all(), f"{name}: {x} is not {y}"
