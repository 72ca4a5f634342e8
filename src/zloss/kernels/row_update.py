"""A kernel that adds to some rows of a matrix in one pass, as SGD does with a row-sparse gradient.

It computes `matrix.index_add_(0, rows, values, alpha=scale)`. Torch uses atomic additions, because rows may be
repeated. If no row occurs twice, the kernel needs none.

In the gradient of an embedding rows may be repeated, like words of a text. Then the kernel uses atomic additions too.
They have no fixed order, so the last bits of such sums differ from run to run. The kernel computes in float32, because
Triton takes only float32 numbers from the host. Torch is left to do float64.

Shape letters: C rows of the matrix, H width, R rows to add.
"""

# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls, allow-incomplete-defs
import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from zloss.kernels.tiles import pieces, power_of_2

# The rows and columns of one program: measured on an H200 at R = 178,000, H = 512.
_ROWS, _COLUMNS, _WARPS = 8, 512, 4
# Gradients of embeddings have few rows. Smaller programs are enough programs to keep the device busy.
_REPEATED_ROWS = 2


def add_rows_(
    matrix: Tensor,  # (C, H)
    rows: Tensor,  # (R,) int64
    values: Tensor,  # (R, H)
    scale: float,
    *,
    repeated: bool = False,
) -> None:
    """Add `scale * values` to `matrix[rows]`. Rows may occur several times if `repeated`, for float32 matrices only."""
    num, width = values.shape
    if not matrix.is_contiguous():
        raise ValueError(f"the matrix must be contiguous, got strides {matrix.stride()}")
    if repeated and matrix.dtype != torch.float32:
        raise ValueError(f"repeated rows can be added to a float32 matrix only, got {matrix.dtype}")
    if num:
        each = _REPEATED_ROWS if repeated else _ROWS
        with torch.cuda.device_of(matrix):
            _add_rows[(pieces(num, each),)](
                matrix,
                rows.contiguous(),
                values.contiguous(),
                scale,
                num,
                H=width,
                REPEATED=repeated,
                ROWS=each,
                COLUMNS=min(_COLUMNS, power_of_2(width)),
                num_warps=_WARPS,
            )


@triton.jit
def _add_rows(
    matrix,
    rows,
    values,
    scale,
    R,
    H: tl.constexpr,
    REPEATED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row = tl.load(rows + r, mask=r < R, other=0)
    for start in range(0, H, COLUMNS):
        c = start + tl.arange(0, COLUMNS)
        inside = (r < R)[:, None] & (c < H)[None, :]
        here = matrix + row[:, None] * H + c[None, :]
        change = scale * tl.load(values + r[:, None] * H + c[None, :], mask=inside).to(tl.float32)
        if REPEATED:
            # No program of this launch reads a value that another one wrote, so the order of memory may be relaxed.
            tl.atomic_add(here, change, mask=inside, sem="relaxed")
        else:
            tl.store(here, tl.load(here, mask=inside).to(tl.float32) + change, mask=inside)
