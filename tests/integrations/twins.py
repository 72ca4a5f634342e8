"""A model with a factored output and its dense twin, as the trainers of other libraries take them.

The twin has an `nn.Linear` in the place of the factored layer, and the same loss on all logits. Its optimizer is one
`torch.optim.SGD` with two groups. Momentum in the trunk alone makes a mix-up of groups visible.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import zloss

FEATURES, HIDDEN, CLASSES, EXAMPLES, BATCH = 5, 8, 60, 48, 6
LOSS = zloss.ZLoss(a=0.2, b=8.0)
LR, MOMENTUM, OUTPUT_LR, OUTPUT_DECAY = 0.2, 0.9, 3.0, 0.01
MAX_NORM = 0.05  # of gradients that are some times longer, so that nearly all of them are clipped

# Some dozen steps in float64.
TOLERANCE = 1e-10


class Classifier(nn.Module):
    """A trunk and an output layer, with the loss of a batch as its result."""

    def __init__(self, *, is_dense: bool) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.trunk = nn.Sequential(nn.Linear(FEATURES, HIDDEN, dtype=torch.float64), nn.Tanh())
        linear = nn.Linear(HIDDEN, CLASSES, bias=False, dtype=torch.float64)
        self.output = linear if is_dense else zloss.FactoredLinear.from_linear(linear)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h = self.trunk(x)
        if isinstance(self.output, zloss.FactoredLinear):
            stats = self.output(h, labels)
        else:
            stats = zloss.SphericalStats.from_logits(self.output(h), labels)
        loss: Tensor = LOSS(stats)
        return loss

    def optimizer(self) -> torch.optim.Optimizer:
        """Return one optimizer for everything."""
        if isinstance(self.output, zloss.FactoredLinear):
            return zloss.Optimizer(
                self,
                torch.optim.SGD,
                lr=LR,
                momentum=MOMENTUM,
                output_lr=OUTPUT_LR,
                output_weight_decay=OUTPUT_DECAY,
            )
        trunk = {"params": self.trunk.parameters(), "momentum": MOMENTUM}
        output = {
            "params": self.output.parameters(),
            "lr": OUTPUT_LR,
            "weight_decay": OUTPUT_DECAY,
        }
        return torch.optim.SGD([trunk, output], lr=LR)

    def weights(self) -> list[Tensor]:
        """Return all weights, those of the output layer as one matrix."""
        output = self.output
        matrix = output.weight() if isinstance(output, zloss.FactoredLinear) else output.weight
        return [*(p.detach().clone() for p in self.trunk.parameters()), matrix.detach().clone()]


class Examples(Dataset[dict[str, Tensor]]):
    """Random examples, always the same ones."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(6)
        self.x = torch.randn(EXAMPLES, FEATURES, dtype=torch.float64, generator=generator)
        self.labels = torch.randint(CLASSES, (EXAMPLES,), generator=generator)

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": self.x[index], "labels": self.labels[index]}


def loader() -> "torch.utils.data.DataLoader[Any]":
    return torch.utils.data.DataLoader(Examples(), batch_size=BATCH)


def assert_twins(factored: list[Tensor], dense: list[Tensor]) -> None:
    """Compare the weights of both."""
    for own, expected in zip(factored, dense, strict=True):
        torch.testing.assert_close(own, expected, rtol=TOLERANCE, atol=TOLERANCE)


def assert_moved(weights: list[Tensor]) -> None:
    """See that a training has moved all weights: what never moves is equal too."""
    start = Classifier(is_dense=True).weights()
    assert all((new - old).norm() > 1e-3 for new, old in zip(weights, start, strict=True))


def assert_equal(ours: list[Tensor], others: list[Tensor]) -> None:
    """Compare bit by bit."""
    assert all(torch.equal(own, other) for own, other in zip(ours, others, strict=True))


def schedule(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    """Return a warm-up with a decay after it; it multiplies all rates by one factor."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / (5 + step))
