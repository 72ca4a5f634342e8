"""Kernels of `zloss.heads.blocks.block_linear`: scores, and the gradients of h and of the rows that took part.

Few examples share a block, so there is little to multiply and much to move: 4 bytes of W for every two operations on
them. The kernels are sums of products, exact in the dtype that they accumulate in (float32, or float64 where that is
given), with tiles large enough to keep the memory busy. W is read once for the scores and once for the gradient of h;
examples of one block find its rows in the caches.

Nothing here waits for the device or depends on values that only it knows. A host that launches small operations is
slower than the device that runs them: all that the kernels need to know about a batch is computed by one launch and
kept in one tensor, the **plan**. Its first 6 N entries describe the examples, sorted by block:

    order   which example stands here          row    the first row of its block in W
    first   where the examples of its          size   the rows of its block
    stop        block begin and end            place  the first row of its block among those of the gradient

(`place` for the first example of a block only), and two more say that the gradient has all rows of W before row
`prefix`, whether they take part or not, and that `total` rows take part.

Shape letters: N examples, M blocks, S rows of the largest block, H width, C rows of W, R rows of the gradient.
"""

# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls, allow-incomplete-defs
from dataclasses import dataclass

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from zloss.kernels.tiles import pieces, power_of_2


@dataclass(frozen=True)
class Tile:
    """What one program holds in registers: `elements` of W, at most `columns` wide."""

    elements: int
    columns: int
    warps: int

    def shape(self, width: int) -> tuple[int, int]:
        columns = min(self.columns, power_of_2(width))
        return self.elements // columns, columns


# Measured on an H200 at C = 793,471 in blocks of 891, H = 512, N = 200.
SCORES = Tile(elements=2048, columns=512, warps=1)
GRAD_H = Tile(elements=4096, columns=128, warps=4)
GRAD_ROWS = Tile(elements=2048, columns=512, warps=1)

# Examples of one block that share a program of the scores: its tile of W stays in the L1 cache for all of them.
SCORES_AT_ONCE = 16
# Rows that one program fills with zeros.
FILL_ROWS = 32

# Comparing all pairs of examples is faster than sorting them, up to here.
PLAN_BY_PAIRS = 1024


def plan(
    block: Tensor,  # (N,)
    offsets: Tensor,  # (M + 1,)
    num_rows: int,
) -> Tensor:  # (6 N + 2,)
    """Sort the examples by block and give every block a place in a gradient of `num_rows` rows, at least its `total`.

    With `num_rows` 0 the gradient has the `total` rows that take part and no others.
    """
    num = len(block)
    if not 0 < num <= PLAN_BY_PAIRS:
        return _plan_by_sorting(block, offsets, num_rows)
    out = torch.empty(6 * num + 2, dtype=torch.long, device=block.device)
    with torch.cuda.device_of(block):
        _plan[(1,)](block, offsets, out, num, num_rows, NUM=power_of_2(num), UNROLL=8, num_warps=8)
    return out


def scores(
    h: Tensor,  # (N, H)
    weight: Tensor,  # (C, H)
    bias: Tensor | None,  # (C,)
    plan: Tensor,
    largest: int,
) -> Tensor:  # (N, S)
    """`weight[row + s] . h + bias[row + s]` for s < size, and -inf from there to S."""
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
    plan: Tensor,
    dtype: torch.dtype,
) -> Tensor:  # (N, H)
    """`sum_s grad[s] weight[row + s]` over the rows of an example's block."""
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
                ACC=_accumulator(torch.promote_types(grad.dtype, weight.dtype)),
                ROWS=rows,
                COLUMNS=columns,
                num_warps=GRAD_H.warps,
            )
    return out


def grad_rows(
    grad: Tensor,  # (N, S)
    h: Tensor,  # (N, H)
    plan: Tensor,
    num_rows: int,
    weight_dtype: torch.dtype | None,  # None: not wanted
    bias_dtype: torch.dtype | None,  # None: not wanted
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # (R,), (R, H), (R,)
    """The rows of the gradient and, over the examples of a row's block, the sums of `grad[s] h` and of `grad[s]`."""
    (num, largest), width = grad.shape, h.shape[1] if weight_dtype else 1
    row = torch.empty(num_rows, dtype=torch.long, device=h.device)
    values = (
        torch.empty(num_rows, width, dtype=weight_dtype, device=h.device) if weight_dtype else None
    )
    sums = torch.empty(num_rows, dtype=bias_dtype, device=h.device) if bias_dtype else None
    rows, columns = GRAD_ROWS.shape(width)
    if num_rows:
        own = num * pieces(largest, rows) * pieces(width, columns)
        with torch.cuda.device_of(h):
            _grad_rows[(pieces(num_rows, FILL_ROWS) + own,)](
                grad.contiguous(),
                h.contiguous(),
                plan,
                row,
                values,
                sums,
                num,
                largest,
                num_rows,
                H=width,
                ACC=_accumulator(torch.promote_types(grad.dtype, h.dtype)),
                STEPS=num.bit_length(),
                FILL_ROWS=FILL_ROWS,
                FILL_COLUMNS=max(1, GRAD_ROWS.elements // FILL_ROWS),
                ROWS=rows,
                COLUMNS=columns,
                num_warps=GRAD_ROWS.warps,
            )
    return row, values, sums


def _stride(weight: Tensor) -> int:
    if weight.stride(1) != 1:
        raise ValueError(f"the rows of weight must be contiguous, got strides {weight.stride()}")
    return weight.stride(0)


def _accumulator(dtype: torch.dtype) -> tl.dtype:
    return tl.float64 if dtype == torch.float64 else tl.float32


def _plan_by_sorting(block: Tensor, offsets: Tensor, num_rows: int) -> Tensor:
    """What `_plan` computes, for any number of examples."""
    block, order = block.sort(stable=True)
    first, stop = torch.searchsorted(block, block), torch.searchsorted(block, block, right=True)
    row, size = offsets[block], offsets[block + 1] - offsets[block]
    counted = torch.where(first == torch.arange(len(block), device=block.device), size, 0)
    total = counted.sum()
    spare = (num_rows - total).clamp_min(0)
    taken = counted.cumsum(0) - counted
    absent = row - taken
    prefix = spare + torch.where(absent < spare, counted, 0).sum()
    place = taken + torch.minimum(absent, spare)
    return torch.cat([order, first, stop, row, size, place, prefix[None], total[None]])


@triton.jit
def _plan(block, offsets, out, N, num_rows, NUM: tl.constexpr, UNROLL: tl.constexpr):
    i = tl.arange(0, NUM)
    b = tl.load(block + i, mask=i < N, other=0)
    first = tl.zeros((NUM,), tl.int32)
    count = tl.zeros((NUM,), tl.int32)
    earlier = tl.zeros((NUM,), tl.int32)
    for start in range(0, N, UNROLL):
        for step in tl.static_range(UNROLL):
            j = start + step
            b_j = tl.load(block + j, mask=j < N, other=2**62)
            first += (b_j < b).to(tl.int32)
            count += (b_j == b).to(tl.int32)
            earlier += ((b_j == b) & (j < i)).to(tl.int32)
    row = tl.load(offsets + b)
    here = out + first + earlier
    tl.store(here, i.to(tl.int64), mask=i < N)
    tl.store(here + N, first.to(tl.int64), mask=i < N)
    tl.store(here + 2 * N, (first + count).to(tl.int64), mask=i < N)
    tl.store(here + 3 * N, row, mask=i < N)
    tl.store(here + 4 * N, tl.load(offsets + b + 1) - row, mask=i < N)
    # What follows reads in sorted order what other threads wrote.
    tl.debug_barrier()
    row = tl.load(out + 3 * N + i, mask=i < N, other=0)
    is_first = tl.load(out + N + i, mask=i < N, other=-1) == i
    counted = tl.load(out + 4 * N + i, mask=is_first, other=0)
    total = tl.sum(counted, 0)
    # Rows of absent blocks that the gradient has room for: the first ones in W.
    spare = tl.maximum(num_rows - total, 0)
    taken = tl.cumsum(counted, 0) - counted
    absent = row - taken
    tl.store(out + 5 * N + i, taken + tl.minimum(absent, spare), mask=i < N)
    tl.store(out + 6 * N, spare + tl.sum(tl.where(absent < spare, counted, 0), 0))
    tl.store(out + 6 * N + 1, total)


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
        _store(out + example * S + s, tl.where(inside, total, float("-inf")), mask=s < S)


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
    _store(out + example * H + c, tl.sum(total, 0), mask=c < H)


@triton.jit
def _grad_rows(
    grad,
    h,
    plan,
    row,
    values,
    sums,
    N,
    S,
    R,
    H: tl.constexpr,
    ACC: tl.constexpr,
    STEPS: tl.constexpr,
    FILL_ROWS: tl.constexpr,
    FILL_COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    fills = tl.cdiv(R, FILL_ROWS)
    if tl.program_id(0) < fills:
        _fill_rows(plan, row, values, sums, tl.program_id(0), N, H, STEPS, FILL_ROWS, FILL_COLUMNS)
    else:
        _rows_of_block(
            grad, h, plan, row, values, sums, tl.program_id(0) - fills, N, S, H, ACC, ROWS, COLUMNS
        )


@triton.jit
def _rows_of_block(
    grad,
    h,
    plan,
    row,
    values,
    sums,
    tile,
    N,
    S,
    H: tl.constexpr,
    ACC: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    column_tiles = tl.cdiv(H, COLUMNS)
    row_tiles = tl.cdiv(S, ROWS)
    slot = tile // (column_tiles * row_tiles)
    s = tile // column_tiles % row_tiles * ROWS + tl.arange(0, ROWS)
    c = tile % column_tiles * COLUMNS + tl.arange(0, COLUMNS)
    # The first example of a block does it for all of them.
    is_first = tl.load(plan + N + slot) == slot
    stop = tl.where(is_first, tl.load(plan + 2 * N + slot), slot).to(tl.int32)
    inside = s < tl.where(is_first, tl.load(plan + 4 * N + slot), 0)
    total = tl.zeros((ROWS, COLUMNS), ACC)
    total_grad = tl.zeros((ROWS,), ACC)
    for i in range(slot, stop):
        example = tl.load(plan + i)
        g = tl.load(grad + example * S + s, mask=inside, other=0.0).to(ACC)
        total_grad += g
        if values is not None:
            x = tl.load(h + example * H + c, mask=c < H, other=0.0).to(ACC)
            total += g[:, None] * x[None, :]
    r = tl.load(plan + 5 * N + slot) + s
    if values is not None:
        _store(values + r[:, None] * H + c[None, :], total, mask=inside[:, None] & (c < H)[None, :])
    if tile % column_tiles == 0:
        tl.store(row + r, tl.load(plan + 3 * N + slot) + s, mask=inside)
        if sums is not None:
            _store(sums + r, total_grad, mask=inside)


@triton.jit
def _fill_rows(
    plan,
    row,
    values,
    sums,
    tile,
    N,
    H: tl.constexpr,
    STEPS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    r = tile.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    wanted = r < tl.load(plan + 6 * N)
    if tl.max(wanted.to(tl.int32), 0) > 0:
        # A row takes part if it lies in the last of the blocks that begin no later: how many these are, bit by bit.
        begun = tl.zeros((ROWS,), tl.int32)
        for step in tl.static_range(STEPS):
            more = begun + (1 << (STEPS - 1 - step))
            begin = tl.load(plan + 3 * N + more - 1, mask=wanted & (more <= N), other=2**62)
            begun = tl.where(begin <= r, more, begun)
        last = plan + 3 * N + begun - 1
        end = tl.load(last, mask=begun > 0, other=0) + tl.load(last + N, mask=begun > 0, other=0)
        absent = wanted & (r >= end)
        tl.store(row + r, r, mask=absent)
        if sums is not None:
            _store(sums + r, tl.zeros((ROWS,), tl.float32), mask=absent)
        if values is not None:
            for start in range(0, H, COLUMNS):
                c = start + tl.arange(0, COLUMNS)
                _store(
                    values + r[:, None] * H + c[None, :],
                    tl.zeros((ROWS, COLUMNS), tl.float32),
                    mask=absent[:, None] & (c < H)[None, :],
                )
