"""Hidden layers, and plain SGD on them without gradients of the weights in memory."""

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from zloss.optim import CheckedOptimizer
from zloss.precision import tf32_products
from zloss_lab import kernels

# Pairs (gradient of W x + b, x). The product of a pair is a gradient of W.
GradientFactors = list[tuple[Tensor, Tensor]]


class RectifiedLinear(nn.Linear):
    """A hidden layer, `F.relu(F.linear(x, weight, bias))`.

    Args:
        in_features: width of x.
        out_features: width of the layer.
        tf32: compute the products in TF32, forward and backward, if the device supports it. The setting of torch is
            global; here it is switched during these products only, so that the head keeps its precision.
        device: device of the parameters.
        dtype: type of the parameters.
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
        # If this is a list, the backward pass adds factors to it and makes no gradient of the weight.
        self.grad_factors: GradientFactors | None = None

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_autocast_enabled(x.device.type):
            return F.relu(super().forward(x))
        y: Tensor = _Rectified.apply(  # type: ignore[no-untyped-call]
            x, self.weight, self.bias, self.tf32, self.grad_factors
        )
        return y


class HiddenSGD(CheckedOptimizer):
    """Plain SGD on hidden layers, where `weight -= lr * grad^T x` is one product that is added to the weight in place.

    A gradient in memory would be written, read and added: for wide layers and small batches that takes as long as the
    product itself. The weights have no `.grad`, so their gradients cannot be clipped.

    Args:
        layers: the hidden layers, whose parameters are trained.
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
        """Drop the gradients and the factors of gradients."""
        super().zero_grad(set_to_none)
        for layer in self._layers.values():
            if layer.grad_factors:
                layer.grad_factors.clear()


class _Rectified(torch.autograd.Function):
    """`F.relu(F.linear(x, weight, bias))` with few kernel launches.

    The product adds the bias. On a GPU one kernel computes the gradients of the rectifier and of the bias.
    """

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
    """Return the gradient of W x + b, where `y = relu(W x + b)`, and the gradient of b.

    The gradient of b is the sum of the first one over the examples.
    """
    if grad.device.type == "cuda" and kernels.available():
        masked, total = kernels.load("rectified").grad_through_relu(grad, y)
        return masked, total
    masked = grad.masked_fill(y <= 0, 0)
    return masked, masked.sum(0)
