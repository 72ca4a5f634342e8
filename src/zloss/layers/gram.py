"""The Gram layer: an ordinary dense weight matrix under any optimizer, whose C x H work does not grow with the batch.

A spherical loss needs `sum_i o_i^2 = h^T (W^T W) h`, so one H x H matrix serves the whole batch, and the gradient of W
is `W K1 + 1 e^T` plus the rows of the targets (see `gradient.py`). Both are exact. A step reads W three times and takes
`4 C H^2` operations where logits and their gradients take `6 B C H`: fewer from `B > 2/3 H` on, and B x C logits are
never held.

Shape letters: B rows, H width of the layer (with the bias column where there is one), K targets per row, C classes.
"""

from typing import Any

import torch
from torch import Tensor

from zloss.inputs import check_hidden, check_same_device, with_bias_column
from zloss.layers.dense import DenseLinear
from zloss.layers.matrix import centred_moments
from zloss.layers.storage import InMemory
from zloss.limits import first_derivatives_only
from zloss.precision import default_product_dtype, exact_products, finest_dtype
from zloss.stats import SphericalStats, stats_of_layer
from zloss.targets import Targets, checked_targets

# Of a pass over W in the forward pass: enough for a GPU to be busy, little beside the gradient of W.
_BLOCK_BYTES = 2**27


class GramLinear(DenseLinear):
    """A dense layer for users who must have Adam, momentum or any other optimizer with a spherical loss.

    The same weights, the same statistics and the same gradients as `DenseLinear`, from the Gram matrix of W instead of
    from logits. It pays when the batch is well above the width: `B > 2/3 H` by operations, and earlier where the logits
    do not fit into memory. Where plain SGD will do, `FactoredLinear` is faster than both by orders of magnitude.

    >>> layer = GramLinear(8, 1000)
    >>> optimizer = torch.optim.Adam(layer.parameters())
    >>> loss = zloss.ZLoss(a=0.1, b=10)(layer(torch.randn(64, 8), torch.randint(1000, (64,))))
    >>> loss.backward()
    >>> optimizer.step()
    """

    def forward(self, h: Tensor, target: Tensor | Targets) -> SphericalStats:
        weight, bias = self.linear.weight, self.linear.bias
        check_hidden(h, self.in_features, weight)
        check_same_device(h, target)
        targets = checked_targets(target, len(h), self.num_classes, self.ignore_index)
        columns = weight if bias is None else torch.cat([weight, bias[:, None]], 1)
        scores, mean, scatter = GramStatistics.apply(h, columns, targets)  # type: ignore[no-untyped-call]
        return stats_of_layer(
            scores.reshape(target.shape),
            mean,
            scatter,
            self.num_classes,
            valid=targets.valid.reshape(target.shape),
            classes=targets.index.reshape(target.shape),
            ignore_index=self.ignore_index,
        )


class GramStatistics(torch.autograd.Function):
    """`(h, W) -> (target scores, mean, scatter)` of the activations `h @ W^T`, without forming them."""

    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,  # (B, H)
        weight: Tensor,  # (C, H)
        targets: Targets,
    ) -> tuple[Tensor, Tensor, Tensor]:
        with exact_products(h.device.type):
            state_dtype = torch.promote_types(finest_dtype(h.device), weight.dtype)
            product_dtype = default_product_dtype(h.device, weight.dtype)
            rows = InMemory(weight, _BLOCK_BYTES)
            wbar, gram = centred_moments(rows, state_dtype, product_dtype)
            hs = with_bias_column(h.to(state_dtype), weight.shape[1])
            hg, mean = hs @ gram, hs @ wbar
            own = weight[targets.index]  # (B, K, H)
            scores = torch.where(targets.valid, (own * hs[:, None]).sum(-1), 0)
            scatter = (hs * hg).sum(1).clamp_min(0)
        ctx.save_for_backward(weight, hs, hg, wbar, own, targets.index, targets.valid)
        ctx.h_dtype, ctx.h_width = h.dtype, h.shape[1]
        # Half precision is for products, not for sums over classes: as from logits.
        wide = torch.promote_types(weight.dtype, torch.float32)
        return scores.to(wide), mean.to(wide), scatter.to(wide)

    @staticmethod
    @first_derivatives_only
    def backward(
        ctx: Any, score_grad: Tensor, mean_grad: Tensor, scatter_grad: Tensor
    ) -> tuple[Tensor | None, ...]:
        weight, hs, hg, wbar, rows, index, valid = ctx.saved_tensors
        target_grad = torch.where(valid, score_grad.to(hs.dtype), 0)
        mean_grad, curvature = mean_grad.to(hs.dtype), 2 * scatter_grad.to(hs.dtype)
        grad_h = grad_weight = None
        with exact_products(hs.device.type):
            if ctx.needs_input_grad[0]:
                own = (rows * target_grad[..., None]).sum(1)
                full = curvature[:, None] * hg + mean_grad[:, None] * wbar + own
                grad_h = full[:, : ctx.h_width].to(ctx.h_dtype)
            if ctx.needs_input_grad[1]:
                # dL/dW = (W - 1 wbar^T) K1 + 1 (H^T dL/dmean)^T / C + the rows of the targets
                k1 = hs.T @ (curvature[:, None] * hs)
                every_row = hs.T @ mean_grad / len(weight) - k1 @ wbar
                grad_weight = torch.addmm(every_row.to(weight.dtype), weight, k1.to(weight.dtype))
                update = (target_grad[..., None] * hs[:, None]).flatten(0, 1)
                grad_weight.index_add_(0, index.flatten(), update.to(weight.dtype))
        return grad_h, grad_weight, None
