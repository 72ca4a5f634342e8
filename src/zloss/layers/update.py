"""One exact SGD step on the factors `W = V U + 1 omega^T`, as pure functions; docs/mathematics.md derives it.

The dense step is `W <- W P - lr (1 (H^T g_s)^T + Y^T H)` with the symmetric `P = (1 - lr decay) I - lr K1`. Its dense
part multiplies U from the right. Its sparse part goes to the target rows of V through the new `U^-1`. The mean row and
the centred Gram matrix follow in closed form. Nothing here has C rows.

`P` is the identity plus a matrix of rank B. Two regimes share one result: `B < H` works with B x B systems and never
forms P (Woodbury), `B >= H` forms the H x H matrices.

The gradients of looked-up rows are rows below the batch. They are part of Y^T H alone, so P does not have them.

Shape letters: B rows of the batch, M rows with those below it, H width of the layer, C classes.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from zloss.layers.gradient import RecordedGradient


class Factors(NamedTuple):
    """The small state of a factored layer: everything except V."""

    U: Tensor  # (H, H)
    U_inv: Tensor  # (H, H)
    omega: Tensor  # (H,)
    wbar: Tensor  # (H,) mean row of W
    gram: Tensor  # (H, H) Gram matrix of W with its mean row taken off


class Step(NamedTuple):
    """The factors after a step, and what the step subtracts from the rows of V: `V[t] -= lr g_t row`."""

    factors: Factors
    rows: Tensor  # (M, H) H U_inv, with the new U_inv
    k1_norm: (
        Tensor  # () Frobenius norm of K1: P is far from singular while lr times it is well below 1
    )


def exact_step(
    factors: Factors, grad: RecordedGradient, lr: float, weight_decay: float, num_classes: int
) -> Step:
    """Return the step of dense SGD on W, applied to the factors. Changes nothing in place.

    Where P is singular `U_inv` and `rows` come out non-finite or huge. The other factors are right even then.
    """
    # A tensor, so that keep = 0 (P singular) divides to inf as IEEE has it instead of raising. It has no axis, so it
    # changes no dtype of products.
    keep = torch.full_like(factors.omega[0], 1 - lr * weight_decay)
    regime = _low_rank if len(grad.batch) < grad.h.shape[1] else _full_rank
    U, gram, U_inv, rows, k1_norm = regime(factors, grad, lr, keep, num_classes)
    if len(below := grad.h[len(rows) :]):
        # In the dtype of the state: such a change can be many times as large as the row itself.
        rows = torch.cat([rows, (below @ U_inv.to(below.dtype)).to(rows.dtype)])
    column = grad.curvature * (grad.batch @ factors.omega) + grad.sum_grad
    omega = keep * factors.omega - lr * (grad.batch.T @ column)
    wbar = keep * factors.wbar - lr * (
        grad.h.T @ (grad.padded(grad.mean_grad) + grad.target_grad_sum / num_classes)
    )
    return Step(Factors(U, U_inv, omega, wbar, gram), rows, k1_norm)


_Matrices = tuple[
    Tensor, Tensor, Tensor, Tensor, Tensor
]  # U, gram, U_inv, rows of the batch, k1_norm


def _low_rank(
    f: Factors, grad: RecordedGradient, lr: float, keep: Tensor, num_classes: int
) -> _Matrices:
    dtype = grad.hg.dtype
    h, a = grad.h.to(dtype), grad.curvature.to(dtype)[:, None]
    batch = h[: len(a)]
    ah, bend = a * batch, grad.padded(a * grad.hg)
    # gram <- P gram P - lr (P R + R^T P) + lr^2 N is keep^2 gram plus H^T X and its transpose.
    y = grad.target_grad_sum[:, None]
    rows_t = grad.centred_target_rows(f.wbar).to(dtype)
    second = ((0.5 * bend + rows_t) @ batch.T) @ ah
    second += 0.5 * (grad.repeated_targets() - y * ((y.T @ grad.h) / num_classes)).to(dtype)
    htx = h.T @ (lr * lr * second - lr * keep * (bend + rows_t))
    gram = keep**2 * f.gram + (htx + htx.T)
    hu = batch @ f.U.T.to(dtype) if grad.hu is None else grad.hu
    U = keep * f.U - lr * (hu.T @ ah)
    # P^-1 = (I + r H^T A S H) / keep with S = (I - r H H^T A)^-1, and H P^-1 = S H / keep. The system is solved for
    # rows of length 1, which leaves P as it is: beside long rows, a short one would lose its digits.
    ratio = lr / keep
    length = batch.norm(dim=1, keepdim=True)
    unit, unit_a = batch / length.clamp_min(torch.finfo(dtype).tiny), a * length.square()
    hha = (unit @ unit.T) * unit_a.T
    system = torch.eye(len(batch), dtype=dtype, device=h.device) - ratio * hha
    solved = torch.linalg.solve_ex(system, unit @ f.U_inv.to(dtype)).result
    U_inv = (f.U_inv + ratio * ((unit_a * unit).T @ solved)) / keep
    k1_norm = (hha * hha.T).sum().clamp_min(0).sqrt()  # |K1|^2 = tr(H H^T A H H^T A)
    return U, gram, U_inv, solved * (length / keep), k1_norm


def _full_rank(
    f: Factors, grad: RecordedGradient, lr: float, keep: Tensor, num_classes: int
) -> _Matrices:
    dtype, width = grad.hg.dtype, grad.h.shape[1]
    h = grad.h.to(dtype)
    y = grad.h.T @ grad.target_grad_sum
    parts = (grad.centred_target_rows(f.wbar), grad.repeated_targets())
    r_t, n = (h.T @ torch.cat([part.to(dtype) for part in parts], dim=1)).split(width, dim=1)
    batch = h[: len(grad.curvature)]
    k1 = batch.T @ (grad.curvature[:, None] * grad.batch).to(dtype)
    # The same change of gram as above, X + X^T, through H x H matrices.
    bent = f.gram.to(dtype) @ k1
    x = (
        lr
        * lr
        * (k1 @ (0.5 * bent + r_t.T) + 0.5 * (n - torch.outer(y, y).to(dtype) / num_classes))
    )
    x -= lr * keep * (bent.T + r_t.T)
    gram = keep**2 * f.gram + (x + x.T)
    U = keep * f.U - lr * (f.U.to(dtype) @ k1)
    # U_inv <- P^-1 U_inv as a change, so that products may be coarser than the state: P^-1 = I + P^-1 (I - P).
    P = keep * torch.eye(width, dtype=dtype, device=h.device) - lr * k1
    U_inv_p = f.U_inv.to(dtype)
    change = torch.linalg.solve_ex(P, (1 - keep) * U_inv_p + lr * (k1 @ U_inv_p)).result
    U_inv = f.U_inv + change
    return U, gram, U_inv, batch @ U_inv.to(dtype), torch.linalg.matrix_norm(k1)
