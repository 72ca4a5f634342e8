"""Shared parts of the kernels: tiles of row-major matrices, and the arithmetic that cuts a matrix into tiles."""

# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls, allow-incomplete-defs
from dataclasses import dataclass

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

ENTRYWISE_SIDE = 32  # of the square tiles of matrices that are computed entry by entry


@dataclass(frozen=True)
class Tile:
    """A part of a matrix that one program holds in registers: `elements` entries, at most `columns` wide."""

    elements: int
    columns: int
    warps: int

    def shape(self, width: int) -> tuple[int, int]:
        """Return the numbers of rows and columns for a matrix of this width."""
        columns = min(self.columns, power_of_2(width))
        return self.elements // columns, columns


# Triton has such functions too, but one call of them takes the host as long as an addition takes the device.
def pieces(length: int, size: int) -> int:
    """Return how many pieces of this size cover the length."""
    return -(-length // size)


def power_of_2(number: int) -> int:
    """Return the smallest power of two that is at least `number`."""
    return 1 << (number - 1).bit_length()


def accumulator(dtype: torch.dtype) -> tl.dtype:
    """Return the dtype in which kernels add up products of this dtype."""
    return tl.float64 if dtype == torch.float64 else tl.float32


@triton.jit
def places(i, j, stride):
    """Return the offsets of the entries (i, j) of a row-major matrix."""
    return i[:, None].to(tl.int64) * stride + j[None, :]


@triton.jit
def within(i, j, rows, columns):
    """Return a mask of the entries (i, j) that lie inside a matrix of this shape."""
    return (i < rows)[:, None] & (j < columns)[None, :]


@triton.jit
def tile(matrix, i, j, rows, columns, stride):
    """Return the entries (i, j) of a row-major matrix, 0 outside of it."""
    return tl.load(matrix + places(i, j, stride), mask=within(i, j, rows, columns), other=0)


@triton.jit
def store_tile(matrix, values, i, j, rows, columns, stride):
    """Write the entries (i, j) of a row-major matrix."""
    tl.store(
        matrix + places(i, j, stride),
        values.to(matrix.dtype.element_ty),
        mask=within(i, j, rows, columns),
    )


@triton.jit
def store_sums(pointer, x, mask):
    """Write sums from an accumulator into memory of any floating-point dtype."""
    # There is no direct conversion from float64 to bfloat16.
    if pointer.dtype.element_ty != tl.float64:
        x = x.to(tl.float32)
    tl.store(pointer, x, mask=mask)


@triton.jit
def tile_of(number, across, SIDE: tl.constexpr):
    """Return the rows and the columns of a square tile by its number."""
    return (number // across) * SIDE + tl.arange(0, SIDE), (number % across) * SIDE + tl.arange(
        0, SIDE
    )


@triton.jit
def own_tile(SIDE: tl.constexpr):
    """Return the rows and the columns of the square tile that belongs to a program of a two-dimensional grid."""
    return tl.program_id(0) * SIDE + tl.arange(0, SIDE), tl.program_id(1) * SIDE + tl.arange(
        0, SIDE
    )
