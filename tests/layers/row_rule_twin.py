"""A dense twin of a factored layer whose looked-up rows follow row-wise Adagrad."""

from typing import Any

import torch
from torch import Tensor, nn

import zloss

HIDDEN, CLASSES = 8, 61
ROW_LR, EPS, DECAY = 0.03, 1e-6, 1e-3


class DenseTwin(nn.Module):
    """A dense W with one leaf for the spherical loss and another for look-ups, so that autograd keeps them apart."""

    def __init__(self, layer: zloss.FactoredLinear) -> None:
        super().__init__()
        self.W = layer.materialised().double()
        self.has_bias, self.squares = layer.has_bias, self.W.new_zeros(len(self.W))
        self.of_loss, self.of_rows = (self.W.clone().requires_grad_() for _ in range(2))

    def forward(self, h: Tensor, target: Tensor) -> zloss.SphericalStats:
        h = torch.cat([h, h.new_ones(len(h), 1)], 1) if self.has_bias else h
        return zloss.SphericalStats.from_logits(h @ self.of_loss.T, target)

    def bias(self) -> Tensor | None:
        return self.W[:, -1] if self.has_bias else None

    def rows(self, ids: Tensor, *, with_bias: bool = False) -> Tensor:
        rows = self.of_rows[ids.long()]
        return rows if with_bias or not self.has_bias else rows[..., :-1]

    def grads(self) -> tuple[Tensor, Tensor]:
        leaves = (self.of_loss, self.of_rows)
        return tuple(torch.zeros_like(x) if x.grad is None else x.grad for x in leaves)  # type: ignore[return-value]

    def norm(self) -> Tensor:
        norm: Tensor = torch.stack(self.grads()).sum(0).norm()
        return norm

    def scale(self, factor: Tensor | float) -> None:
        self.of_loss.grad, self.of_rows.grad = (grad * factor for grad in self.grads())

    def step(self, lr: float, row_lr: float, decay: float = DECAY) -> None:
        of_loss, s = self.grads()
        self.squares = self.squares + s.square().mean(1)
        self.W = (1 - lr * decay) * self.W - lr * of_loss
        self.W = self.W - row_lr * s / (self.squares.sqrt() + EPS)[:, None]
        self.of_loss, self.of_rows = (self.W.clone().requires_grad_() for _ in range(2))


def make_layer(device: torch.device, *, bias: bool = False, **options: Any) -> zloss.FactoredLinear:
    given: dict[str, Any] = {"dtype": torch.float64, "synchronous": True} | options
    return zloss.FactoredLinear(HIDDEN, CLASSES, bias=bias, device=device, **given)


def make_optimizer(layer: zloss.FactoredLinear, lr: float = 0.5) -> zloss.FactoredSGD:
    return zloss.FactoredSGD(layer, lr, weight_decay=DECAY, row_lr=ROW_LR, row_eps=EPS)


def squares_of(optimizer: zloss.FactoredSGD) -> Tensor:
    squares: Tensor = optimizer.state[optimizer.layers[0].V]["row_squares"]
    return squares
