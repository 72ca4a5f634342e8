"""A network with a factored output layer and its dense twin, for tests of optimizers and of clipping."""

import torch
from torch import Tensor, nn

import zloss
from tests.layers.twins import make_twins

LOSS = zloss.ZLoss(a=0.2, b=8.0)


class Network(nn.Module):
    def __init__(self, output: nn.Module, device: torch.device) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(5, 8, dtype=torch.float64, device=device), nn.Tanh())
        self.output = output

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        loss: Tensor = LOSS(self.output(self.trunk(x), target))
        return loss


def twin_networks(device: torch.device) -> tuple[Network, Network]:
    twins = make_twins(8, 60, device=device, synchronous=True)
    factored, dense = Network(twins.factored, device), Network(twins.dense, device)
    dense.trunk.load_state_dict(factored.trunk.state_dict())
    return factored, dense


def batch(device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.randn(9, 5, dtype=torch.float64, device=device), torch.randint(
        60, (9,), device=device
    )
