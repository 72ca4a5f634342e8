"""Keeping the factors well conditioned.

`U^-1` makes V grow where U shrinks; left alone, the condition of U grows without bound and the digits of W drown. The
remedy is to *refactor*: multiply U into V, set it to the identity, and take mean row and Gram matrix anew. That is one
pass over V, in blocks and in place. U drifts in proportion to 1/C, so the passes become rarer as they become dearer.

The watch on it costs O(H^2) a step. On a GPU its verdict reaches the host late, on purpose: see `DeviceReports`.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from zloss.layers.faults import Fault
from zloss.layers.gradient import RecordedGradient
from zloss.layers.precision import finest_dtype
from zloss.layers.update import Step

# Size of the blocks of a pass over V; a pass holds two or three. Larger ones are faster on a GPU, but memory is
# promised to stay near that of V, so that they may grow to a part of it only.
_BLOCK_BYTES = 2**24
_GPU_BLOCK_BYTES, _GPU_PART = 2**27, 32


def materialise_(V: Tensor, U: Tensor, omega: Tensor, product_dtype: torch.dtype) -> None:
    """`V <- V U + 1 omega^T` in place."""
    # V U = s V + V (U - s I) with s I the multiple of the identity nearest to U: near it, only the small second term is
    # subject to the rounding of a product.
    nearest = U.diagonal().mean()
    rest = (U - nearest * torch.eye(len(U), dtype=U.dtype, device=U.device)).to(product_dtype)
    shift = omega.to(product_dtype)
    for block in _row_blocks(V, U.dtype):
        old = block.to(product_dtype)
        block.copy_(torch.addmm(shift, old, rest).addcmul_(old, nearest.to(product_dtype)))


def centred_moments(
    V: Tensor,  # (C, H)
    dtype: torch.dtype,
    product_dtype: torch.dtype,
    *,
    pivot: Tensor | None = None,  # (H,)
    block_bytes: int | None = None,
) -> tuple[Tensor, Tensor]:  # (H,), (H, H)
    """Mean row of V and Gram matrix of V with its mean row taken off, added up in `dtype`.

    A `pivot` that is the mean but for rounding saves one of two passes over V.
    """
    pivot = _mean_row(V, dtype, block_bytes) if pivot is None else pivot.to(dtype)
    total, gram = torch.zeros_like(pivot), V.new_zeros(V.shape[1], V.shape[1], dtype=dtype)
    for block in _row_blocks(V, dtype, block_bytes):
        centred = block - pivot
        total += centred.sum(0)
        centred = centred.to(product_dtype)
        gram += centred.T @ centred
    off = total / V.shape[0]
    return pivot + off, gram - V.shape[0] * torch.outer(off, off)


def _mean_row(V: Tensor, dtype: torch.dtype, block_bytes: int | None) -> Tensor:
    # Sums of differences from one row: a mean that dominates them all is not added up, so rows that are all alike have
    # a Gram matrix of exactly zero.
    pivot = V[0].to(dtype)
    total = torch.zeros_like(pivot)
    for block in _row_blocks(V, dtype, block_bytes):
        total += (block - pivot).sum(0)
    return pivot + total / V.shape[0]


def _row_blocks(V: Tensor, dtype: torch.dtype, block_bytes: int | None = None) -> Iterator[Tensor]:
    block_bytes = block_bytes or _BLOCK_BYTES
    if V.is_cuda:
        block_bytes = max(block_bytes, min(V.nbytes // _GPU_PART, _GPU_BLOCK_BYTES))
    return iter(V.split(max(1, block_bytes // (V.shape[1] * dtype.itemsize))))


def condition_of(U: Tensor, U_inv: Tensor) -> Tensor:  # ()
    """`|U|_F |U^-1|_F / H`: 1 for a multiple of an orthogonal matrix, and within a factor H of the condition number."""
    product: Tensor = U.norm() * U_inv.norm()
    return product / len(U)


class Health(NamedTuple):
    """What the host wants to know of a step."""

    fault: int  # bits of `Fault` that stand
    safe_lr: float  # a learning rate at which P is far from singular
    condition: float  # of U after the step
    scale: float  # |U^-1|_F / sqrt(H): weight decay shrinks U as a whole, which its condition does not show

    @classmethod
    def read(cls, report: Tensor, width: int) -> "Health":
        """From a report: fault, safe lr, then the squared norm of U in parts, then that of U^-1 in as many."""
        report = (
            report.cpu()
        )  # at once: to read it piece by piece would mean to wait for a device twice
        fault, safe_lr = report[:2].tolist()
        U_squares, inverse_squares = report[2:].reshape(2, -1).sum(1).tolist()
        return cls(
            int(fault),
            safe_lr,
            math.sqrt(U_squares * inverse_squares) / width,
            math.sqrt(inverse_squares / width),
        )


def assess(
    step: Step, grad: RecordedGradient, weight_decay: float, largest: float
) -> Tensor:  # (4,)
    """The report on a step that has been computed but not applied, on the device.

    `largest` is the largest number that the dtype of V can hold.
    """
    f = step.factors
    U_norm = f.U.norm()
    # |W_i - wbar| <= sqrt(trace gram) for every row i: what bounds the weights bounds what V must hold.
    size = f.gram.diagonal().sum().clamp_min(0).sqrt() + f.wbar.norm() + f.omega.norm() + U_norm
    is_finite = grad.is_finite() & (size < largest)
    # No eigenvalue of K1 exceeds its norm: half of the inverse keeps every eigenvalue of P above 1/2.
    safe_lr = 0.5 / (step.k1_norm + weight_decay)
    values = (~is_finite * Fault.GRADIENT.value, safe_lr, U_norm.square(), f.U_inv.square().sum())
    return torch.stack([value.to(finest_dtype(U_norm.device)) for value in values])
