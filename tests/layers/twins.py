"""Twins: a factored layer and its dense definition, driven with the same batches and compared after every step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import zloss

# Losses with a learning rate at which a layer of some hundred classes moves by more than its own norm in 300 steps. At
# five times the rate the two likelihoods train chaotically: dense SGD itself, disturbed by 1e-15, ends up 1e-8 away.
SPHERICAL_LOSSES: list[tuple[zloss.SphericalLoss, float]] = [
    (zloss.ZLoss(a=0.2, b=8.0), 20.0),
    (zloss.SquaredError(), 0.02),
    (zloss.TaylorSoftmax(), 1.0),
    (zloss.SphericalSoftmax(eps=0.5), 1.0),
]


@dataclass
class Twins:
    factored: zloss.FactoredLinear
    dense: zloss.DenseLinear
    factored_optimizer: zloss.FactoredSGD
    dense_optimizer: torch.optim.SGD

    def backward(
        self, loss: Callable[[zloss.SphericalStats], Tensor], h: Tensor, target: Tensor
    ) -> float:
        """One forward and backward pass of both; the largest difference of loss and of the gradient of h."""
        h_factored = h.detach().clone().requires_grad_()
        h_dense = h.detach().double().clone().requires_grad_()
        value, expected = loss(self.factored(h_factored, target)), loss(self.dense(h_dense, target))
        value.backward()
        expected.backward()
        assert h_factored.grad is not None
        assert h_dense.grad is not None
        return max((value - expected).abs().item(), relative_error(h_factored.grad, h_dense.grad))

    def step(self) -> float:
        """One step of both; the relative difference of the weights afterwards."""
        self.factored_optimizer.step()
        self.dense_optimizer.step()
        self.factored_optimizer.zero_grad()
        self.dense_optimizer.zero_grad()
        return self.weight_error()

    def weight_error(self) -> float:
        error = relative_error(self.factored.weight(), self.dense.weight())
        bias, expected = self.factored.bias(), self.dense.bias()
        if bias is None or expected is None:
            assert bias is expected
            return error
        return max(error, relative_error(bias, expected))

    def dense_grad_norm(self) -> Tensor:
        grads = [p.grad for p in self.dense.parameters() if p.grad is not None]
        norm: Tensor = torch.stack([grad.norm() for grad in grads]).norm()
        return norm


def relative_error(value: Tensor, expected: Tensor) -> float:
    if value.numel() == expected.numel() == 0:
        return 0.0
    scale = expected.double().abs().max().clamp_min(1e-300)
    return ((value.double() - expected.double()).abs().max() / scale).item()


def k1_of(layer: zloss.FactoredLinear) -> Tensor:
    """The matrix K1 of the recorded gradient: a step with learning rate lr multiplies W by I - lr K1."""
    gradient = layer.recorded_gradient()
    assert gradient is not None
    return gradient.batch.T @ (gradient.curvature[:, None] * gradient.batch)


def make_twins(
    hidden: int,
    classes: int,
    *,
    device: torch.device,
    lr: float = 1.0,
    weight_decay: float = 0.0,
    bias: bool = False,
    dtype: torch.dtype = torch.float64,
    **options: Any,
) -> Twins:
    linear = nn.Linear(hidden, classes, bias=bias, dtype=dtype, device=device)
    factored = zloss.FactoredLinear.from_linear(linear, **options)
    dense = zloss.DenseLinear.from_linear(linear.double())
    return Twins(
        factored,
        dense,
        zloss.FactoredSGD([factored], lr, weight_decay=weight_decay),
        torch.optim.SGD(dense.parameters(), lr, weight_decay=weight_decay),
    )
