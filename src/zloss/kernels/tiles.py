"""What kernels share: parts of row-major matrices, and the arithmetic of cutting things up."""

# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls, allow-incomplete-defs
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]


@triton.jit
def places(i, j, stride):
    """Where the entries (i, j) of a row-major matrix are."""
    return i[:, None].to(tl.int64) * stride + j[None, :]


@triton.jit
def within(i, j, rows, columns):
    """Which entries (i, j) a matrix of this shape has."""
    return (i < rows)[:, None] & (j < columns)[None, :]


@triton.jit
def tile(matrix, i, j, rows, columns, stride):
    """The entries (i, j) of a row-major matrix, 0 outside of it."""
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
def tile_of(number, across, SIDE: tl.constexpr):
    """Rows and columns of a square tile by its number."""
    return (number // across) * SIDE + tl.arange(0, SIDE), (number % across) * SIDE + tl.arange(
        0, SIDE
    )


# Triton's own functions for these take the host as long as an addition takes the device.
def pieces(length: int, size: int) -> int:
    """How many pieces of this size cover the length."""
    return -(-length // size)


def power_of_2(number: int) -> int:
    """The smallest power of two that is no smaller."""
    return 1 << (number - 1).bit_length()
