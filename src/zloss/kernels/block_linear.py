"""Kernels of `zloss.heads.block_linear`: the scores of each example for the rows of its block, and the gradient of h.

For a block of rows `W_block` and the examples h in it they compute

    scores = h @ W_block.T + bias_block
    grad_h = grad @ W_block

Few examples share a block. So there is little to multiply and much to move: 4 bytes of W for every two operations. The
kernels are sums of products, exact in the dtype of their accumulator: float64 for float64 input, else float32. Their
tiles are large enough to keep the memory busy. W is read once for the scores and once for the gradient of h, and
examples of one block find its rows in the caches.

No kernel waits for the device or depends on values that only the device knows: see `zloss.kernels.block_plan`. The
gradients of the weights are in `zloss.kernels.block_row_gradient`.

Shape letters: N examples, S rows of the largest block, H width, C rows of W.
"""

# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls, allow-incomplete-defs
import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from zloss.kernels.tiles import Tile, accumulator, pieces, store_sums

# Measured on an H200 at C = 793,471 in blocks of 891, H = 512, N = 200.
SCORES = Tile(elements=2048, columns=512, warps=1)
GRAD_H = Tile(elements=4096, columns=128, warps=4)

# Examples of one block that share a program of the scores: its tile of W stays in the L1 cache for all of them.
SCORES_AT_ONCE = 16


def scores(
    h: Tensor,  # (N, H)
    weight: Tensor,  # (C, H)
    bias: Tensor | None,  # (C,)
    plan: Tensor,
    largest: int,
) -> Tensor:  # (N, S)
    """Return `weight[row + s] . h + bias[row + s]` for s < size, and -inf for the other s < S."""
    (num, width), dtype = h.shape, torch.promote_types(h.dtype, weight.dtype)
    out = torch.empty(num, largest, dtype=dtype, device=h.device)
    rows, columns = SCORES.shape(width)
    if out.numel():
        with torch.cuda.device_of(h):
            _scores[(num * pieces(largest, rows),)](
                h.contiguous(),
                weight,
                bias,
                plan,
                out,
                num,
                largest,
                _stride(weight),
                H=width,
                ACC=accumulator(dtype),
                AT_ONCE=SCORES_AT_ONCE,
                ROWS=rows,
                COLUMNS=columns,
                num_warps=SCORES.warps,
            )
    return out


def grad_h(
    grad: Tensor,  # (N, S)
    weight: Tensor,  # (C, H)
    plan: Tensor,
    dtype: torch.dtype,
) -> Tensor:  # (N, H)
    """Return `sum_s grad[s] weight[row + s]` over the rows of the block of each example."""
    (num, largest), width = grad.shape, weight.shape[1]
    out = torch.empty(num, width, dtype=dtype, device=grad.device)
    rows, columns = GRAD_H.shape(width)
    if out.numel():
        with torch.cuda.device_of(grad):
            _grad_h[(num * pieces(width, columns),)](
                grad.contiguous(),
                weight,
                plan,
                out,
                num,
                largest,
                _stride(weight),
                H=width,
                ACC=accumulator(torch.promote_types(grad.dtype, weight.dtype)),
                ROWS=rows,
                COLUMNS=columns,
                num_warps=GRAD_H.warps,
            )
    return out


def _stride(weight: Tensor) -> int:
    if weight.stride(1) != 1:
        raise ValueError(f"the rows of weight must be contiguous, got strides {weight.stride()}")
    return weight.stride(0)


@triton.jit
def _scores(
    h,
    weight,
    bias,
    plan,
    out,
    N,
    S,
    weight_stride,
    H: tl.constexpr,
    ACC: tl.constexpr,
    AT_ONCE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    tiles = tl.cdiv(S, ROWS)
    slot = tl.program_id(0) // tiles
    if (slot - tl.load(plan + N + slot)) % AT_ONCE != 0:
        return
    stop = tl.minimum(slot + AT_ONCE, tl.load(plan + 2 * N + slot)).to(tl.int32)
    s = (tl.program_id(0) % tiles) * ROWS + tl.arange(0, ROWS)
    row = tl.load(plan + 3 * N + slot) + s
    inside = s < tl.load(plan + 4 * N + slot)
    for i in range(slot, stop):
        example = tl.load(plan + i)
        total = tl.zeros((ROWS,), ACC)
        for start in range(0, H, COLUMNS):
            c = start + tl.arange(0, COLUMNS)
            x = tl.load(h + example * H + c, mask=c < H, other=0.0).to(ACC)
            w = tl.load(
                weight + row[:, None] * weight_stride + c[None, :],
                mask=inside[:, None] & (c < H)[None, :],
                other=0.0,
            ).to(ACC)
            total += tl.sum(w * x[None, :], 1)
        if bias is not None:
            total += tl.load(bias + row, mask=inside, other=0.0).to(ACC)
        store_sums(out + example * S + s, tl.where(inside, total, float("-inf")), mask=s < S)


@triton.jit
def _grad_h(
    grad,
    weight,
    plan,
    out,
    N,
    S,
    weight_stride,
    H: tl.constexpr,
    ACC: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    # Examples of one block run side by side and find its rows in the L2 cache.
    tiles = tl.cdiv(H, COLUMNS)
    slot = tl.program_id(0) // tiles
    example = tl.load(plan + slot)
    first_row = tl.load(plan + 3 * N + slot)
    size = tl.load(plan + 4 * N + slot).to(tl.int32)
    c = (tl.program_id(0) % tiles) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), ACC)
    for start in range(0, size, ROWS):
        s = start + tl.arange(0, ROWS)
        g = tl.load(grad + example * S + s, mask=s < size, other=0.0).to(ACC)
        w = tl.load(
            weight + (first_row + s)[:, None] * weight_stride + c[None, :],
            mask=(s < size)[:, None] & (c < H)[None, :],
            other=0.0,
        ).to(ACC)
        total += g[:, None] * w
    store_sums(out + example * H + c, tl.sum(total, 0), mask=c < H)
