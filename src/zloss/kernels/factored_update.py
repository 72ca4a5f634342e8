"""Kernels of `zloss.layers.update`: one exact SGD step on the factors, in place, by products alone.

The definition solves a linear system; a factorisation is slow on a GPU, where products are fast. Here the inverse comes
from its series, each launch doubling the number of its terms,

    (I - X)^-1 = I + F_n + O(X^(2^n)),      F_1 = X,      F_(k+1) = F_k + X^(2^k) + X^(2^k) F_k

which converges while no eigenvalue of X, lr times the curvature of the loss, reaches 1: the condition that a step is
no leap. It is checked, not assumed: a series that has not converged raises a fault, and nothing is changed. Launches
that come after convergence copy, which costs next to nothing. The terms have the precision of float32, relative to X.

Two regimes as in the definition: `B < H` solves B x B systems, `B >= H` forms the H x H matrices. The large products
are torch's, in the dtype of products; between them, one launch each does all the small work. The last launch changes
the factors in place if no fault was raised, in this step or before.

Shape letters: B rows, H width of the layer, K targets per row, C classes.
"""

# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls, allow-incomplete-defs
from typing import NamedTuple

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from zloss.kernels.tiles import pieces, power_of_2, store_tile, tile, tile_of

# F_6 has 63 terms: it converges to the precision of float32 where no eigenvalue of X exceeds 0.6 or so.
DOUBLINGS = 5
# |X^32|_F^2, which bounds the first terms left out, |X^64|.
_REMAINDER: tl.constexpr = tl.constexpr(1e-7)
# |X^(2^k)|_F^2 from which on the terms are below the rounding of the first ones.
_NEGLIGIBLE: tl.constexpr = tl.constexpr(1e-18)
# A step that changes a weight by more has left all reason, and may overflow float32 further on.
_LARGEST: tl.constexpr = tl.constexpr(1e15)

# Side of the square tiles of products, and how far these go at a time: measured on an H200. Small matrices are cut into
# small tiles, so that there are enough of them.
_SMALL_TILE, _LARGE_TILE, _DEPTH = 32, 64, 32
_SMALL_SIDE = 384
_TILE = 32  # side of the tiles of element-wise work
# Sums over the batch: so many columns to a program, and so many rows at a time, because each time waits for memory.
_STRIP, _SPAN = 16, 256


class Batch(NamedTuple):
    """A recorded gradient; see `zloss.layers.gradient.RecordedGradient`."""

    h: Tensor  # (B, H) in the dtype of products
    hg: Tensor  # (B, H) likewise
    mean: Tensor  # (B,) float64
    curvature: Tensor  # (B,) float64
    mean_grad: Tensor  # (B,) float64
    classes: Tensor  # (B, K) int64, the targets
    target_grad: Tensor  # (B, K) float64
    target_rows: Tensor  # (B, H) in the dtype of products


class State(NamedTuple):
    """The factors, changed in place, and what is to be known of them afterwards."""

    V: Tensor  # (C, H) float32
    U: Tensor  # (H, H)
    U_inv: Tensor  # (H, H)
    omega: Tensor  # (H,)
    wbar: Tensor  # (H,)
    gram: Tensor  # (H, H)
    pack: Tensor  # (3, H, H) copies of gram, U and U_inv^T in the dtype of products
    fault: Tensor  # () int64 bits: the step is taken where none is set
    report: Tensor  # float64: fault, safe lr, then sums of squares of the parts of U, then of U_inv


class Rates(NamedTuple):
    """Learning rate and `1 - lr * weight_decay`. Triton takes float32 from the host; two of them make 48 bits."""

    lr_high: float
    lr_low: float
    keep_high: float
    keep_low: float

    @classmethod
    def of(cls, lr: float, weight_decay: float) -> "Rates":
        return cls(*_in_two(lr), *_in_two(1 - lr * weight_decay))


def report_length(width: int) -> int:
    """Entries of the report of a layer of this width."""
    return 2 + 2 * pieces(width, _TILE) ** 2


def refresh_(pack: Tensor, gram: Tensor, U: Tensor, U_inv: Tensor) -> None:
    """Copy the factors anew, after they have been changed by other means than `step_`."""
    for copy, original in zip(pack, (gram, U, U_inv.T), strict=True):
        copy.copy_(original)


def step_(
    state: State, batch: Batch, lr: float, weight_decay: float, *, gradient_fault: int, singular_fault: int
) -> None:
    """Take the step, or raise a fault on the device and change nothing."""
    rows, width = batch.h.shape
    if rows:
        regime = _ThroughRows if rows < width else _ThroughColumns
        with torch.cuda.device_of(batch.h):
            step = regime(state, batch, lr, weight_decay)
            step.prepare(gradient_fault)
            step.solve()
            step.apply(singular_fault)


class _Step:
    """The launches of one step, and what they hand on to each other."""

    side: int  # of the system
    gram_change: Tensor  # (H, H) whose symmetric part is half the change of gram
    U_change: Tensor  # (H, H) to subtract lr times
    inverse_change: Tensor  # (H, H) of U_inv^T, to add `inverse_scale` times
    inverse_scale: float
    rows_of_V: Tensor  # (B, H) keep h U_inv, with the new U_inv

    def __init__(self, state: State, batch: Batch, lr: float, weight_decay: float) -> None:
        self.state, self.batch, self.lr, self.weight_decay = state, batch, lr, weight_decay
        self.rates = Rates.of(lr, weight_decay)
        (self.rows, self.width), self.targets = batch.h.shape, batch.classes.shape[1]
        self.pair = batch.h.new_empty(2, self.rows, self.width)
        self.bent_h, self.q = torch.empty_like(batch.h), torch.empty_like(batch.h)
        self.columns, self.sums = batch.mean.new_empty(2, self.rows), batch.mean.new_empty(self.width)

    def prepare(self, gradient_fault: int) -> None:
        """All that is element-wise in the batch."""
        b, s = self.batch, self.state
        _prepare[(self.rows + pieces(self.width, _STRIP),)](
            *b, s.omega, s.wbar, s.fault, self.pair, self.bent_h, self.q, self.columns, self.sums,
            *self.rates, self.rows, len(s.V),
            H=self.width, K=self.targets, WIDTH=power_of_2(self.width), STRIP=_STRIP, SPAN=_SPAN,
            FAULT=gradient_fault, num_warps=4,
        )  # fmt: skip

    def solve(self) -> None:
        raise NotImplementedError

    def make_system(self, side: int) -> None:
        self.side, self.tile = side, _SMALL_TILE if side <= _SMALL_SIDE else _LARGE_TILE
        self.tiles = pieces(side, self.tile)
        self.system = self.batch.h.new_empty(side, side, dtype=torch.float32)  # X
        self.squares = self.batch.mean.new_empty(self.tiles**2)

    def sum_series(self, *, is_symmetric: bool) -> Tensor:
        """F_n from X, in the dtype of products."""
        power = series = self.system
        squares = self.squares
        for number in range(DOUBLINGS + 1):
            is_first, is_last = number == 0, number == DOUBLINGS
            next_power = power if is_last else torch.empty_like(power)
            next_series = series if is_first else torch.empty_like(
                series, dtype=self.batch.h.dtype if is_last else torch.float32
            )  # fmt: skip
            next_squares = squares if is_last else torch.empty_like(squares)
            _double[(self.tiles, self.tiles, 1 if is_first or is_last else 2)](
                power, series, squares, next_power, next_series, next_squares, self.side,
                PARTS=power_of_2(self.tiles**2), SIDE=self.tile, DEPTH=_DEPTH,
                FIRST=is_first, LAST=is_last, SYMMETRIC=is_symmetric, num_warps=4, num_stages=3,
            )  # fmt: skip
            power, series, squares = next_power, next_series, next_squares
        self.remainder = squares
        return series

    def apply(self, singular_fault: int) -> None:
        """Judge the step, and apply it."""
        b, s, across = self.batch, self.state, pieces(self.width, _TILE)
        _apply[(3 * across**2 + pieces(self.width, _STRIP) + self.rows,)](
            b.h, b.classes, b.target_grad, *s, self.gram_change, self.U_change, self.inverse_change, self.rows_of_V,
            self.columns, self.remainder, self.squares, self.weight_decay, *_in_two(self.inverse_scale), *self.rates,
            self.rows, self.rows_of_V.stride(0), self.tiles**2,
            H=self.width, K=self.targets, WIDTH=power_of_2(self.width), PARTS=power_of_2(self.tiles**2),
            SIDE=_TILE, STRIP=_STRIP, SPAN=_SPAN, FAULT=singular_fault, num_warps=4,
        )  # fmt: skip


class _ThroughRows(_Step):
    """B < H: X = ratio H H^T A."""

    def solve(self) -> None:
        b, s, rows, width = self.batch, self.state, self.rows, self.width
        self.make_system(rows)
        products = self.pair.flatten(0, 1) @ b.h.T  # (2 B, B): H H^T and (A H G / 2 + T) H^T
        turned = b.h @ s.pack[1:].flatten(0, 1).T  # (B, 2 H): H U^T and H U_inv
        second, moved = b.h.new_empty(rows, rows), torch.empty_like(b.h)
        _make_systems[(self.tiles**2 + rows,)](
            products, turned, b.curvature, b.classes, b.target_grad, self.system, second, moved, self.squares,
            *self.rates, rows, len(s.V), H=width, K=self.targets, WIDTH=power_of_2(width), SIDE=self.tile, num_warps=4,
        )  # fmt: skip
        series = self.sum_series(is_symmetric=False)
        self.gram_change = b.h.T @ self.q.addmm_(second, b.h)
        self.rows_of_V = turned[:, width:].addmm_(series, moved)
        changes = turned.T @ self.bent_h  # (2 H, H)
        self.U_change, self.inverse_change = changes[:width], changes[width:]
        self.inverse_scale = self.lr / (1 - self.lr * self.weight_decay)


class _ThroughColumns(_Step):
    """B >= H: X = ratio K1."""

    inverse_scale = 1.0

    def solve(self) -> None:
        b, s, width = self.batch, self.state, self.width
        self.make_system(width)
        k1 = b.h.T @ self.bent_h
        down, across = pieces(self.rows, _LARGE_TILE), pieces(width, _LARGE_TILE)
        _make_system[(self.tiles**2 + down * across,)](
            k1, b.h, b.classes, b.target_grad, self.sums, self.system, self.q, self.squares,
            *self.rates, self.rows, len(s.V),
            H=width, K=self.targets, SIDE=self.tile, LARGE=_LARGE_TILE, DEPTH=_DEPTH, num_warps=4,
        )  # fmt: skip
        series = self.sum_series(is_symmetric=True)
        self.gram_change = b.h.T @ self.q.addmm_(self.pair[1], k1, alpha=self.lr**2)
        self.U_change = s.pack[1] @ k1
        self.inverse_change = s.pack[2] @ series
        self.rows_of_V = b.h @ (s.pack[2] + self.inverse_change).T


def _in_two(number: float) -> tuple[float, float]:
    """Two float32 numbers whose sum is `number` to 48 bits."""
    high = torch.tensor(number, dtype=torch.float32).item()
    return high, number - high


# ---- kernels ---------------------------------------------------------------------------------------------------------


@triton.jit
def _prepare(
    h, hg, mean, curvature, mean_grad, index, target_grad, target_rows,
    omega, wbar, fault, pair, bent_h, q, columns, sums, lr_high, lr_low, keep_high, keep_low, B, C,
    H: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr, STRIP: tl.constexpr, SPAN: tl.constexpr,
    FAULT: tl.constexpr,
):  # fmt: skip
    """H and A H G / 2 + T side by side; A H; the first-order part of Q; what H^T multiplies; H^T y."""
    lr, keep = _whole(lr_high, lr_low), _whole(keep_high, keep_low)
    if tl.program_id(0) < B:
        i, j = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
        inside, here = j < H, i * H + j
        bend, level = tl.load(curvature + i), tl.load(mean_grad + i)
        own = _own_sum(target_grad, i, i >= 0, K)
        row = tl.load(h + here, mask=inside, other=0).to(tl.float64)
        bent = bend * tl.load(hg + here, mask=inside, other=0)
        # T: the sum over the targets of dL/do_t (W_t - wbar).
        centred = tl.load(target_rows + here, mask=inside, other=0) - own * tl.load(wbar + j, mask=inside, other=0)
        kind = h.dtype.element_ty
        tl.store(pair + here, row.to(kind), mask=inside)
        tl.store(pair + B * H + here, (0.5 * bent + centred).to(kind), mask=inside)
        tl.store(bent_h + here, (bend * row).to(kind), mask=inside)
        tl.store(q + here, (-lr * keep * (bent + centred)).to(kind), mask=inside)
        along = tl.sum(row * tl.load(omega + j, mask=inside, other=0))
        # g_s + A h . omega, where g_s is the gradient of the sum at a fixed sum of squares.
        tl.store(columns + i, level + bend * (along - tl.load(mean + i)))
        tl.store(columns + B + i, level + own / C)
        size = tl.sum(tl.abs(lr * (bent + centred)) + tl.abs(lr * own * row)) + tl.abs(lr * level)
        if not size <= _LARGEST:  # NaN neither, which a sum hands on, but not a maximum
            tl.atomic_or(fault, FAULT)
    else:
        strip = (tl.program_id(0) - B) * STRIP + tl.arange(0, STRIP)
        total = tl.zeros((STRIP,), tl.float64)
        for start in range(0, B, SPAN):
            b = start + tl.arange(0, SPAN)
            total += tl.sum(_own_sum(target_grad, b, b < B, K)[:, None] * tile(h, b, strip, B, H, H), 0)
        tl.store(sums + strip, total, mask=strip < H)


@triton.jit
def _make_systems(
    products, turned, curvature, index, target_grad, system, second, moved, squares,
    lr_high, lr_low, keep_high, keep_low, B, C,
    H: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """X = ratio H H^T A; M, the second-order part of Q over H; a copy of H U_inv."""
    lr, keep = _whole(lr_high, lr_low), _whole(keep_high, keep_low)
    across = tl.cdiv(B, SIDE)
    if tl.program_id(0) < across * across:
        i, j = tile_of(tl.program_id(0), across, SIDE)
        rows, columns = tl.load(curvature + i, mask=i < B, other=0), tl.load(curvature + j, mask=j < B, other=0)
        inner = tile(products, i, j, B, B, B)
        store_tile(system, lr / keep * inner * columns[None, :], i, j, B, B, B)
        # |K1|^2 = tr(H H^T A H H^T A)
        tl.store(squares + tl.program_id(0), tl.sum(inner * inner * (rows[:, None] * columns[None, :]).to(tl.float64)))
        own, other = _own_sum(target_grad, i, i < B, K), _own_sum(target_grad, j, j < B, K)
        pairs = _equal_targets(index, target_grad, i, j, B, K) - own[:, None] * (other / C)[None, :]
        bent = tile(products + B.to(tl.int64) * B, i, j, B, B, B) * columns[None, :]
        store_tile(second, lr * lr * (bent + 0.5 * pairs), i, j, B, B, B)
    else:
        row, k = (tl.program_id(0) - across * across).to(tl.int64), tl.arange(0, WIDTH)
        tl.store(moved + row * H + k, tl.load(turned + (2 * row + 1) * H + k, mask=k < H), mask=k < H)


@triton.jit
def _make_system(
    k1, h, index, target_grad, sums, system, q, squares, lr_high, lr_low, keep_high, keep_low, B, C,
    H: tl.constexpr, K: tl.constexpr, SIDE: tl.constexpr, LARGE: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """X = ratio K1; `lr^2 (Y Y^T - y y^T / C) H / 2` added to Q."""
    lr, keep = _whole(lr_high, lr_low), _whole(keep_high, keep_low)
    across = tl.cdiv(H, SIDE)
    if tl.program_id(0) < across * across:
        row, column = tile_of(tl.program_id(0), across, SIDE)
        bend = tile(k1, row, column, H, H, H).to(tl.float64)
        store_tile(system, lr / keep * bend, row, column, H, H, H)
        tl.store(squares + tl.program_id(0), tl.sum(bend * bend))
    else:
        i, j = tile_of(tl.program_id(0) - across * across, tl.cdiv(H, LARGE), LARGE)
        total = tl.zeros((LARGE, LARGE), tl.float32)
        for start in range(0, B, DEPTH):
            k = start + tl.arange(0, DEPTH)
            pairs = _equal_targets(index, target_grad, i, k, B, K).to(tl.float32)
            if tl.max(tl.abs(pairs)) > 0:  # few pairs of examples share a target
                total = _product(pairs, tile(h, k, j, B, H, H).to(tl.float32), total)
        own = _own_sum(target_grad, i, i < B, K)
        mean_part = own[:, None] * (tl.load(sums + j, mask=j < H, other=0) / C)[None, :]
        new = tile(q, i, j, B, H, H) + 0.5 * lr * lr * (total - mean_part)
        store_tile(q, new, i, j, B, H, H)


@triton.jit
def _double(
    power, series, squares, next_power, next_series, next_squares, N,
    PARTS: tl.constexpr, SIDE: tl.constexpr, DEPTH: tl.constexpr,
    FIRST: tl.constexpr, LAST: tl.constexpr, SYMMETRIC: tl.constexpr,
):  # fmt: skip
    """`P^2` with the squares of its entries summed by tile, and `F + P + P F`; the first launch has the one, the last
    the other.
    """
    across = tl.num_programs(0)
    i = tl.program_id(0) * SIDE + tl.arange(0, SIDE)
    j = tl.program_id(1) * SIDE + tl.arange(0, SIDE)
    makes_power = FIRST or (not LAST and tl.program_id(2) == 0)
    part = tl.arange(0, PARTS)
    size = 1.0 if FIRST else tl.sum(tl.load(squares + part, mask=part < across * across, other=0))
    total = tl.zeros((SIDE, SIDE), tl.float32)
    if not size <= _NEGLIGIBLE:  # NaN goes on, to be found in the end
        right = power if makes_power else series
        for start in range(0, N, DEPTH):
            k = start + tl.arange(0, DEPTH)
            # Tensor cores like both operands contiguous along the sum.
            other = tl.trans(tile(right, j, k, N, N, N)) if SYMMETRIC else tile(right, k, j, N, N, N)
            total = _product(tile(power, i, k, N, N, N), other, total)
    if makes_power:
        store_tile(next_power, total, i, j, N, N, N)
        here = tl.program_id(0) * across + tl.program_id(1)
        tl.store(next_squares + here, tl.sum((total * total).to(tl.float64)))
    else:
        total += tile(series, i, j, N, N, N) + tile(power, i, j, N, N, N)
        store_tile(next_series, total, i, j, N, N, N)


@triton.jit
def _apply(
    h, index, target_grad, V, U, U_inv, omega, wbar, gram, pack, fault, report,
    gram_change, U_change, inverse_change, rows_of_V, columns, remainder, squares,
    weight_decay, scale_high, scale_low, lr_high, lr_low, keep_high, keep_low, B, V_stride, parts,
    H: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr,
    SIDE: tl.constexpr, STRIP: tl.constexpr, SPAN: tl.constexpr, FAULT: tl.constexpr,
):  # fmt: skip
    """Change the factors, unless there is a fault."""
    lr, keep = _whole(lr_high, lr_low), _whole(keep_high, keep_low)
    program, across = tl.program_id(0), tl.cdiv(H, SIDE)
    tiles = across * across
    part = tl.arange(0, PARTS)
    left_out = tl.sum(tl.load(remainder + part, mask=part < parts, other=0))
    bits = tl.load(fault) | tl.where(left_out <= _REMAINDER, 0, FAULT)
    if program == 0:
        bend = tl.sqrt(tl.sum(tl.load(squares + part, mask=part < parts, other=0)))
        _write_report(report, fault, bits, 0.5 / (bend + weight_decay))
    if bits != 0:
        return
    if program < tiles:
        i, j = tile_of(program, across, SIDE)
        change = tile(gram_change, i, j, H, H, H).to(tl.float64) + tl.trans(tile(gram_change, j, i, H, H, H))
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
        change = _whole(scale_high, scale_low) * tl.trans(tile(inverse_change, j, i, H, H, H))
        new = (tile(U_inv, i, j, H, H, H) + change) / keep
        store_tile(U_inv, new, i, j, H, H, H)
        store_tile(pack + 2 * H * H, tl.trans(new), j, i, H, H, H)
        tl.store(report + 2 + program - tiles, tl.sum(new * new))
    elif program < 3 * tiles + tl.cdiv(H, STRIP):
        strip = (program - 3 * tiles) * STRIP + tl.arange(0, STRIP)
        _change_means(omega, wbar, h, columns, lr, keep, strip, B, H, STRIP, SPAN)
    else:
        row = (program - 3 * tiles - tl.cdiv(H, STRIP)).to(tl.int64)
        _change_rows(V, index, target_grad, rows_of_V + row * V_stride, -lr / keep, row, H, K, WIDTH)


# ---- parts of kernels ------------------------------------------------------------------------------------------------


@triton.jit
def _whole(high, low):
    """A float64 from its two parts."""
    return tl.cast(high, tl.float64) + low


@triton.jit
def _product(a, b, total):
    """`total + a @ b`, as three TF32 products on tensor cores, which together have the precision of float32."""
    return tl.dot(a, b, total, input_precision="tf32x3")


@triton.jit
def _own_sum(target_grad, i, here, K: tl.constexpr):
    """y: the sum of the gradients of a row's targets."""
    total = tl.load(target_grad + i * K, mask=here, other=0)
    for k in tl.static_range(1, K):
        total += tl.load(target_grad + i * K + k, mask=here, other=0)
    return total


@triton.jit
def _equal_targets(index, target_grad, i, j, B, K: tl.constexpr):
    """Entries of `Y Y^T`: the products of gradients for targets that two rows share."""
    total = tl.load(target_grad + i * K, mask=i < B, other=0)[:, None] * 0 + tl.zeros_like(j)[None, :]
    for k in tl.static_range(K):
        own = tl.load(index + i * K + k, mask=i < B, other=-1)
        own_grad = tl.load(target_grad + i * K + k, mask=i < B, other=0)
        for t in tl.static_range(K):
            other = tl.load(index + j * K + t, mask=j < B, other=-2)
            other_grad = tl.load(target_grad + j * K + t, mask=j < B, other=0)
            total += tl.where(own[:, None] == other[None, :], own_grad[:, None] * other_grad[None, :], 0)
    return total


@triton.jit
def _write_report(report, fault, bits, safe_lr):
    """What was reported of a refused step stays."""
    tl.store(fault, bits)
    if tl.load(report) == 0:
        tl.store(report, bits.to(tl.float64))
        tl.store(report + 1, safe_lr)


@triton.jit
def _change_means(omega, wbar, h, columns, lr, keep, j, B, H: tl.constexpr, STRIP: tl.constexpr, SPAN: tl.constexpr):
    shift, centre = tl.zeros((STRIP,), tl.float64), tl.zeros((STRIP,), tl.float64)
    for start in range(0, B, SPAN):
        b = start + tl.arange(0, SPAN)
        rows = tile(h, b, j, B, H, H)
        shift += tl.sum(rows * tl.load(columns + b, mask=b < B, other=0)[:, None], 0)
        centre += tl.sum(rows * tl.load(columns + B + b, mask=b < B, other=0)[:, None], 0)
    inside = j < H
    new_omega = keep * tl.load(omega + j, mask=inside, other=0) - lr * shift
    new_wbar = keep * tl.load(wbar + j, mask=inside, other=0) - lr * centre
    tl.store(omega + j, new_omega.to(omega.dtype.element_ty), mask=inside)
    tl.store(wbar + j, new_wbar.to(wbar.dtype.element_ty), mask=inside)


@triton.jit
def _change_rows(V, index, target_grad, own_row, scale, i, H: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr):
    """Atomically, because targets may repeat."""
    j = tl.arange(0, WIDTH)
    row = scale * tl.load(own_row + j, mask=j < H, other=0)
    for k in tl.static_range(K):
        g, c = tl.load(target_grad + i * K + k), tl.load(index + i * K + k)
        if g != 0:
            tl.atomic_add(V + c * H + j, (g * row).to(tl.float32), mask=j < H, sem="relaxed")
