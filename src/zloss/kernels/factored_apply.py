"""Kernel that judges an exact step and applies it to the factors, in place.

Shape letters: H width of the layer, K targets per row.
"""

# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls, allow-incomplete-defs
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from zloss.kernels.rates import whole
from zloss.kernels.tiles import store_tile, tile, tile_of

# The largest |X^16|_F^2 of a step that is applied. It bounds |X^32|, the first terms that the series leaves out. Only
# leaps exceed it: usual steps are far below.
_REMAINDER: tl.constexpr = tl.constexpr(1e-6)


@triton.jit
def apply_step(
    classes, target_grad, V, U, U_inv, omega, wbar, gram, pack, fault, report,
    gram_change, U_change, inverse_change, rows_of_V, sums, remainder, squares,
    weight_decay, scale_high, scale_low, lr_high, lr_low, keep_high, keep_low, parts, left_parts,
    H: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr,
    SIDE: tl.constexpr, STRIP: tl.constexpr, FAULT: tl.constexpr,
):  # fmt: skip
    """Change one part of the factors, unless there is a fault. The first program also writes the report."""
    lr, keep = whole(lr_high, lr_low), whole(keep_high, keep_low)
    program, across = tl.program_id(0), tl.cdiv(H, SIDE)
    tiles = across * across
    part = tl.arange(0, PARTS)
    left_out = tl.sum(tl.load(remainder + part, mask=part < left_parts, other=0))
    bits = tl.load(fault) | tl.where(left_out <= _REMAINDER, 0, FAULT)
    if program == 0:
        bend = tl.sqrt(tl.sum(tl.load(squares + part, mask=part < parts, other=0)))
        _write_report(report, fault, bits, 0.5 / (bend + weight_decay))
    if bits != 0:
        return
    if program < tiles:
        i, j = tile_of(program, across, SIDE)
        change = tile(gram_change, i, j, H, H, H).to(tl.float64) + tl.trans(
            tile(gram_change, j, i, H, H, H)
        )
        new = keep * keep * tile(gram, i, j, H, H, H) + change
        store_tile(gram, new, i, j, H, H, H)
        store_tile(pack, new, i, j, H, H, H)
    elif program < 2 * tiles:
        i, j = tile_of(program - tiles, across, SIDE)
        new = keep * tile(U, i, j, H, H, H) - lr * tile(U_change, i, j, H, H, H)
        store_tile(U, new, i, j, H, H, H)
        store_tile(pack + H * H, new, i, j, H, H, H)
        tl.store(report + 2 + program - tiles, tl.sum(new * new))
    elif program < 3 * tiles:
        i, j = tile_of(program - 2 * tiles, across, SIDE)
        change = whole(scale_high, scale_low) * tl.trans(tile(inverse_change, j, i, H, H, H))
        new = (tile(U_inv, i, j, H, H, H) + change) / keep
        store_tile(U_inv, new, i, j, H, H, H)
        store_tile(pack + 2 * H * H, tl.trans(new), j, i, H, H, H)
        tl.store(report + 2 + program - tiles, tl.sum(new * new))
    elif program < 3 * tiles + tl.cdiv(H, STRIP):
        strip = (program - 3 * tiles) * STRIP + tl.arange(0, STRIP)
        _change_vector(omega, sums, lr, keep, strip, H)
        _change_vector(wbar, sums + H, lr, keep, strip, H)
    else:
        row = (program - 3 * tiles - tl.cdiv(H, STRIP)).to(tl.int64)
        _change_rows(V, classes, target_grad, rows_of_V + row * H, -lr / keep, row, H, K, WIDTH)


@triton.jit
def _write_report(report, fault, bits, safe_lr):
    """Write the report on a step. The report on an earlier refused step stays."""
    tl.store(fault, bits)
    if tl.load(report) == 0:
        tl.store(report, bits.to(tl.float64))
        tl.store(report + 1, safe_lr)


@triton.jit
def _change_vector(vector, change, lr, keep, j, H: tl.constexpr):
    new = keep * tl.load(vector + j, mask=j < H, other=0) - lr * tl.load(
        change + j, mask=j < H, other=0
    )
    tl.store(vector + j, new.to(vector.dtype.element_ty), mask=j < H)


@triton.jit
def _change_rows(
    V,
    classes,
    target_grad,
    own_row,
    scale,
    i,
    H: tl.constexpr,
    K: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Change the rows of V for the targets of an example: atomically, because targets may repeat."""
    j = tl.arange(0, WIDTH)
    row = scale * tl.load(own_row + j, mask=j < H, other=0)
    for k in range(K):
        g, c = tl.load(target_grad + i * K + k), tl.load(classes + i * K + k)
        if g != 0:
            tl.atomic_add(V + c * H + j, (g * row).to(tl.float32), mask=j < H, sem="relaxed")
