"""The losses of `zloss.losses.spherical`, reduced, and their gradients: one launch forward and one backward.

Between an output layer and `loss.backward()` stand some hundred numbers, on which autograd spends some thirty launches:
each takes no time and costs as much as a launch does. Here the forward kernel computes the loss together with its
derivatives by the statistics, the **slopes**, and the backward kernel multiplies these by the upstream gradient. The
formulas are those of `zloss.losses.spherical`, `z_normalize` and `reduce_loss`; all arithmetic is in float64, whatever
the dtype of the statistics.

The slopes of B rows with K targets are one vector of B (K + 2) numbers and the divisor of the mean:

    by the targets (B K)  |  by the mean (B)  |  by the scatter (B)  |  number of rows that count

A reduced loss is summed by a single program, so that nothing waits for a second launch and equal input has equal loss.
Nothing here waits for the device; like every kernel, these are compiled on their first call, which must lie before the
capture of a CUDA graph.

Shape letters: B rows, K targets per row, C classes.
"""

# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls, allow-incomplete-defs
import struct
from typing import Any

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor
from torch.autograd.function import once_differentiable

from zloss.kernels.tiles import pieces, power_of_2

# What a program holds at once: two targets per thread, which on an H100 take 76 registers, none spilled.
_TILE, _MAX_WARPS = 1024, 16
# By estimate, more than these take a single program longer than the launches that it saves.
MAX_TARGETS = 16384


def fits(target: Tensor) -> bool:
    """Whether the kernels take a batch of this shape."""
    rows, columns = _shape(target)
    return rows * columns > 0 and rows * power_of_2(columns) <= MAX_TARGETS


def reduced_loss(
    loss: str,
    target: Tensor,  # (B,) or (B, K)
    mean: Tensor,  # (B,)
    scatter: Tensor,  # (B,)
    valid: Tensor,  # as target, bool
    weight: Tensor | None,  # (B,), without gradient
    num_classes: int,
    reduction: str,
    **parameters: float,
) -> Tensor:  # () or (B,)
    """`reduce_loss(loss(stats, **parameters), stats.counted, reduction, weight)`, differentiable once in the moments.

    Args:
        loss: "z_loss" with parameters `a` and `b`, "squared_error", "taylor_softmax" or "spherical_softmax" with `eps`.
        target, mean, scatter, valid, num_classes: the fields of `SphericalStats`.
        weight: row weights.
        reduction: "mean", "sum" or "none".
        parameters: exact, and not compiled into the kernel, so that they may change from step to step.
    """
    options = (valid, weight, num_classes, reduction, loss, parameters)
    value: Tensor = _ReducedLoss.apply(target, mean, scatter, *options)
    return value


class _ReducedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        target: Tensor,
        mean: Tensor,
        scatter: Tensor,
        valid: Tensor,
        weight: Tensor | None,
        num_classes: int,
        reduction: str,
        loss: str,
        parameters: dict[str, float],
    ) -> Tensor:
        rows, columns = _shape(target)
        dtype = target.dtype if weight is None else torch.promote_types(target.dtype, weight.dtype)
        out = torch.empty(rows if reduction == "none" else (), dtype=dtype, device=target.device)
        slopes = torch.empty(rows * (columns + 2) + 1, dtype=torch.float64, device=target.device)
        tile_columns = power_of_2(columns)
        tile_rows = min(power_of_2(rows), max(_TILE // tile_columns, 1))
        programs = pieces(rows, tile_rows) if reduction == "none" else 1
        with torch.cuda.device_of(target):
            _losses_and_slopes[(programs,)](
                target.contiguous(),
                mean.contiguous(),
                scatter.contiguous(),
                valid.contiguous(),
                None if weight is None else weight.contiguous(),
                out,
                slopes,
                rows,
                num_classes,
                *(_bits(parameters.get(name, 0.0)) for name in ("a", "b", "eps")),
                K=columns,
                LOSS=loss,
                REDUCTION=reduction,
                NOISE=4 * torch.finfo(target.dtype).eps,
                TINY=torch.finfo(target.dtype).tiny,
                ROWS=tile_rows,
                COLUMNS=tile_columns,
                num_warps=_warps(tile_rows * tile_columns),
            )
        ctx.save_for_backward(slopes)
        ctx.shape, ctx.dtype, ctx.is_mean = target.shape, target.dtype, reduction == "mean"
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        (slopes,) = ctx.saved_tensors
        rows, num = ctx.shape[0], ctx.shape.numel()
        grads = torch.empty(num + 2 * rows, dtype=ctx.dtype, device=slopes.device)
        upstream = upstream.expand(rows)  # a scalar becomes a vector of stride 0
        size = min(power_of_2(len(grads)), _TILE // 4)
        with torch.cuda.device_of(slopes):
            _gradients[(pieces(len(grads), size),)](
                upstream,
                upstream.stride(0),
                slopes,
                grads,
                rows,
                K=num // rows,
                IS_MEAN=ctx.is_mean,
                SIZE=size,
                num_warps=_warps(size),
            )
        by_target, by_mean, by_scatter = grads.split([num, rows, rows])
        return by_target.reshape(ctx.shape), by_mean, by_scatter, *[None] * 6


def _shape(target: Tensor) -> tuple[int, int]:
    return target.shape[0], target.shape[1] if target.dim() == 2 else 1


def _bits(number: float) -> int:
    """Those of a float64, as an integer: Triton would take the number itself for a float32.

    It takes a small integer for one of 32 bits, which is another kernel. Zero is such, minus zero is not; nor is any
    other number but the very smallest.
    """
    bits: int = struct.unpack("<q", struct.pack("<d", number or -0.0))[0]
    return bits


def _warps(elements: int) -> int:
    return min(max(elements // 32, 1), _MAX_WARPS)


@triton.jit(do_not_specialize=["a_bits", "b_bits", "eps_bits"])
def _losses_and_slopes(
    target,
    mean,
    scatter,
    valid,
    weight,
    out,
    slopes,
    B,
    C,
    a_bits,
    b_bits,
    eps_bits,
    K: tl.constexpr,
    LOSS: tl.constexpr,
    REDUCTION: tl.constexpr,
    NOISE: tl.constexpr,
    TINY: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    total = tl.zeros((ROWS, 1), tl.float64)
    count = tl.zeros((ROWS, 1), tl.float64)
    k = tl.arange(0, COLUMNS)[None, :]
    for start in range(tl.program_id(0) * ROWS, B, tl.num_programs(0) * ROWS):
        row = start + tl.arange(0, ROWS)[:, None]
        inside = (row < B) & (k < K)
        v = tl.load(valid + row * K + k, mask=inside, other=0).to(tl.int1)
        t = tl.load(target + row * K + k, mask=inside, other=0.0).to(tl.float64)
        m = tl.load(mean + row, mask=row < B, other=0.0).to(tl.float64)
        s = tl.load(scatter + row, mask=row < B, other=0.0).to(tl.float64)
        if LOSS == "z_loss":
            value, by_target, by_mean, by_scatter = _z_loss(
                t, m, s, C, _number(a_bits), _number(b_bits), NOISE, TINY
            )
        elif LOSS == "squared_error":
            value, by_target, by_mean, by_scatter = _squared_error(t, m, s, C)
        elif LOSS == "taylor_softmax":
            value, by_target, by_mean, by_scatter = _taylor_softmax(t, m, s, C)
        elif LOSS == "spherical_softmax":
            value, by_target, by_mean, by_scatter = _spherical_softmax(
                t, m, s, C, _number(eps_bits)
            )
        targets = tl.sum(v.to(tl.float64), 1, keep_dims=True)
        counted = targets > 0
        scale = 1 / tl.maximum(targets, 1.0)
        if weight is not None:
            scale *= tl.load(weight + row, mask=row < B, other=0.0).to(tl.float64)
        # Not by arithmetic: the weight of an ignored row may be anything.
        scale = tl.where(counted, scale, 0.0)
        row_loss = scale * _sum_over_valid(value, v)
        tl.store(slopes + row * K + k, tl.where(v, scale * by_target, 0.0), mask=inside)
        tl.store(slopes + B * K + row, scale * _sum_over_valid(by_mean, v), mask=row < B)
        tl.store(slopes + B * (K + 1) + row, scale * _sum_over_valid(by_scatter, v), mask=row < B)
        if REDUCTION == "none":
            tl.store(out + row, row_loss, mask=row < B)
        total += row_loss
        count += counted.to(tl.float64)
    if REDUCTION == "sum":
        tl.store(out, tl.sum(total))
    elif REDUCTION == "mean":
        divisor = tl.maximum(tl.sum(count), 1.0)
        tl.store(out, tl.sum(total) / divisor)
        tl.store(slopes + B * (K + 2), divisor)


@triton.jit
def _number(bits):
    return bits.to(tl.int64).to(tl.float64, bitcast=True)


@triton.jit
def _gradients(
    upstream,
    upstream_stride,
    slopes,
    grads,
    B,
    K: tl.constexpr,
    IS_MEAN: tl.constexpr,
    SIZE: tl.constexpr,
):
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = i < B * (K + 2)
    row = tl.where(i < B * K, i // K, i % B)  # B K + r and B (K + 1) + r belong to row r
    slope = tl.load(slopes + i, mask=inside, other=0.0)
    grad = tl.load(upstream + row * upstream_stride, mask=inside, other=0.0).to(tl.float64)
    if IS_MEAN:
        grad = grad / tl.load(slopes + B * (K + 2))
    # What does not count has no gradient, even where the upstream one is not finite.
    tl.store(grads + i, tl.where(slope == 0, 0.0, grad * slope), mask=inside)


@triton.jit
def _sum_over_valid(x, valid):  # (ROWS, COLUMNS) or (ROWS, 1) -> (ROWS, 1)
    return tl.sum(tl.where(valid, x, 0.0), 1, keep_dims=True)


# ---- the losses: each gives the value, and its derivatives by target, mean and scatter ------------------------------


@triton.jit
def _z_loss(t, m, s, C, a, b, NOISE: tl.constexpr, TINY: tl.constexpr):
    variance = s / C
    noise = NOISE * m
    # No spread, as in `z_normalize`: what is left is noise. A mean that is NaN must not be hidden by that.
    noisy = (variance <= noise * noise) | (variance <= TINY)
    flat = noisy & (m == m)
    inverse_std = 1 / tl.sqrt(tl.where(noisy, 1.0, variance))
    z = tl.where(flat, 0.0, (t - m) * inverse_std)
    # softplus(a x) / a and its derivative, from an exponential that cannot overflow.
    x = b - z
    e = tl.exp(-tl.abs(a * x))
    rounded = 1 + e
    inverse = 1 / rounded
    log1p = tl.log(rounded) + (e - (rounded - 1)) * inverse  # gives back what rounding took
    by_z = tl.where(flat, 0.0, -tl.where(x > 0, 1.0, e) * inverse)
    by_target = by_z * inverse_std
    return (
        tl.maximum(x, 0.0) + log1p / a,
        by_target,
        -by_target,
        by_z * z / (-2 * tl.where(noisy, 1.0, s)),
    )


@triton.jit
def _squared_error(t, m, s, C):
    value = 0.5 * (s + C * m * m - 2 * t + 1)
    return value, tl.zeros_like(t) - 1, C * m, tl.zeros_like(s) + 0.5


@triton.jit
def _taylor_softmax(t, m, s, C):
    own = (t + 1) * (t + 1) + 1
    total = s + C * ((m + 1) * (m + 1) + 1)
    return tl.log(total) - tl.log(own), -2 * (t + 1) / own, 2 * (m + 1) * C / total, 1 / total


@triton.jit
def _spherical_softmax(t, m, s, C, eps):
    own = t * t + eps
    total = s + C * (m * m + eps)
    return tl.log(total) - tl.log(own), -2 * t / own, 2 * m * C / total, 1 / total
