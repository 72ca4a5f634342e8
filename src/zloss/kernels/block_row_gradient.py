"""Kernel of `zloss.heads.block_linear`: the rows of the gradients of the weights and of the bias.

For a block with the examples h and their gradients `grad`, the rows of the two gradients are

    grad_weight = grad.T @ h
    grad_bias = grad.sum(0)

One launch writes the rows of all blocks with an example. If the gradient has room for more rows, the same launch fills
rows of other blocks with zeros. It reads the plan of the batch: see `zloss.kernels.block_plan`.

Shape letters: N examples, S rows of the largest block, H width, R rows of the gradient.
"""

# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls, allow-incomplete-defs
import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from zloss.kernels.tiles import Tile, accumulator, pieces, store_sums

# Measured on an H200 at C = 793,471 in blocks of 891, H = 512, N = 200.
GRAD_ROWS = Tile(elements=2048, columns=512, warps=1)
# Rows that one program fills with zeros.
FILL_ROWS = 32


def grad_rows(
    grad: Tensor,  # (N, S)
    h: Tensor,  # (N, H)
    plan: Tensor,
    num_rows: int,
    weight_dtype: torch.dtype | None,  # None: no gradient of the weights
    bias_dtype: torch.dtype | None,  # None: no gradient of the bias
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # (R,), (R, H), (R,)
    """Return the numbers of the rows in W, and the rows of the gradients of the weights and of the bias.

    A row is the sum of `grad[s] h`, or of `grad[s]` for the bias, over the examples of its block. A gradient without a
    dtype is None.
    """
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
                ACC=accumulator(torch.promote_types(grad.dtype, h.dtype)),
                STEPS=num.bit_length(),
                FILL_ROWS=FILL_ROWS,
                FILL_COLUMNS=max(1, GRAD_ROWS.elements // FILL_ROWS),
                ROWS=rows,
                COLUMNS=columns,
                num_warps=GRAD_ROWS.warps,
            )
    return row, values, sums


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
    # The program of the first example of a block adds up all of its examples.
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
        store_sums(
            values + r[:, None] * H + c[None, :], total, mask=inside[:, None] & (c < H)[None, :]
        )
    if tile % column_tiles == 0:
        tl.store(row + r, tl.load(plan + 3 * N + slot) + s, mask=inside)
        if sums is not None:
            store_sums(sums + r, total_grad, mask=inside)


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
        # Count the examples whose block begins at or before the row, bit by bit. If the row does not lie in the block
        # of the last of them, its own block has no example.
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
            store_sums(sums + r, tl.zeros((ROWS,), tl.float32), mask=absent)
        if values is not None:
            for start in range(0, H, COLUMNS):
                c = start + tl.arange(0, COLUMNS)
                store_sums(
                    values + r[:, None] * H + c[None, :],
                    tl.zeros((ROWS, COLUMNS), tl.float32),
                    mask=absent[:, None] & (c < H)[None, :],
                )
