"""Kernels of `zloss.layers.update`: one exact SGD step on the factors, in place.

The step solves a linear system. A factorisation takes a GPU half a millisecond, which does not matter where the host
needs longer than that to launch the step. While the step is captured as a CUDA graph it does: then the inverse comes
from its series, each launch doubling the number of its terms. What it multiplies, M, is taken along,

    (I - X)^-1 M = M + D_n + O(X^(2^n)),      D_1 = X M,      D_(k+1) = D_k + X^(2^k) (M + D_k)

which is near enough while no eigenvalue of X, lr times the curvature of the loss, is far above one half: the condition
that a step is no leap. It is checked, not assumed: what is not near enough raises a fault, and changes nothing.
Launches that come after convergence, most of them as a rule, only copy. The terms have the precision of float32,
relative to X M.

Two regimes as in the definition: `B < H` solves B x B systems, `B >= H` forms the H x H matrices. The large products
are torch's, in the dtype of products; between them, one launch each does all the small work. While a step is captured
as a CUDA graph, products that do not need the series become branches beside it, and those that need the batch alone
(`Begun`) have become some beside the loss and its gradient. The last launch changes the factors in place if no fault
was raised, in this step or before.

Shape letters: B rows, H width of the layer, K targets per row, C classes.
"""

# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls, allow-incomplete-defs
from ctypes import c_float
from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from zloss.kernels.factored_statistics import Begun
from zloss.kernels.tiles import pieces, power_of_2, store_tile, tile, tile_of
from zloss.streams import Branch, is_capturing

# D_5 has 31 terms: enough for the precision of float32 where no eigenvalue of X exceeds one half, which the learning
# rate that is reported as safe makes sure of.
_DOUBLINGS = 4
# |X^16|_F^2, which bounds the first terms left out, |X^32|. They decide on leaps alone; any usual step is far below.
_REMAINDER: tl.constexpr = tl.constexpr(1e-6)
# |X^(2^k)|_F^2 from which on the terms are below the rounding of the first ones.
_NEGLIGIBLE: tl.constexpr = tl.constexpr(1e-18)
# |(I - X)^-1 - I|, from which on the system is nearly singular.
_LEAP = 1e3
# A step that changes a weight by more has left all reason, and may overflow float32 further on.
_LARGEST: tl.constexpr = tl.constexpr(1e15)

# Side of the square tiles of products, how far these go at a time, and how a tile is computed: measured on an H200.
# Small matrices are cut into small tiles, so that there are enough of them.
_SMALL_SIDE = 384
_SMALL: dict[str, Any] = {
    "SIDE": 32,
    "DEPTH": 32,
    "PRECISION": "ieee",
    "num_warps": 4,
    "num_stages": 2,
}
_LARGE: dict[str, Any] = {
    "SIDE": 64,
    "DEPTH": 64,
    "PRECISION": "tf32x3",
    "num_warps": 4,
    "num_stages": 3,
}
_TILE = 32  # side of the square tiles of element-wise work
_STRIP = 128  # entries of a vector to a program
_FEW, _MANY = 8, 1024  # targets that are compared with so many others at a time


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
    begun: Begun | None = None


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
    state: State,
    batch: Batch,
    lr: float,
    weight_decay: float,
    *,
    gradient_fault: int,
    singular_fault: int,
) -> None:
    """Take the step, or raise a fault on the device and change nothing."""
    if not len(batch.h):  # weights decay all the same: a row of zeros stands for none
        row: list[Any] = [part.new_zeros(1, *part.shape[1:]) for part in batch[:-1]]
        batch = Batch(*row)
    rows, width = batch.h.shape
    regime = _ThroughRows if rows < width else _ThroughColumns
    with torch.cuda.device_of(batch.h):
        step = regime(state, batch, lr, weight_decay)
        with step.of_gram, step.of_rest:
            step.prepare(gradient_fault)
            step.solve()
        step.apply(singular_fault)


class _Step:
    """The launches of one step, and what they hand on to each other: until all branches have joined."""

    system: Tensor  # X
    squares: Tensor  # of the entries of K1, in parts
    remainder: Tensor  # of the series, in parts; too large where X is nearly singular
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
        self.bent_h, self.q = torch.empty_like(batch.h), torch.empty_like(batch.h)
        self.half = (
            torch.empty_like(batch.h) if self.rows >= self.width else self.q
        )  # which B < H has no use for
        self.columns = batch.h.new_empty(3, self.rows)
        self.row_sizes = {"H": self.width, "WIDTH": power_of_2(self.width), "num_warps": 4}
        self.of_gram, self.of_rest = Branch(), Branch()

    def prepare(self, gradient_fault: int) -> None:
        """All that is element-wise in the batch."""
        b, s = self.batch, self.state
        _prepare[(self.rows,)](
            *b[:-1], s.omega, s.wbar, s.fault, self.bent_h, self.q, self.half, self.columns,
            *self.rates, self.rows, len(s.V),
            K=self.targets, FAULT=gradient_fault, **self.row_sizes,
        )  # fmt: skip

    def solve(self) -> None:
        raise NotImplementedError

    def make_system(self, inner: Tensor, curvature: Tensor | None) -> None:
        """X: ratio times `inner`, whose columns are multiplied by the curvature if that is given."""
        tiles = pieces(len(inner), _TILE)
        # Whole tiles for the kernels of the series, with zeros beyond the system: memory is read in large pieces then.
        side, dtype = (
            (tiles * _TILE, torch.float32) if is_capturing() else (len(inner), inner.dtype)
        )
        self.system, self.squares = (
            inner.new_empty(side, side, dtype=dtype),
            self.batch.mean.new_empty(tiles**2),
        )
        _make_system[(tiles, tiles)](
            inner, inner if curvature is None else curvature, self.system, self.squares, *self.rates, len(inner), side,
            IS_BENT=curvature is None, SIDE=_TILE, num_warps=4,
        )  # fmt: skip

    def inverse_times(
        self, base: Tensor, rounded: Tensor, *, from_left: bool
    ) -> tuple[Tensor, Tensor]:
        """`(I - X)^-1 base`, or else `base (I - X)^-1`, and by how much it differs from the base.

        `rounded` is the base in float32.
        """
        if is_capturing():
            return self._sum_series(base, rounded, from_left=from_left)
        eye = torch.eye(len(self.system), dtype=base.dtype, device=base.device)
        series: Tensor = torch.linalg.solve_ex(eye - self.system, self.system).result
        self.remainder = (~(series.norm() <= _LEAP)).double().reshape(1)
        change = series @ base if from_left else base @ series
        return base + change, change

    def _sum_series(
        self, base: Tensor, rounded: Tensor, *, from_left: bool
    ) -> tuple[Tensor, Tensor]:
        side, (rows, columns) = len(self.system), base.shape
        manner = _SMALL if side <= _SMALL_SIDE else _LARGE
        of_power = pieces(side, manner["SIDE"]) ** 2
        of_change = pieces(rows, manner["SIDE"]) * pieces(columns, manner["SIDE"])
        # Of the system itself nobody asks the size: it is always multiplied.
        power, squares, change, whole = self.system, self.squares, rounded, rounded
        for number in range(_DOUBLINGS + 1):
            is_first, is_last = number == 0, number == _DOUBLINGS
            next_power, next_squares = power, squares
            if not is_last:
                next_power, next_squares = torch.empty_like(power), squares.new_empty(of_power)
            dtype = base.dtype if is_last else torch.float32
            next_change, next_whole = (
                torch.empty_like(change, dtype=dtype),
                torch.empty_like(change, dtype=dtype),
            )
            _double[((0 if is_last else of_power) + of_change,)](
                power, squares, base, change, whole, next_power, next_squares, next_change, next_whole,
                side, rows, columns, base.stride(0),
                PARTS=power_of_2(of_power), FIRST=is_first, LAST=is_last, FROM_LEFT=from_left, **manner,
            )  # fmt: skip
            power, squares, change, whole = next_power, next_squares, next_change, next_whole
        self.remainder = squares
        return whole, change

    def apply(self, singular_fault: int) -> None:
        """Judge the step, and apply it."""
        b, s, across = self.batch, self.state, pieces(self.width, _TILE)
        _apply[(3 * across**2 + pieces(self.width, _STRIP) + self.rows,)](
            b.classes, b.target_grad, *s, self.gram_change, self.U_change, self.inverse_change, self.rows_of_V,
            self.sums, self.remainder, self.squares, self.weight_decay, *_in_two(self.inverse_scale), *self.rates,
            len(self.squares), len(self.remainder),
            K=self.targets, PARTS=power_of_2(len(self.squares)),
            SIDE=_TILE, STRIP=_STRIP, FAULT=singular_fault, **self.row_sizes,
        )  # fmt: skip


class _ThroughRows(_Step):
    """B < H: X = ratio H H^T A."""

    def prepare(self, gradient_fault: int) -> None:
        with self.of_gram.open():  # the system does not need it
            super().prepare(gradient_fault)
        self.of_rest.follow(self.of_gram)

    def solve(self) -> None:
        b, s, width = self.batch, self.state, self.width
        begun = b.begun or Begun.of(b.h, b.hg, s.pack)
        begun.inner_branch.join()
        self.make_system(begun.inner, b.curvature)
        begun.turned_branch.join()
        with self.of_gram.open():
            self.gram_change = self.change_gram(begun)
        with self.of_rest.open():
            self.U_change = begun.turned[:, :width].T @ self.bent_h
            self.sums = self.columns @ b.h
        self.rows_of_V, _ = self.inverse_times(
            begun.turned[:, width:], begun.rounded, from_left=True
        )
        self.of_rest.join()  # and with it what was prepared
        self.inverse_change = self.rows_of_V.T @ self.bent_h
        self.inverse_scale = self.lr / (1 - self.lr * self.weight_decay)

    def change_gram(self, begun: Begun) -> Tensor:
        b, tiles = self.batch, pieces(self.rows, _TILE)
        self.targets_by_row = b.target_rows @ b.h.T
        self.second = torch.empty_like(begun.inner)
        _make_second[(tiles, tiles)](
            begun.scatter, self.targets_by_row, b.mean, b.curvature, b.classes, b.target_grad, self.second,
            *self.rates, self.rows, len(self.state.V), K=self.targets, SIDE=_TILE, num_warps=4,
        )  # fmt: skip
        return b.h.T @ self.q.addmm_(self.second, b.h)


class _ThroughColumns(_Step):
    """B >= H: X = ratio K1."""

    inverse_scale = 1.0
    k1: Tensor  # (H, H)
    rounded: Tensor  # (H, H) U_inv^T in float32
    first: Tensor  # (B, K) where each target occurs for the first time
    totals: Tensor  # (B K, H) zeros to add up in

    def prepare(self, gradient_fault: int) -> None:
        classes, asked = self.batch.classes, self.batch.classes.numel()
        self.first, self.totals = (
            torch.empty_like(classes),
            self.bent_h.new_empty(asked, self.width),
        )
        with self.of_rest.open():
            self.rounded = self.state.pack[2].float()
            _find_first[(pieces(asked, _FEW),)](
                classes, self.first, self.totals, asked, FEW=_FEW, MANY=_MANY, **self.row_sizes
            )
        super().prepare(gradient_fault)

    def solve(self) -> None:
        b, s = self.batch, self.state
        self.of_rest.join()
        # Alone: all else waits for it, and it has a tile for every processor of a large GPU. One that is taken for a
        # moment would have to do two of them in the end, in twice the time.
        self.k1 = b.h.T @ self.bent_h
        self.make_system(self.k1, None)
        with self.of_gram.open():
            self.sums = self.columns @ b.h
            self.add_repeated()
            self.gram_change = b.h.T @ self.q.addmm_(self.half, self.k1, alpha=self.lr**2)
        with self.of_rest.open():
            self.U_change = s.pack[1] @ self.k1
        inverse, self.inverse_change = self.inverse_times(s.pack[2], self.rounded, from_left=False)
        self.rows_of_V = b.h @ inverse.T

    def add_repeated(self) -> None:
        """`lr^2 (Y Y^T - y y^T / C) H / 2` is added to Q, through the sums of g h over examples that share a target."""
        b, sizes = self.batch, {"K": self.targets, **self.row_sizes}
        _add_up[(self.rows,)](b.h, self.first, b.target_grad, self.totals, **sizes)
        _add_repeated[(self.rows,)](
            self.first,
            b.target_grad,
            self.totals,
            self.sums,
            self.q,
            *self.rates,
            len(self.state.V),
            **sizes,
        )


def _in_two(number: float) -> tuple[float, float]:
    """Two float32 numbers whose sum is `number` to 48 bits."""
    high = c_float(number).value
    return high, number - high


# ---- kernels ---------------------------------------------------------------------------------------------------------


@triton.jit
def _prepare(
    h, hg, mean, curvature, mean_grad, classes, target_grad, target_rows,
    omega, wbar, fault, bent_h, q, half, columns, lr_high, lr_low, keep_high, keep_low, B, C,
    H: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr, FAULT: tl.constexpr,
):  # fmt: skip
    """A H; the first-order part of Q; A H G / 2 + T; what H^T multiplies. A row at a time."""
    lr, keep = _whole(lr_high, lr_low), _whole(keep_high, keep_low)
    i, j = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    inside, here = j < H, i * H + j
    bend, level = tl.load(curvature + i), tl.load(mean_grad + i)
    own = _own_sum(target_grad, i, i >= 0, K)
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
    if not size <= _LARGEST:  # NaN neither, which a sum hands on, but not a maximum
        tl.atomic_or(fault, FAULT)


@triton.jit
def _make_system(
    inner, curvature, system, squares, lr_high, lr_low, keep_high, keep_low, N, padded,
    IS_BENT: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """X = ratio K1, or ratio H H^T A, and the squares of K1, tile by tile."""
    i, j = _own_tile(SIDE)
    bent = tile(inner, i, j, N, N, N).to(tl.float64)
    squared = bent * bent
    if not IS_BENT:
        across = tl.load(curvature + j, mask=j < N, other=0)[None, :]
        # |K1|^2 = tr(H H^T A H H^T A)
        squared *= tl.load(curvature + i, mask=i < N, other=0)[:, None] * across
        bent *= across
    ratio = _whole(lr_high, lr_low) / _whole(keep_high, keep_low)
    store_tile(system, ratio * bent, i, j, padded, padded, padded)
    tl.store(squares + _own_number(), tl.sum(squared))


@triton.jit
def _make_second(
    scatter, targets, mean, curvature, classes, target_grad, second,
    lr_high, lr_low, keep_high, keep_low, B, C, K: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """M, the second-order part of Q over H: `lr^2 ((A H G / 2 + T) H^T A + (Y Y^T - y y^T / C) / 2)`."""
    lr = _whole(lr_high, lr_low)
    i, j = _own_tile(SIDE)
    rows, columns = (
        tl.load(curvature + i, mask=i < B, other=0),
        tl.load(curvature + j, mask=j < B, other=0),
    )
    own, other = _own_sum(target_grad, i, i < B, K), _own_sum(target_grad, j, j < B, K)
    pairs = _equal_targets(classes, target_grad, i, j, B, K) - own[:, None] * (other / C)[None, :]
    # wbar . h is the mean activation.
    centred = (
        tile(targets, i, j, B, B, B)
        - own[:, None] * tl.load(mean + j, mask=j < B, other=0)[None, :]
    )
    bent = (0.5 * rows[:, None] * tile(scatter, i, j, B, B, B) + centred) * columns[None, :]
    store_tile(second, lr * lr * (bent + 0.5 * pairs), i, j, B, B, B)


@triton.jit
def _find_first(
    classes,
    first,
    totals,
    count,
    FEW: tl.constexpr,
    MANY: tl.constexpr,
    H: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Where each target occurs for the first time, and zeros to add up in."""
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
def _add_up(h, first, target_grad, totals, H: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr):
    """The sum of g h over all examples that share a target, where it occurs for the first time."""
    i, j = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    row = tl.load(h + i * H + j, mask=j < H, other=0)
    for k in range(K):
        g = tl.load(target_grad + i * K + k)
        if g != 0:
            place = totals + tl.load(first + i * K + k) * H + j
            tl.atomic_add(place, (g * row).to(row.dtype), mask=j < H, sem="relaxed")


@triton.jit
def _add_repeated(
    first, target_grad, totals, sums, q, lr_high, lr_low, keep_high, keep_low, C,
    H: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """`lr^2 (Y Y^T - y y^T / C) H / 2` is added to a row of Q."""
    lr = _whole(lr_high, lr_low)
    i, j = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    inside = j < H
    own = _own_sum(target_grad, i, i >= 0, K)
    total = -own / C * tl.load(sums + 2 * H + j, mask=inside, other=0)
    for k in range(K):
        shared = tl.load(totals + tl.load(first + i * K + k) * H + j, mask=inside, other=0)
        total += tl.load(target_grad + i * K + k) * shared
    here = q + i * H + j
    changed = tl.load(here, mask=inside, other=0) + 0.5 * lr * lr * total
    tl.store(here, changed.to(q.dtype.element_ty), mask=inside)


@triton.jit
def _double(
    power, squares, base, change, whole, next_power, next_squares, next_change, next_whole,
    N, rows, columns, base_stride,
    PARTS: tl.constexpr, SIDE: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
    FIRST: tl.constexpr, LAST: tl.constexpr, FROM_LEFT: tl.constexpr,
):  # fmt: skip
    """`P^2` with the squares of its entries summed by tile, and `D + P (M + D)`, or `D + (M + D) P` for symmetric P.

    The first launch has no D yet, and the last does without P^2.
    """
    number, across, part = tl.program_id(0), tl.cdiv(N, SIDE), tl.arange(0, PARTS)
    of_power = 0 if LAST else across * across
    size = 1.0 if FIRST else tl.sum(tl.load(squares + part, mask=part < across * across, other=0))
    makes_power = number < of_power
    factor = power if makes_power else whole
    height = N if makes_power else rows
    width = N if makes_power else columns
    i, j = tile_of(number if makes_power else number - of_power, tl.cdiv(width, SIDE), SIDE)
    total = tl.zeros((SIDE, SIDE), tl.float32)
    if not size <= _NEGLIGIBLE:  # NaN goes on, to be found in the end
        for start in range(0, N, DEPTH):
            k = start + tl.arange(0, DEPTH)
            if FROM_LEFT:
                left, right = tile(power, i, k, N, N, N), tile(factor, k, j, height, width, width)
            else:
                # Tensor cores like both operands contiguous along the sum.
                left, right = (
                    tile(factor, i, k, height, width, width),
                    tl.trans(tile(power, j, k, N, N, N)),
                )
            total = tl.dot(left, right, total, input_precision=PRECISION)
    if makes_power:
        store_tile(next_power, total, i, j, N, N, N)
        tl.store(next_squares + number, tl.sum((total * total).to(tl.float64)))
    else:
        if not FIRST:
            total += tile(change, i, j, rows, columns, columns)
        store_tile(next_change, total, i, j, rows, columns, columns)
        # Each time from the base as it is, so that only the sum is rounded.
        store_tile(
            next_whole,
            tile(base, i, j, rows, columns, base_stride) + total,
            i,
            j,
            rows,
            columns,
            columns,
        )


@triton.jit
def _apply(
    classes, target_grad, V, U, U_inv, omega, wbar, gram, pack, fault, report,
    gram_change, U_change, inverse_change, rows_of_V, sums, remainder, squares,
    weight_decay, scale_high, scale_low, lr_high, lr_low, keep_high, keep_low, parts, left_parts,
    H: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr,
    SIDE: tl.constexpr, STRIP: tl.constexpr, FAULT: tl.constexpr,
):  # fmt: skip
    """Change the factors, unless there is a fault."""
    lr, keep = _whole(lr_high, lr_low), _whole(keep_high, keep_low)
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
        _change_rows(V, classes, target_grad, rows_of_V + row * H, -lr / keep, row, H, K, WIDTH)


# ---- parts of kernels ------------------------------------------------------------------------------------------------


@triton.jit
def _whole(high, low):
    """A float64 from its two parts."""
    return tl.cast(high, tl.float64) + low


@triton.jit
def _own_tile(SIDE: tl.constexpr):
    """Rows and columns of the tile that a program of a two-dimensional grid has for its own."""
    return tl.program_id(0) * SIDE + tl.arange(0, SIDE), tl.program_id(1) * SIDE + tl.arange(
        0, SIDE
    )


@triton.jit
def _own_number():
    """The number of that tile."""
    return tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)


@triton.jit
def _own_sum(target_grad, i, here, K: tl.constexpr):
    """y: the sum of the gradients of a row's targets."""
    total = tl.load(target_grad + i * K, mask=here, other=0)
    for k in range(1, K):
        total += tl.load(target_grad + i * K + k, mask=here, other=0)
    return total


@triton.jit
def _equal_targets(classes, target_grad, i, j, B, K: tl.constexpr):
    """Entries of `Y Y^T`: the products of gradients for targets that two rows share."""
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


@triton.jit
def _write_report(report, fault, bits, safe_lr):
    """What was reported of a refused step stays."""
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
    """Atomically, because targets may repeat."""
    j = tl.arange(0, WIDTH)
    row = scale * tl.load(own_row + j, mask=j < H, other=0)
    for k in range(K):
        g, c = tl.load(target_grad + i * K + k), tl.load(classes + i * K + k)
        if g != 0:
            tl.atomic_add(V + c * H + j, (g * row).to(tl.float32), mask=j < H, sem="relaxed")
