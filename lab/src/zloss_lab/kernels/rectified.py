"""The backward pass of a rectifier and a bias in one kernel launch.

For y = relu(W x + b) the kernel makes the gradients of W x + b and of b from the gradient of y. One program takes the
sum over all examples for its columns, in the same order every time.

Shape letters: B examples, H width.
"""

# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls, allow-incomplete-defs
import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from zloss.kernels.tiles import pieces

# The tile of one program. It is narrow, because a program reads all rows of its columns, and many programs are wanted.
_ROWS, _COLUMNS, _WARPS = 256, 16, 4


def grad_through_relu(
    grad: Tensor,  # (B, H), of y
    y: Tensor,  # (B, H)
) -> tuple[Tensor, Tensor]:  # (B, H), (H,)
    """Return `g = grad.masked_fill(y <= 0, 0)` and `g.sum(0)`."""
    num, width = y.shape
    masked = torch.empty(num, width, dtype=grad.dtype, device=grad.device)
    total = torch.empty(width, dtype=grad.dtype, device=grad.device)
    with torch.cuda.device_of(grad):
        _grad_through_relu[(pieces(width, _COLUMNS),)](
            grad.contiguous(),
            y.contiguous(),
            masked,
            total,
            num,
            H=width,
            ACC=tl.float64 if grad.dtype == torch.float64 else tl.float32,
            ROWS=_ROWS,
            COLUMNS=_COLUMNS,
            num_warps=_WARPS,
        )
    return masked, total


@triton.jit
def _grad_through_relu(
    grad,
    y,
    masked,
    total,
    B,
    H: tl.constexpr,
    ACC: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    c = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros((ROWS, COLUMNS), ACC)
    for start in range(0, B, ROWS):
        r = start + tl.arange(0, ROWS)
        inside = (r < B)[:, None] & (c < H)[None, :]
        here = r[:, None].to(tl.int64) * H + c[None, :]
        g = tl.load(grad + here, mask=inside, other=0).to(ACC)
        # Not `y > 0`: like torch, this keeps the gradient where y is NaN, so that a NaN is not hidden.
        g = tl.where(tl.load(y + here, mask=inside, other=0) <= 0, 0.0, g)
        tl.store(masked + here, g, mask=inside)
        sums += g
    tl.store(total + c, tl.sum(sums, 0), mask=c < H)
