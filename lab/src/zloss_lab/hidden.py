"""Hidden layers, and SGD on them that never forms the gradients of their weights."""

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from zloss.optim import PlainSGD
from zloss.precision import tf32_products
from zloss_lab import kernels

GradientFactors = list[
    tuple[Tensor, Tensor]
]  # pairs (gradient of what is rectified, x): their products are gradients


class RectifiedLinear(nn.Linear):
    """A hidden layer, `F.relu(F.linear(x, weight, bias))`.

    Args:
        in_features: width of x.
        out_features: width of the layer.
        tf32: products in TF32 where the device has it, forward and backward, whatever the global setting is. That is
            global in torch; here it holds during these products only, so that the head keeps its precision.
        device: where it is made.
        dtype: of the parameters.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        tf32: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, device=device, dtype=dtype)
        self.tf32 = tf32
        self.grad_factors: GradientFactors | None = (
            None  # where these are kept, no gradient of the weight is formed
        )

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_autocast_enabled(x.device.type):
            return F.relu(super().forward(x))
        y: Tensor = _Rectified.apply(x, self.weight, self.bias, self.tf32, self.grad_factors)  # type: ignore[no-untyped-call]
        return y


class HiddenSGD(PlainSGD):
    """Plain SGD on hidden layers: `weight -= lr * grad^T x` is a single product, which adds to the weight in place.

    A gradient in memory would be written, read and added: for wide layers and small batches that takes as long as the
    product. Such weights have no `.grad`, so that nothing can clip it.

    Args:
        layers: all of whose parameters are trained.
        lr: learning rate.
        weight_decay: L2 penalty.
    """

    def __init__(
        self, layers: Iterable[RectifiedLinear], lr: float, *, weight_decay: float = 0.0
    ) -> None:
        self._layers = {layer.weight: layer for layer in layers}
        parameters = [
            parameter for layer in self._layers.values() for parameter in layer.parameters()
        ]
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})
        for layer in self._layers.values():
            layer.grad_factors = []

    def _descend(self, parameter: Tensor, group: dict[str, Any]) -> None:
        lr, keep = group["lr"], 1 - group["lr"] * group["weight_decay"]
        layer = self._layers.get(parameter)
        if layer is not None and layer.grad_factors:
            with tf32_products(layer.tf32):
                for grad, x in layer.grad_factors:
                    parameter.addmm_(grad.T, x, beta=keep, alpha=-lr)
                    keep = 1.0
            layer.grad_factors.clear()
        elif parameter.grad is not None:
            if keep != 1:
                parameter.mul_(keep)
            parameter.add_(parameter.grad, alpha=-lr)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, in whatever form."""
        super().zero_grad(set_to_none)
        for layer in self._layers.values():
            if layer.grad_factors:
                layer.grad_factors.clear()


class _Rectified(torch.autograd.Function):
    """`F.relu(F.linear(x, weight, bias))` with few launches: the product adds the bias, and one takes both back."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        tf32: bool,
        grad_factors: GradientFactors | None,
    ) -> Tensor:
        with tf32_products(tf32):
            y = F.linear(x, weight, bias).relu_()
        ctx.save_for_backward(x, weight, y)
        ctx.tf32, ctx.grad_factors = tf32, grad_factors
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, y = ctx.saved_tensors
        grad, grad_bias = _grad_through_relu(grad, y)
        with tf32_products(ctx.tf32):
            grad_x = grad @ weight
            if ctx.grad_factors is None:
                return grad_x, grad.T @ x, grad_bias, None, None
        ctx.grad_factors.append((grad, x))
        return grad_x, None, grad_bias, None, None


def _grad_through_relu(grad: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Of what y is rectified from, and its sum over the examples, which is the gradient of the bias."""
    if grad.device.type == "cuda" and kernels.available():
        masked, total = kernels.load("rectified").grad_through_relu(grad, y)
        return masked, total
    masked = grad.masked_fill(y <= 0, 0)
    return masked, masked.sum(0)
