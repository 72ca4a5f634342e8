"""The reduced losses of `zloss.losses.spherical` and their gradients: one launch forward and one launch backward.

A spherical loss depends on some hundred numbers. Autograd needs some thirty launches for it, and each one costs far
more than its arithmetic. Here the forward kernel computes the loss and its derivatives by the statistics, which are the
**slopes**. The backward kernel multiplies the slopes by the upstream gradient. The formulas come from
`zloss.losses.functions`, `z_normalize` and `reduce_loss`. All arithmetic is in float64.

The slopes of B rows with K targets are one vector of B (K + 2) numbers, followed by the divisor of the mean:

    by the targets (B K)  |  by the mean (B)  |  by the scatter (B)  |  number of rows that count

A single program sums a reduced loss. So there is no second launch, and equal input gives an equal loss. No launch waits
for the device. Like every kernel, these are compiled on their first call, which must come before the capture of a CUDA
graph.

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

from zloss.kernels.spherical_formulas import (
    spherical_softmax,
    squared_error,
    taylor_softmax,
    z_loss,
)
from zloss.kernels.tiles import pieces, power_of_2

# The targets of a program, and its warps: two targets per thread take 76 registers on an H100, and none is spilled.
_TILE, _MAX_WARPS = 1024, 16
# By estimate, more targets take a single program longer than the launches that it saves.
MAX_TARGETS = 16384


def fits(target: Tensor) -> bool:
    """Return whether the kernels take a batch of this shape."""
    rows, columns = _shape(target)
    return rows * columns > 0 and rows * power_of_2(columns) <= MAX_TARGETS


def reduced_loss(
    loss: str,
    target: Tensor,  # (B,) or (B, K)
    mean: Tensor,  # (B,)
    scatter: Tensor,  # (B,)
    valid: Tensor,  # as target, bool
    weight: Tensor | None,  # (B,), without gradient
    target_weight: Tensor | None,  # as target, without gradient
    num_classes: int,
    reduction: str,
    **parameters: float,
) -> Tensor:  # () or (B,)
    """Return `reduce_loss(loss(stats, **parameters), stats.counted, reduction, weight)`, with first derivatives only.

    Args:
        loss: "z_loss" with parameters `a` and `b`, "squared_error", "taylor_softmax" or "spherical_softmax" with `eps`.
        target, mean, scatter, valid, num_classes: the fields of `SphericalStats`.
        weight: row weights, or None.
        target_weight: weights of the targets, which multiply the loss of each before the average; or None.
        reduction: "mean", "sum" or "none".
        parameters: the hyper-parameters of the loss, as exact float64 numbers. They are not compiled into the kernel,
            so they may change from step to step.
    """
    options = (valid, weight, target_weight, num_classes, reduction, loss, parameters)
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
        target_weight: Tensor | None,
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
                None if target_weight is None else target_weight.contiguous(),
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
        upstream = upstream.expand(rows)  # makes a scalar a vector of stride 0
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
        return by_target.reshape(ctx.shape), by_mean, by_scatter, *[None] * 7


def _shape(target: Tensor) -> tuple[int, int]:
    return target.shape[0], target.shape[1] if target.dim() == 2 else 1


def _bits(number: float) -> int:
    """Return the bits of a float64 number as an integer. Triton would round the number itself to float32.

    Triton passes a small integer in 32 bits, and would compile another kernel for it. The bits of 0.0 are a small
    integer, but the bits of -0.0 are not. Apart from 0.0, only the very smallest numbers have such bits.
    """
    bits: int = struct.unpack("<q", struct.pack("<d", number or -0.0))[0]
    return bits


def _warps(elements: int) -> int:
    return min(max(elements // 32, 1), _MAX_WARPS)


@triton.jit(do_not_specialize=["a_bits", "b_bits", "eps_bits"])
def _losses_and_slopes(
    target, mean, scatter, valid, weight, target_weight, out, slopes, B, C, a_bits, b_bits, eps_bits,
    K: tl.constexpr, LOSS: tl.constexpr, REDUCTION: tl.constexpr,
    NOISE: tl.constexpr, TINY: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
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
            a, b = _number(a_bits), _number(b_bits)
            value, by_target, by_mean, by_scatter = z_loss(t, m, s, C, a, b, NOISE, TINY)
        elif LOSS == "squared_error":
            value, by_target, by_mean, by_scatter = squared_error(t, m, s, C)
        elif LOSS == "taylor_softmax":
            value, by_target, by_mean, by_scatter = taylor_softmax(t, m, s, C)
        elif LOSS == "spherical_softmax":
            eps = _number(eps_bits)
            value, by_target, by_mean, by_scatter = spherical_softmax(t, m, s, C, eps)
        targets = tl.sum(v.to(tl.float64), 1, keep_dims=True)
        counted = targets > 0
        scale = 1 / tl.maximum(targets, 1.0)
        if weight is not None:
            scale *= tl.load(weight + row, mask=row < B, other=0.0).to(tl.float64)
        # A product would not do: the weight of an ignored row may be NaN.
        scale = tl.where(counted, scale, 0.0)
        if target_weight is not None:
            own = tl.load(target_weight + row * K + k, mask=inside, other=0.0).to(tl.float64)
            value, by_target = own * value, own * by_target
            by_mean, by_scatter = own * by_mean, own * by_scatter
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
    # Ignored targets have the gradient 0, even if the upstream gradient is not finite.
    tl.store(grads + i, tl.where(slope == 0, 0.0, grad * slope), mask=inside)


@triton.jit
def _sum_over_valid(x, valid):  # (ROWS, COLUMNS) or (ROWS, 1) -> (ROWS, 1)
    return tl.sum(tl.where(valid, x, 0.0), 1, keep_dims=True)
