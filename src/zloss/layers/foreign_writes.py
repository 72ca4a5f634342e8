"""What others may do to a factored matrix without its knowing: initialise it, average it, replace it.

`W = V U + 1 omega^T` with its mean row and centred Gram matrix is one matrix only while all of them fit. V is a
parameter like any other to whoever goes through the parameters of a model, and its factors are buffers like any other.
"""

import torch
from torch import Tensor

from zloss.layers.precision import exact_products
from zloss.layers.update import Factors

# Of what the factors say of a direction: far above rounding and drift, far below what averages of factors are off.
_FIT = 1e-3
_ROUNDING = 1e-5  # of a row of W, where it is nearly all that rows differ by
_DIRECTIONS = 4
_ROWS = 1 << 16  # of V at a time

Stamp = tuple[int, int]


def stamps(V: Tensor, factors: Factors) -> tuple[Stamp, ...]:
    """Where each tensor is, and how often torch has seen it written to.

    Kernels and replays of graphs are not counted, nor is what is written through `.data`.
    """
    return tuple(
        (tensor.data_ptr(), -1 if tensor.is_inference() else tensor._version)
        for tensor in (V, *factors)
    )


def is_plain(factors: Factors) -> bool:
    """Whether V is W."""
    U = factors.U
    identity = torch.eye(len(U), dtype=U.dtype, device=U.device)
    return not factors.omega.any() and torch.equal(U, identity)


@torch.no_grad()
def is_one_matrix(V: Tensor, factors: Factors) -> bool:
    """Whether V and the factors fit each other, by mean and scatter of W in a few directions: no proof, and one look.

    What is not finite fits: that is for others to find.
    """
    directions = _directions(factors.U)
    with exact_products(V.device.type):
        expected_mean, expected_scatter = (
            factors.wbar @ directions,
            (directions * (factors.gram @ directions)).sum(0),
        )
        shift, through = (
            factors.omega @ directions - expected_mean,
            (factors.U @ directions).to(V.dtype),
        )
        offset, scatter = torch.zeros_like(shift), torch.zeros_like(shift)
        for rows in V.split(_ROWS):
            off = (rows @ through).to(shift.dtype) + shift
            offset += off.sum(0)
            scatter += off.square().sum(0)
    classes = len(V)
    row_squares = factors.gram.trace() / classes + factors.wbar.square().sum()
    rounding = _ROUNDING * (row_squares * directions.square().sum(0)).sqrt()
    misfit = (offset / classes).abs() > _FIT * (expected_scatter / classes).sqrt() + rounding
    misfit |= (
        scatter - expected_scatter
    ).abs() > _FIT * expected_scatter + classes * rounding.square()
    return not bool((misfit & scatter.isfinite() & expected_scatter.isfinite()).any())


def _directions(like: Tensor) -> Tensor:  # (H, H) -> (H, n)
    """The same every time, and no favourites of anybody's weights."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(
        len(like), _DIRECTIONS, generator=generator, dtype=torch.float64, device="cpu"
    ).to(like)
