"""A model with everything that `zloss.Optimizer` tells apart."""

import torch
from torch import Tensor, nn

import zloss
from tests.twin_networks import LOSS


class Model(nn.Module):
    """Tied embeddings, a trunk, a second output behind a head, and a head with row-sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.output = zloss.FactoredLinear(4, 30)
        self.embedding = zloss.TiedEmbedding(self.output)
        self.trunk = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
        self.second = zloss.SphericalOutput(zloss.FactoredLinear(4, 20, bias=True), LOSS)
        self.tree = zloss.HierarchicalSoftmax(4, 25)

    def forward(self, ids: Tensor, target: Tensor) -> Tensor:
        h = self.trunk(self.embedding(ids))
        loss: Tensor = LOSS(self.output(h, target)) + self.second(h, target) + self.tree(h, target)
        return loss


def train(model: Model, optimizer: torch.optim.Optimizer, steps: int = 1) -> None:
    for _ in range(steps):
        model(torch.randint(30, (6,)), torch.randint(20, (6,))).backward()
        optimizer.step()
        optimizer.zero_grad()


def weights(model: Model) -> list[Tensor]:
    matrices = [model.output.weight(), model.second.layer.weight()]
    others = [*model.trunk.parameters(), *model.tree.parameters()]
    return matrices + [p.detach().clone() for p in others]


def same(ours: list[Tensor], others: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(ours, others, strict=True))
