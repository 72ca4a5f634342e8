"""Kernels of `zloss.heads.blocks.block_linear`: scores, and the gradients of h and of the rows that took part.

Few examples share a block, so there is little to multiply and much to move: 4 bytes of W for every two operations on
them. The kernels are sums of products, exact in the dtype that they accumulate in (float32, or float64 where that is
given), with tiles large enough to keep the memory busy. W is read once for the scores and once for the gradient of h;
examples of one block find its rows in the caches.

Examples come sorted by block: `order` (N,) says which example stands where, `block` (N,) its block, `starts` (M + 1,)
where the examples of a block begin. Nothing here waits for the device or depends on values that only it knows.

Shape letters: N examples, M blocks, S rows of the largest block, H width, C rows of W, R rows of the gradient.
"""

# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls, allow-incomplete-defs
from dataclasses import dataclass

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor


@dataclass(frozen=True)
class Tile:
    """What one program holds in registers: `elements` of W, at most `columns` wide."""

    elements: int
    columns: int
    warps: int

    def shape(self, width: int) -> tuple[int, int]:
        columns = min(self.columns, triton.next_power_of_2(width))
        return self.elements // columns, columns


# Measured on an H200 at C = 793,471 in blocks of 891, H = 512, N = 200.
SCORES = Tile(elements=8192, columns=512, warps=4)
GRAD_H = Tile(elements=4096, columns=128, warps=4)
GRAD_ROWS = Tile(elements=8192, columns=512, warps=4)

# Examples of one block that share a program of the scores: its tile of W stays in the L1 cache for all of them.
SCORES_AT_ONCE = 16
GRAD_H_AT_ONCE = 8


def scores(
    h: Tensor,  # (N, H)
    weight: Tensor,  # (C, H)
    bias: Tensor | None,  # (C,)
    order: Tensor,  # (N,)
    block: Tensor,  # (N,)
    starts: Tensor,  # (M + 1,)
    offsets: Tensor,  # (M + 1,)
    largest: int,
) -> Tensor:  # (N, S)
    """`weight[offsets[b] + s] . h + bias[offsets[b] + s]`, and -inf beyond the end of block b."""
    (num, width), dtype = h.shape, torch.promote_types(h.dtype, weight.dtype)
    out = torch.empty(num, largest, dtype=dtype, device=h.device)
    rows, columns = SCORES.shape(width)
    tiles = triton.cdiv(largest, rows)
    if out.numel():
        with torch.cuda.device_of(h):
            _scores[(num * tiles,)](
                h,
                weight,
                bias,
                order,
                block,
                starts,
                offsets,
                out,
                largest,
                tiles,
                *h.stride(),
                *weight.stride(),
                H=width,
                ACC=_accumulator(dtype),
                AT_ONCE=SCORES_AT_ONCE,
                ROWS=rows,
                COLUMNS=columns,
                num_warps=SCORES.warps,
            )
    return out


def grad_h(
    grad: Tensor,  # (N, S)
    weight: Tensor,  # (C, H)
    dtype: torch.dtype,
    order: Tensor,  # (N,)
    block: Tensor,  # (N,)
    starts: Tensor,  # (M + 1,)
    offsets: Tensor,  # (M + 1,)
) -> Tensor:  # (N, H)
    """`sum_s grad[s] weight[offsets[b] + s]` over the rows of block b."""
    num, width = len(grad), weight.shape[1]
    out = torch.empty(num, width, dtype=dtype, device=grad.device)
    at_once = min(GRAD_H_AT_ONCE, triton.next_power_of_2(triton.cdiv(num, len(starts) - 1)))
    rows, columns = GRAD_H.shape(width)
    tiles = triton.cdiv(width, columns)
    if out.numel():
        with torch.cuda.device_of(grad):
            _grad_h[(num * tiles,)](
                grad,
                weight,
                order,
                block,
                starts,
                offsets,
                out,
                tiles,
                *grad.stride(),
                *weight.stride(),
                H=width,
                ACC=_accumulator(torch.promote_types(grad.dtype, weight.dtype)),
                AT_ONCE=at_once,
                ROWS=max(1, rows // at_once),
                COLUMNS=columns,
                num_warps=GRAD_H.warps,
            )
    return out


def grad_rows(
    grad: Tensor,  # (N, S)
    h: Tensor,  # (N, H)
    row: Tensor,  # (R,)
    row_block: Tensor,  # (R,) the block of each row
    weight_dtype: torch.dtype | None,  # None: not wanted
    bias_dtype: torch.dtype | None,  # None: not wanted
    order: Tensor,  # (N,)
    starts: Tensor,  # (M + 1,)
    offsets: Tensor,  # (M + 1,)
) -> tuple[Tensor | None, Tensor | None]:  # (R, H), (R,)
    """`sum_i grad[i, s] h[i]` and `sum_i grad[i, s]` over the examples of a row's block; 0 where it has none."""
    num_rows, width = len(row), h.shape[1] if weight_dtype else 1
    values = torch.empty(num_rows, width, dtype=weight_dtype, device=h.device) if weight_dtype else None
    sums = torch.empty(num_rows, dtype=bias_dtype, device=h.device) if bias_dtype else None
    rows, columns = GRAD_ROWS.shape(width)
    tiles = triton.cdiv(width, columns)
    if num_rows * tiles:
        with torch.cuda.device_of(h):
            _grad_rows[(triton.cdiv(num_rows, rows) * tiles,)](
                grad,
                h,
                row,
                row_block,
                order,
                starts,
                offsets,
                values,
                sums,
                num_rows,
                tiles,
                *grad.stride(),
                *h.stride(),
                H=width,
                ACC=_accumulator(torch.promote_types(grad.dtype, h.dtype)),
                ROWS=rows,
                COLUMNS=columns,
                num_warps=GRAD_ROWS.warps,
            )
    return values, sums


def _accumulator(dtype: torch.dtype) -> tl.dtype:
    return tl.float64 if dtype == torch.float64 else tl.float32


@triton.jit
def _store(pointer, x, mask):
    # From float64 there is no direct way to bfloat16.
    if pointer.dtype.element_ty != tl.float64:
        x = x.to(tl.float32)
    tl.store(pointer, x, mask=mask)


@triton.jit
def _scores(
    h,
    weight,
    bias,
    order,
    block,
    starts,
    offsets,
    out,
    S,
    tiles,
    h_stride,
    h_step,
    weight_stride,
    weight_step,
    H: tl.constexpr,
    ACC: tl.constexpr,
    AT_ONCE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    slot = tl.program_id(0) // tiles
    b = tl.load(block + slot)
    if (slot - tl.load(starts + b)) % AT_ONCE != 0:
        return
    stop = tl.minimum(slot + AT_ONCE, tl.load(starts + b + 1))
    first_row = tl.load(offsets + b)
    s = (tl.program_id(0) % tiles) * ROWS + tl.arange(0, ROWS)
    inside = s < tl.load(offsets + b + 1) - first_row
    row = first_row + s
    for i in range(slot, stop):
        example = tl.load(order + i)
        total = tl.zeros((ROWS,), ACC)
        for start in range(0, H, COLUMNS):
            c = start + tl.arange(0, COLUMNS)
            x = tl.load(h + example * h_stride + c * h_step, mask=c < H, other=0.0).to(ACC)
            w = tl.load(
                weight + row[:, None] * weight_stride + c[None, :] * weight_step,
                mask=inside[:, None] & (c < H)[None, :],
                other=0.0,
            ).to(ACC)
            total += tl.sum(w * x[None, :], 1)
        if bias is not None:
            total += tl.load(bias + row, mask=inside, other=0.0).to(ACC)
        _store(out + example * S + s, tl.where(inside, total, float("-inf")), mask=s < S)


@triton.jit
def _grad_h(
    grad,
    weight,
    order,
    block,
    starts,
    offsets,
    out,
    tiles,
    grad_stride,
    grad_step,
    weight_stride,
    weight_step,
    H: tl.constexpr,
    ACC: tl.constexpr,
    AT_ONCE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    slot = tl.program_id(0) // tiles
    b = tl.load(block + slot)
    if (slot - tl.load(starts + b)) % AT_ONCE != 0:
        return
    i = slot + tl.arange(0, AT_ONCE)
    taken = i < tl.load(starts + b + 1)
    example = tl.load(order + i, mask=taken, other=0)
    c = (tl.program_id(0) % tiles) * COLUMNS + tl.arange(0, COLUMNS)
    first_row = tl.load(offsets + b)
    size = tl.load(offsets + b + 1) - first_row
    total = tl.zeros((AT_ONCE, ROWS, COLUMNS), ACC)
    for start in range(0, size, ROWS):
        s = start + tl.arange(0, ROWS)
        inside = s < size
        g = tl.load(
            grad + example[:, None] * grad_stride + s[None, :] * grad_step,
            mask=taken[:, None] & inside[None, :],
            other=0.0,
        ).to(ACC)
        w = tl.load(
            weight + (first_row + s)[:, None] * weight_stride + c[None, :] * weight_step,
            mask=inside[:, None] & (c < H)[None, :],
            other=0.0,
        ).to(ACC)
        total += g[:, :, None] * w[None, :, :]
    _store(
        out + example[:, None] * H + c[None, :],
        tl.sum(total, 1),
        mask=taken[:, None] & (c < H)[None, :],
    )


@triton.jit
def _grad_rows(
    grad,
    h,
    row,
    row_block,
    order,
    starts,
    offsets,
    values,
    sums,
    R,
    tiles,
    grad_stride,
    grad_step,
    h_stride,
    h_step,
    H: tl.constexpr,
    ACC: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    # A tile may reach over the end of a block: every row looks up its own examples.
    r = (tl.program_id(0) // tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    b = tl.load(row_block + r, mask=r < R, other=0)
    s = tl.load(row + r, mask=r < R, other=0) - tl.load(offsets + b)
    first = tl.load(starts + b)
    count = tl.where(r < R, tl.load(starts + b + 1) - first, 0)
    tile = tl.program_id(0) % tiles
    c = tile * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), ACC)
    total_grad = tl.zeros((ROWS,), ACC)
    for i in range(tl.max(count, 0)):
        taken = i < count
        example = tl.load(order + first + i, mask=taken, other=0)
        g = tl.load(grad + example * grad_stride + s * grad_step, mask=taken, other=0.0).to(ACC)
        total_grad += g
        if values is not None:
            x = tl.load(
                h + example[:, None] * h_stride + c[None, :] * h_step,
                mask=taken[:, None] & (c < H)[None, :],
                other=0.0,
            ).to(ACC)
            total += g[:, None] * x
    if values is not None:
        _store(values + r[:, None] * H + c[None, :], total, mask=(r < R)[:, None] & (c < H)[None, :])
    if sums is not None and tile == 0:
        _store(sums + r, total_grad, mask=r < R)
