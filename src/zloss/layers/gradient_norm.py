"""The norm of the gradient of the C x H weight matrix, from its record: what clipping needs, and a step does not.

Shape letters: B rows of the batch, M rows with those below it, H width of the layer, C classes.
"""

from torch import Tensor

from zloss.layers.gradient import RecordedGradient
from zloss.precision import exact_products


def norm_of(grad: RecordedGradient, wbar: Tensor, num_classes: int) -> Tensor:  # ()
    """Return the Frobenius norm of the full C x H gradient, without forming it.

    The gradient splits into a part whose columns sum to zero and the rank-one rest `1 e^T`; the squared norms add.
    """
    with exact_products(wbar.device.type):
        y = grad.target_grad_sum
        h, batch = grad.h.to(y.dtype), grad.batch.to(y.dtype)
        a = grad.curvature[:, None]
        hy = h.T @ y
        e = batch.T @ grad.mean_grad + hy / num_classes
        bend_and_rows = grad.padded(a * grad.hg) + 2 * grad.centred_target_rows(wbar)
        if len(batch) < h.shape[1]:  # through M x B matrices
            weights = (bend_and_rows @ batch.T) * grad.curvature
            dense_part = (weights * (h @ batch.T)).sum()
        else:  # through H x H matrices
            k1 = batch.T @ (a * batch)
            dense_part = ((h.T @ bend_and_rows) * k1).sum()
        sparse_part = (h * grad.repeated_targets()).sum() - hy @ hy / num_classes
        return (dense_part + sparse_part + num_classes * (e @ e)).clamp_min(0).sqrt()
