"""A dense output layer and its SGD, written from the formulas alone: the judge of sequences of steps.

Nothing here comes from the library. A loss is a function of the activations of all classes, autograd differentiates it,
and SGD changes the whole weight matrix.

Shape letters: B examples, C classes, H columns of the weights (with the bias), K targets per example.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORED = -100


@dataclass(frozen=True)
class Batch:
    """One batch, in float64, with everything that decides its loss."""

    h: Tensor  # (B, H) without the column of the bias
    target: Tensor  # (B,) or (B, K)
    weight: Tensor | None  # (B,)
    loss: str
    reduction: str
    scale: float  # of the loss


def losses(kind: str, activations: Tensor, target: Tensor) -> Tensor:  # (B, C), (B, K) -> (B, K)
    """Return the loss of each target; the value for an ignored target has no meaning."""
    own = activations.gather(1, target.clamp_min(0))
    if kind == "z_loss":
        mean, std = (
            activations.mean(1, keepdim=True),
            activations.std(1, keepdim=True, correction=0),
        )
        return F.softplus(0.3 * (6.0 - (own - mean) / std), threshold=1e9) / 0.3
    if kind == "squared_error":
        return 0.5 * (activations.square().sum(1, keepdim=True) - 2 * own + 1)
    if kind == "taylor_softmax":
        likelihoods, likelihood = 0.5 * ((activations + 1) ** 2 + 1), 0.5 * ((own + 1) ** 2 + 1)
    else:
        likelihoods, likelihood = activations**2 + 0.5, own**2 + 0.5
    return likelihoods.sum(1, keepdim=True).log() - likelihood.log()


class Passed(NamedTuple):
    """The results of a forward and a backward pass."""

    loss: Tensor  # ()
    grad: Tensor  # (B, H) of h
    terms: float  # the size of what adds up to that gradient, which may cancel to nearly nothing


class DenseSGD:
    """A dense layer under SGD, in float64 or float32.

    Args:
        weight: the initial weights, (C, H).
        dtype: the dtype of all arithmetic.
        order: a permutation of the hidden units. It changes nothing but the rounding.
        adds_at_once: add up the examples of all backward passes in one product, and not pass by pass. A long sum in
            float32 loses small terms beside large ones, so this too changes the rounding alone.
    """

    def __init__(
        self,
        weight: Tensor,
        dtype: torch.dtype,
        *,
        has_bias: bool,
        order: Tensor,
        adds_at_once: bool = False,
    ) -> None:
        self.order, self.has_bias, self.adds_at_once = order, has_bias, adds_at_once
        self._weight = weight.to(dtype)[:, order].clone()
        self._passes: list[tuple[Tensor, Tensor]] = []  # (B, C) gradients, (B, H) inputs

    @property
    def weight(self) -> Tensor:  # (C, H)
        """The weights in float64, in their own order."""
        weight = torch.empty_like(self._weight, dtype=torch.float64)
        weight[:, self.order] = self._weight.double()
        return weight

    def restart_from(self, weight: Tensor) -> None:
        """Take other weights, without a gradient."""
        self._weight = weight.to(self._weight.dtype)[:, self.order].clone()
        self.zero_grad()

    def backward(self, batch: Batch) -> Passed:
        """Add the gradient of a batch."""
        h = batch.h.to(self._weight.dtype, copy=True).requires_grad_()
        inputs = torch.cat([h, torch.ones_like(h[:, :1])], dim=1) if self.has_bias else h
        inputs = inputs[:, self.order]
        target = batch.target if batch.target.dim() == 2 else batch.target[:, None]
        valid = target != IGNORED
        activations = inputs @ self._weight.T
        activations.retain_grad()
        values = torch.where(valid, losses(batch.loss, activations, target), 0)
        per_example = values.sum(1) / valid.sum(1).clamp_min(1)
        if batch.weight is not None:
            per_example = per_example * batch.weight.to(per_example.dtype)
        total = per_example.sum()
        if batch.reduction == "mean":
            total = total / valid.any(1).sum().clamp_min(1)
        (batch.scale * total).backward()
        assert h.grad is not None
        assert activations.grad is not None
        self._passes.append((activations.grad, inputs.detach()))
        return Passed(total.detach(), h.grad, float(activations.grad.norm() * self._weight.norm()))

    def grad_norm(self) -> float:
        """Return the norm of the gradient."""
        return float(self._gradient().norm())

    def clip(self, max_norm: float) -> None:
        """Scale the gradient down to a norm."""
        factor = min(1.0, max_norm / (self.grad_norm() + 1e-6))
        self._passes = [(factor * grad, inputs) for grad, inputs in self._passes]

    def step(self, lr: float, weight_decay: float) -> None:
        """Take the step of the gradient, and zero it."""
        self._weight -= lr * (self._gradient() + weight_decay * self._weight)
        self.zero_grad()

    def zero_grad(self) -> None:
        """Drop the gradient."""
        self._passes = []

    def _gradient(self) -> Tensor:  # (C, H)
        passes = self._passes
        if self.adds_at_once and passes:
            grads, inputs = zip(*passes, strict=True)
            passes = [(torch.cat(grads), torch.cat(inputs))]
        return sum((grad.T @ inputs for grad, inputs in passes), torch.zeros_like(self._weight))
