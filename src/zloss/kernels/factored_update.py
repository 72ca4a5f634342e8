"""Kernels of `zloss.layers.update`: one exact SGD step on the factors, in place.

The step solves a linear system. A factorisation takes a GPU half a millisecond, which does not matter where the host
needs longer than that to launch the step. While the step is captured as a CUDA graph it does: then the inverse comes
from its series, each launch doubling the number of its terms,

    (I - X)^-1 = I + F_n + O(X^(2^n)),      F_1 = X,      F_(k+1) = F_k + X^(2^k) + X^(2^k) F_k

which converges while no eigenvalue of X, lr times the curvature of the loss, reaches 1: the condition that a step is
no leap. It is checked, not assumed: a series that has not converged raises a fault, and nothing is changed. Launches
that come after convergence copy. The terms have the precision of float32, relative to X.

Two regimes as in the definition: `B < H` solves B x B systems, `B >= H` forms the H x H matrices. The large products
are torch's, in the dtype of products; between them, one launch each does all the small work. While a step is captured
as a CUDA graph, products that do not need the series become a branch beside it. The last launch changes the factors in
place if no fault was raised, in this step or before.

Shape letters: B rows, H width of the layer, K targets per row, C classes.
"""

# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls, allow-incomplete-defs
from typing import NamedTuple

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from zloss.capture import Branch, is_capturing
from zloss.kernels.tiles import pieces, power_of_2, store_tile, tile, tile_of

# F_5 has 31 terms: enough for the precision of float32 where no eigenvalue of X exceeds one half, which the learning
# rate that is reported as safe makes sure of.
DOUBLINGS = 4
# |X^16|_F^2, which bounds the first terms left out, |X^32|. They decide on leaps alone; any usual step is far below.
_REMAINDER: tl.constexpr = tl.constexpr(1e-6)
# |X^(2^k)|_F^2 from which on the terms are below the rounding of the first ones.
_NEGLIGIBLE: tl.constexpr = tl.constexpr(1e-18)
# |F|, from which on the system is nearly singular.
_LEAP = 1e3
# A step that changes a weight by more has left all reason, and may overflow float32 further on.
_LARGEST: tl.constexpr = tl.constexpr(1e15)

# Side of the square tiles of products, and how far these go at a time: measured on an H200. Small matrices are cut into
# small tiles, so that there are enough of them.
_SMALL_TILE, _LARGE_TILE, _DEPTH = 32, 64, 32
_SMALL_SIDE = 384
_TILE = 32  # side of the tiles of element-wise work
_STRIP = 128  # entries of a vector to a program


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
    sums: Tensor  # (3, H) `columns @ h`

    def __init__(self, state: State, batch: Batch, lr: float, weight_decay: float) -> None:
        self.state, self.batch, self.lr, self.weight_decay = state, batch, lr, weight_decay
        self.rates = Rates.of(lr, weight_decay)
        (self.rows, self.width), self.targets = batch.h.shape, batch.classes.shape[1]
        self.pair = batch.h.new_empty(2, self.rows, self.width)
        self.bent_h, self.q = torch.empty_like(batch.h), torch.empty_like(batch.h)
        self.columns = batch.h.new_empty(3, self.rows)
        self.branch = Branch()

    def prepare(self, gradient_fault: int) -> None:
        """All that is element-wise in the batch."""
        b, s = self.batch, self.state
        _prepare[(self.rows,)](
            *b, s.omega, s.wbar, s.fault, self.pair, self.bent_h, self.q, self.columns,
            *self.rates, self.rows, len(s.V),
            H=self.width, K=self.targets, WIDTH=power_of_2(self.width), FAULT=gradient_fault, num_warps=4,
        )  # fmt: skip

    def solve(self) -> None:
        raise NotImplementedError

    def make_system(self, side: int) -> None:
        self.side, self.tile = side, _SMALL_TILE if side <= _SMALL_SIDE else _LARGE_TILE
        self.tiles = pieces(side, self.tile)
        dtype = torch.float32 if is_capturing() else self.batch.h.dtype
        self.system = self.batch.h.new_empty(side, side, dtype=dtype)  # X
        self.squares = self.batch.mean.new_empty(self.tiles**2)

    def inverse(self, *, is_symmetric: bool) -> Tensor:
        """F, in the dtype of products."""
        if is_capturing():
            return self._sum_series(is_symmetric=is_symmetric)
        eye = torch.eye(self.side, dtype=self.system.dtype, device=self.system.device)
        series: Tensor = torch.linalg.solve_ex(eye - self.system, self.system).result
        self.remainder = torch.zeros_like(self.squares)
        self.remainder[0] = ~(series.norm() <= _LEAP)
        return series

    def _sum_series(self, *, is_symmetric: bool) -> Tensor:
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
            b.classes, b.target_grad, *s, self.gram_change, self.U_change, self.inverse_change, self.rows_of_V,
            self.sums, self.remainder, self.squares, self.weight_decay, *_in_two(self.inverse_scale), *self.rates,
            self.rows_of_V.stride(0), self.tiles**2,
            H=self.width, K=self.targets, WIDTH=power_of_2(self.width), PARTS=power_of_2(self.tiles**2),
            SIDE=_TILE, STRIP=_STRIP, FAULT=singular_fault, num_warps=4,
        )  # fmt: skip


class _ThroughRows(_Step):
    """B < H: X = ratio H H^T A."""

    def solve(self) -> None:
        b, s, rows, width = self.batch, self.state, self.rows, self.width
        self.make_system(rows)
        with self.branch.open():
            turned = b.h @ s.pack[1:].flatten(0, 1).T  # (B, 2 H): H U^T and H U_inv
            moved = turned[:, width:].clone()
            self.sums = self.columns @ b.h
        products = self.pair.flatten(0, 1) @ b.h.T  # (2 B, B): H H^T and (A H G / 2 + T) H^T
        second = b.h.new_empty(rows, rows)
        _make_systems[(self.tiles, self.tiles)](
            products, b.curvature, b.classes, b.target_grad, self.system, second, self.squares,
            *self.rates, rows, len(s.V), K=self.targets, SIDE=self.tile, num_warps=4,
        )  # fmt: skip
        with self.branch.open():
            self.gram_change = b.h.T @ self.q.addmm_(second, b.h)
        series = self.inverse(is_symmetric=False)
        self.branch.join()
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
        _make_system[(self.tiles, self.tiles)](
            k1, self.system, self.squares, *self.rates, H=width, SIDE=self.tile, num_warps=4
        )  # fmt: skip
        with self.branch.open():
            self.sums = self.columns @ b.h
            _add_repeated[(pieces(self.rows, _LARGE_TILE), pieces(width, _LARGE_TILE))](
                b.h, b.classes, b.target_grad, self.sums, self.q, *self.rates, self.rows, len(s.V),
                H=width, K=self.targets, SIDE=_LARGE_TILE, DEPTH=_DEPTH, num_warps=4,
            )  # fmt: skip
            self.gram_change = b.h.T @ self.q.addmm_(self.pair[1], k1, alpha=self.lr**2)
            self.U_change = s.pack[1] @ k1
        series = self.inverse(is_symmetric=True)
        self.inverse_change = s.pack[2] @ series
        self.rows_of_V = b.h @ (s.pack[2] + self.inverse_change).T
        self.branch.join()


def _in_two(number: float) -> tuple[float, float]:
    """Two float32 numbers whose sum is `number` to 48 bits."""
    high = torch.tensor(number, dtype=torch.float32).item()
    return high, number - high


# ---- kernels ---------------------------------------------------------------------------------------------------------


@triton.jit
def _prepare(
    h, hg, mean, curvature, mean_grad, classes, target_grad, target_rows,
    omega, wbar, fault, pair, bent_h, q, columns, lr_high, lr_low, keep_high, keep_low, B, C,
    H: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr, FAULT: tl.constexpr,
):  # fmt: skip
    """H and A H G / 2 + T side by side; A H; the first-order part of Q; what H^T multiplies. A row at a time."""
    lr, keep = _whole(lr_high, lr_low), _whole(keep_high, keep_low)
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
    tl.store(columns + i, (level + bend * (along - tl.load(mean + i))).to(kind))
    tl.store(columns + B + i, (level + own / C).to(kind))
    tl.store(columns + 2 * B + i, own.to(kind))
    size = tl.sum(tl.abs(lr * (bent + centred)) + tl.abs(lr * own * row)) + tl.abs(lr * level)
    if not size <= _LARGEST:  # NaN neither, which a sum hands on, but not a maximum
        tl.atomic_or(fault, FAULT)


@triton.jit
def _make_systems(
    products, curvature, classes, target_grad, system, second, squares,
    lr_high, lr_low, keep_high, keep_low, B, C, K: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """X = ratio H H^T A, and M, the second-order part of Q over H."""
    lr, keep = _whole(lr_high, lr_low), _whole(keep_high, keep_low)
    i, j = _own_tile(SIDE)
    rows, columns = tl.load(curvature + i, mask=i < B, other=0), tl.load(curvature + j, mask=j < B, other=0)
    inner = tile(products, i, j, B, B, B)
    store_tile(system, lr / keep * inner * columns[None, :], i, j, B, B, B)
    # |K1|^2 = tr(H H^T A H H^T A)
    weights = rows[:, None] * columns[None, :]
    tl.store(squares + _own_number(), tl.sum(inner * inner * weights))
    own, other = _own_sum(target_grad, i, i < B, K), _own_sum(target_grad, j, j < B, K)
    pairs = _equal_targets(classes, target_grad, i, j, B, K) - own[:, None] * (other / C)[None, :]
    bent = tile(products + tl.cast(B, tl.int64) * B, i, j, B, B, B) * columns[None, :]
    store_tile(second, lr * lr * (bent + 0.5 * pairs), i, j, B, B, B)


@triton.jit
def _make_system(k1, system, squares, lr_high, lr_low, keep_high, keep_low, H: tl.constexpr, SIDE: tl.constexpr):
    """X = ratio K1."""
    i, j = _own_tile(SIDE)
    bend = tile(k1, i, j, H, H, H).to(tl.float64)
    store_tile(system, _whole(lr_high, lr_low) / _whole(keep_high, keep_low) * bend, i, j, H, H, H)
    tl.store(squares + _own_number(), tl.sum(bend * bend))


@triton.jit
def _add_repeated(
    h, classes, target_grad, sums, q, lr_high, lr_low, keep_high, keep_low, B, C,
    H: tl.constexpr, K: tl.constexpr, SIDE: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """`lr^2 (Y Y^T - y y^T / C) H / 2` is added to Q."""
    lr = _whole(lr_high, lr_low)
    i, j = _own_tile(SIDE)
    total = tl.zeros((SIDE, SIDE), tl.float32)
    for start in range(0, B, DEPTH):
        k = start + tl.arange(0, DEPTH)
        pairs = _equal_targets(classes, target_grad, i, k, B, K).to(tl.float32)
        if tl.max(tl.abs(pairs)) > 0:  # few pairs of examples share a target
            total = _product(pairs, tile(h, k, j, B, H, H).to(tl.float32), total)
    own = _own_sum(target_grad, i, i < B, K)
    mean_part = own[:, None] * (tl.load(sums + 2 * H + j, mask=j < H, other=0) / C)[None, :]
    store_tile(q, tile(q, i, j, B, H, H) + 0.5 * lr * lr * (total - mean_part), i, j, B, H, H)


@triton.jit
def _double(
    power, series, squares, next_power, next_series, next_squares, N,
    PARTS: tl.constexpr, SIDE: tl.constexpr, DEPTH: tl.constexpr,
    FIRST: tl.constexpr, LAST: tl.constexpr, SYMMETRIC: tl.constexpr,
):  # fmt: skip
    """`P^2` with the squares of its entries summed by tile, and `F + P + P F`; the first launch has the one, the last
    the other.
    """
    i, j = _own_tile(SIDE)
    makes_power = FIRST or (not LAST and tl.program_id(2) == 0)
    part = tl.arange(0, PARTS)
    size = (
        1.0 if FIRST else tl.sum(tl.load(squares + part, mask=part < tl.num_programs(0) * tl.num_programs(1), other=0))
    )
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
        tl.store(next_squares + _own_number(), tl.sum((total * total).to(tl.float64)))
    else:
        total += tile(series, i, j, N, N, N) + tile(power, i, j, N, N, N)
        store_tile(next_series, total, i, j, N, N, N)


@triton.jit
def _apply(
    classes, target_grad, V, U, U_inv, omega, wbar, gram, pack, fault, report,
    gram_change, U_change, inverse_change, rows_of_V, sums, remainder, squares,
    weight_decay, scale_high, scale_low, lr_high, lr_low, keep_high, keep_low, V_stride, parts,
    H: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr,
    SIDE: tl.constexpr, STRIP: tl.constexpr, FAULT: tl.constexpr,
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
        _change_vector(omega, sums, lr, keep, strip, H)
        _change_vector(wbar, sums + H, lr, keep, strip, H)
    else:
        row = (program - 3 * tiles - tl.cdiv(H, STRIP)).to(tl.int64)
        _change_rows(V, classes, target_grad, rows_of_V + row * V_stride, -lr / keep, row, H, K, WIDTH)


# ---- parts of kernels ------------------------------------------------------------------------------------------------


@triton.jit
def _whole(high, low):
    """A float64 from its two parts."""
    return tl.cast(high, tl.float64) + low


@triton.jit
def _own_tile(SIDE: tl.constexpr):
    """Rows and columns of the tile that a program of a two-dimensional grid has for its own."""
    return tl.program_id(0) * SIDE + tl.arange(0, SIDE), tl.program_id(1) * SIDE + tl.arange(0, SIDE)


@triton.jit
def _own_number():
    """The number of that tile."""
    return tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)


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
def _equal_targets(classes, target_grad, i, j, B, K: tl.constexpr):
    """Entries of `Y Y^T`: the products of gradients for targets that two rows share."""
    total = tl.load(target_grad + i * K, mask=i < B, other=0)[:, None] * 0 + tl.zeros_like(j)[None, :]
    for k in tl.static_range(K):
        own = tl.load(classes + i * K + k, mask=i < B, other=-1)
        own_grad = tl.load(target_grad + i * K + k, mask=i < B, other=0)
        for t in tl.static_range(K):
            other = tl.load(classes + j * K + t, mask=j < B, other=-2)
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
def _change_vector(vector, change, lr, keep, j, H: tl.constexpr):
    new = keep * tl.load(vector + j, mask=j < H, other=0) - lr * tl.load(change + j, mask=j < H, other=0)
    tl.store(vector + j, new.to(vector.dtype.element_ty), mask=j < H)


@triton.jit
def _change_rows(V, classes, target_grad, own_row, scale, i, H: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr):
    """Atomically, because targets may repeat."""
    j = tl.arange(0, WIDTH)
    row = scale * tl.load(own_row + j, mask=j < H, other=0)
    for k in tl.static_range(K):
        g, c = tl.load(target_grad + i * K + k), tl.load(classes + i * K + k)
        if g != 0:
            tl.atomic_add(V + c * H + j, (g * row).to(tl.float32), mask=j < H, sem="relaxed")
