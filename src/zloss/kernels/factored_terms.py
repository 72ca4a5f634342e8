"""Kernels of the terms of an exact step that are computed entry by entry.

`zloss.kernels.factored_update` launches them, and torch multiplies the results. The symbols A, G, K1, Q, T, Y and y are
the symbols of `docs/mathematics.md`.

Shape letters: B rows, H width of the layer, K targets per row, C classes.
"""

# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls, allow-incomplete-defs
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from zloss.kernels.rates import whole
from zloss.kernels.tiles import own_tile, store_tile, tile

# A step that changes a weight by more than this has diverged, and may overflow float32 in later computations.
_LARGEST: tl.constexpr = tl.constexpr(1e15)


@triton.jit
def prepare_rows(
    h, hg, mean, curvature, mean_grad, classes, target_grad, target_rows,
    omega, wbar, fault, report, bent_h, q, half, columns, lr_high, lr_low, keep_high, keep_low, B, C, most, parts,
    H: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr,
    FAULT: tl.constexpr, CONDITION_FAULT: tl.constexpr,
):  # fmt: skip
    """Compute a row of A H, of the first-order part of Q and of A H G / 2 + T, and its entries of the three columns.

    The first program also raises a fault if the squared norms of U and `U^-1`, which the last step has reported, have
    a product above `most`.
    """
    lr, keep = whole(lr_high, lr_low), whole(keep_high, keep_low)
    i, j = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    inside, here = j < H, i * H + j
    bend, level = tl.load(curvature + i), tl.load(mean_grad + i)
    own = own_sum(target_grad, i, i >= 0, K)
    row = tl.load(h + here, mask=inside, other=0).to(tl.float64)
    bent = bend * tl.load(hg + here, mask=inside, other=0)
    # T: the sum over the targets of dL/do_t (W_t - wbar).
    centred = tl.load(target_rows + here, mask=inside, other=0) - own * tl.load(
        wbar + j, mask=inside, other=0
    )
    kind = h.dtype.element_ty
    tl.store(bent_h + here, (bend * row).to(kind), mask=inside)
    tl.store(q + here, (-lr * keep * (bent + centred)).to(kind), mask=inside)
    if B >= H:
        tl.store(half + here, (0.5 * bent + centred).to(kind), mask=inside)
    along = tl.sum(row * tl.load(omega + j, mask=inside, other=0))
    # g_s + A h . omega, where g_s is the gradient of the sum at a fixed sum of squares.
    tl.store(columns + i, (level + bend * (along - tl.load(mean + i))).to(kind))
    tl.store(columns + B + i, (level + own / C).to(kind))
    tl.store(columns + 2 * B + i, own.to(kind))
    size = tl.sum(tl.abs(lr * (bent + centred)) + tl.abs(lr * own * row)) + tl.abs(lr * level)
    if not size <= _LARGEST:  # True for NaN too, which a sum passes on and a maximum does not
        tl.atomic_or(fault, FAULT)
    if i == 0:
        part = tl.arange(0, PARTS)
        of_U = tl.sum(tl.load(report + 2 + part, mask=part < parts, other=0))
        of_inverse = tl.sum(tl.load(report + 2 + parts + part, mask=part < parts, other=0))
        if not of_U * of_inverse <= most:
            tl.atomic_or(fault, CONDITION_FAULT)


@triton.jit
def make_second_order(
    scatter, targets, mean, curvature, classes, target_grad, second,
    lr_high, lr_low, keep_high, keep_low, B, C, K: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """Compute M, where M H is the second-order part of Q: `lr^2 ((A H G / 2 + T) H^T A + (Y Y^T - y y^T / C) / 2)`."""
    lr = whole(lr_high, lr_low)
    i, j = own_tile(SIDE)
    rows, columns = (
        tl.load(curvature + i, mask=i < B, other=0),
        tl.load(curvature + j, mask=j < B, other=0),
    )
    own, other = own_sum(target_grad, i, i < B, K), own_sum(target_grad, j, j < B, K)
    pairs = equal_targets(classes, target_grad, i, j, B, K) - own[:, None] * (other / C)[None, :]
    # wbar . h is the mean activation.
    centred = (
        tile(targets, i, j, B, B, B)
        - own[:, None] * tl.load(mean + j, mask=j < B, other=0)[None, :]
    )
    bent = (0.5 * rows[:, None] * tile(scatter, i, j, B, B, B) + centred) * columns[None, :]
    store_tile(second, lr * lr * (bent + 0.5 * pairs), i, j, B, B, B)


@triton.jit
def find_first(
    classes,
    first,
    totals,
    count,
    FEW: tl.constexpr,
    MANY: tl.constexpr,
    H: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Find where each target occurs for the first time, and write the zeros that `add_up_repeated` adds to."""
    i, j = tl.program_id(0) * FEW + tl.arange(0, FEW), tl.arange(0, WIDTH)
    store_tile(totals, tl.zeros((FEW, WIDTH), tl.float32), i, j, count, H, H)
    own, best = tl.load(classes + i, mask=i < count, other=-1), i
    for start in range(0, tl.program_id(0) * FEW + FEW, MANY):
        k = start + tl.arange(0, MANY)
        other = tl.load(classes + k, mask=k < count, other=-2)
        best = tl.minimum(
            best, tl.min(tl.where(own[:, None] == other[None, :], k[None, :], count), 1)
        )
    tl.store(first + i, best.to(tl.int64), mask=i < count)


@triton.jit
def add_up_repeated(
    h, first, target_grad, totals, H: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr
):
    """Add up g h over all examples that share a target, at the place where the target occurs for the first time."""
    i, j = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    row = tl.load(h + i * H + j, mask=j < H, other=0)
    for k in range(K):
        g = tl.load(target_grad + i * K + k)
        if g != 0:
            place = totals + tl.load(first + i * K + k) * H + j
            tl.atomic_add(place, (g * row).to(row.dtype), mask=j < H, sem="relaxed")


@triton.jit
def add_repeated(
    first, target_grad, totals, sums, q, lr_high, lr_low, keep_high, keep_low, C,
    H: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Add a row of `lr^2 (Y Y^T - y y^T / C) H / 2` to the row of Q."""
    lr = whole(lr_high, lr_low)
    i, j = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    inside = j < H
    own = own_sum(target_grad, i, i >= 0, K)
    total = -own / C * tl.load(sums + 2 * H + j, mask=inside, other=0)
    for k in range(K):
        shared = tl.load(totals + tl.load(first + i * K + k) * H + j, mask=inside, other=0)
        total += tl.load(target_grad + i * K + k) * shared
    here = q + i * H + j
    changed = tl.load(here, mask=inside, other=0) + 0.5 * lr * lr * total
    tl.store(here, changed.to(q.dtype.element_ty), mask=inside)


@triton.jit
def own_sum(target_grad, i, here, K: tl.constexpr):
    """Return entries of y: the sum of the gradients of the targets of each row."""
    total = tl.load(target_grad + i * K, mask=here, other=0)
    for k in range(1, K):
        total += tl.load(target_grad + i * K + k, mask=here, other=0)
    return total


@triton.jit
def equal_targets(classes, target_grad, i, j, B, K: tl.constexpr):
    """Return entries of `Y Y^T`: the products of the gradients for targets that two rows share."""
    total = (
        tl.load(target_grad + i * K, mask=i < B, other=0)[:, None] * 0 + tl.zeros_like(j)[None, :]
    )
    for k in range(K):
        own = tl.load(classes + i * K + k, mask=i < B, other=-1)
        own_grad = tl.load(target_grad + i * K + k, mask=i < B, other=0)
        for t in range(K):
            other = tl.load(classes + j * K + t, mask=j < B, other=-2)
            other_grad = tl.load(target_grad + j * K + t, mask=j < B, other=0)
            total += tl.where(
                own[:, None] == other[None, :], own_grad[:, None] * other_grad[None, :], 0
            )
    return total
