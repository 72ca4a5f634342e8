"""The linear system `I - X` of an exact step, and products with its inverse. X is lr times the curvature of the loss.

Torch factorises the system, which takes a GPU half a millisecond. Usually this does not matter, because the host needs
longer to launch the step. In a step that is captured as a CUDA graph it does matter. There kernels sum the series of
the inverse, multiplied by M. Each launch doubles the number of terms:

    (I - X)^-1 M = M + D_n + O(X^(2^n)),      D_1 = X M,      D_(k+1) = D_k + X^(2^k) (M + D_k)

The sum is exact enough while no eigenvalue of X is far above one half, which is true for any step that is not a leap.
This is checked: for a leap the last launch of the step raises a fault, and changes nothing. After convergence the
remaining launches only copy, and these are most launches as a rule. The terms have the precision of float32, relative
to X M.
"""

# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls, allow-incomplete-defs
from typing import Any

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from zloss.kernels.rates import Rates, whole
from zloss.kernels.tiles import (
    ENTRYWISE_SIDE,
    own_tile,
    pieces,
    power_of_2,
    store_tile,
    tile,
    tile_of,
)
from zloss.streams import is_capturing

# D_5 has 31 terms. They give the precision of float32 if no eigenvalue of X exceeds one half. The learning rate that is
# reported as safe makes sure of that.
_DOUBLINGS = 4
# From this |X^(2^k)|_F^2 down, further terms are smaller than the rounding of the first ones.
_NEGLIGIBLE: tl.constexpr = tl.constexpr(1e-18)
# From this |(I - X)^-1 - I| up, the system is nearly singular. Rows of V grow as much, and their rounding with them.
_LEAP = 50.0
# The largest spectral radius of X of a step that is precise enough. The step stretches W by up to one more than this.
# U^-1 shrinks by the same factor, so that digits of a float32 inverse cancel. With float64 the rounding of V is left,
# which the step stretches too.
_MOST_STRETCH = {torch.float32: 4.0, torch.float64: 100.0}

# Tiles of products: their side, the depth of the sum that is added at a time, and the launch. Measured on an H200.
# Small matrices are cut into small tiles, so that there are enough tiles for all processors.
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


class System:
    """The matrix X of a step, with norms that decide whether the step is safe."""

    remainder: Tensor  # in parts: what the inverse leaves out, or 1 where I - X is nearly singular

    def __init__(self, inner: Tensor, curvature: Tensor | None, rates: Rates) -> None:
        """Make X: ratio times `inner`, with its columns multiplied by the curvature if that is given."""
        tiles = pieces(len(inner), ENTRYWISE_SIDE)
        # The kernels of the series get whole tiles, filled up with zeros: they read memory in large pieces then.
        side, dtype = (
            (tiles * ENTRYWISE_SIDE, torch.float32) if is_capturing() else (len(inner), inner.dtype)
        )
        self.matrix = inner.new_empty(side, side, dtype=dtype)
        self.squares = inner.new_empty(tiles**2, dtype=torch.float64)  # of entries of K1, in parts
        _make_system[(tiles, tiles)](
            inner, inner if curvature is None else curvature, self.matrix, self.squares, *rates, len(inner), side,
            IS_BENT=curvature is None, SIDE=ENTRYWISE_SIDE, num_warps=4,
        )  # fmt: skip

    def inverse_times(
        self, base: Tensor, rounded: Tensor, *, from_left: bool
    ) -> tuple[Tensor, Tensor]:
        """Return `(I - X)^-1 base`, or else `base (I - X)^-1`, and its difference from the base.

        `rounded` is the base in float32.
        """
        if is_capturing():
            return self._sum_series(base, rounded, from_left=from_left)
        eye = torch.eye(len(self.matrix), dtype=base.dtype, device=base.device)
        series: Tensor = torch.linalg.solve_ex(eye - self.matrix, self.matrix).result
        # No eigenvalue of X exceeds the root of |X^2|_F.
        stretch = (self.matrix @ self.matrix).norm()
        is_sound = (series.norm() <= _LEAP) & (stretch <= _MOST_STRETCH[base.dtype] ** 2)
        self.remainder = (~is_sound).double().reshape(1)
        change = series @ base if from_left else base @ series
        return base + change, change

    def _sum_series(
        self, base: Tensor, rounded: Tensor, *, from_left: bool
    ) -> tuple[Tensor, Tensor]:
        side, (rows, columns) = len(self.matrix), base.shape
        product = _SMALL if side <= _SMALL_SIDE else _LARGE
        of_power = pieces(side, product["SIDE"]) ** 2
        of_change = pieces(rows, product["SIDE"]) * pieces(columns, product["SIDE"])
        # The first launch always multiplies, whatever the norm of X is.
        power, squares, change, total = self.matrix, self.squares, rounded, rounded
        for number in range(_DOUBLINGS + 1):
            is_first, is_last = number == 0, number == _DOUBLINGS
            next_power, next_squares = power, squares
            if not is_last:
                next_power, next_squares = torch.empty_like(power), squares.new_empty(of_power)
            dtype = base.dtype if is_last else torch.float32
            next_change, next_total = (
                torch.empty_like(change, dtype=dtype),
                torch.empty_like(change, dtype=dtype),
            )
            _double_terms[((0 if is_last else of_power) + of_change,)](
                power, squares, base, change, total, next_power, next_squares, next_change, next_total,
                side, rows, columns, base.stride(0),
                PARTS=power_of_2(of_power), FIRST=is_first, LAST=is_last, FROM_LEFT=from_left, **product,
            )  # fmt: skip
            power, squares, change, total = next_power, next_squares, next_change, next_total
        self.remainder = squares
        return total, change


@triton.jit
def _make_system(
    inner, curvature, system, squares, lr_high, lr_low, keep_high, keep_low, N, padded,
    IS_BENT: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """Compute a tile of X = ratio K1, or of X = ratio H H^T A, and the sum of its squares in K1."""
    i, j = own_tile(SIDE)
    bent = tile(inner, i, j, N, N, N).to(tl.float64)
    squared = bent * bent
    if not IS_BENT:
        across = tl.load(curvature + j, mask=j < N, other=0)[None, :]
        # |K1|^2 = tr(H H^T A H H^T A)
        squared *= tl.load(curvature + i, mask=i < N, other=0)[:, None] * across
        bent *= across
    ratio = whole(lr_high, lr_low) / whole(keep_high, keep_low)
    store_tile(system, ratio * bent, i, j, padded, padded, padded)
    number = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    tl.store(squares + number, tl.sum(squared))


@triton.jit
def _double_terms(
    power, squares, base, change, whole, next_power, next_squares, next_change, next_whole,
    N, rows, columns, base_stride,
    PARTS: tl.constexpr, SIDE: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
    FIRST: tl.constexpr, LAST: tl.constexpr, FROM_LEFT: tl.constexpr,
):  # fmt: skip
    """Compute `P^2` with the sums of its squared entries by tile, and `D + P (M + D)`.

    With `FROM_LEFT` False, P is symmetric and the second result is `D + (M + D) P`. The first launch has no D yet, and
    the last one does not compute P^2.
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
    if not size <= _NEGLIGIBLE:  # NaN is passed on, so that the last launch finds it
        for start in range(0, N, DEPTH):
            k = start + tl.arange(0, DEPTH)
            if FROM_LEFT:
                left, right = tile(power, i, k, N, N, N), tile(factor, k, j, height, width, width)
            else:
                # Tensor cores are faster if both operands are contiguous along the sum.
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
        # The sum always starts from the unrounded base, so that only the result is rounded.
        store_tile(
            next_whole,
            tile(base, i, j, rows, columns, base_stride) + total,
            i,
            j,
            rows,
            columns,
            columns,
        )
