"""Small training steps of a head, for tests of steps that are captured as a CUDA graph."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

import zloss

H, C, B = 32, 400, 24


def make_head(device: torch.device) -> zloss.SphericalOutput:
    return zloss.SphericalOutput(
        zloss.FactoredLinear(H, C, device=device), zloss.ZLoss(a=0.2, b=8.0)
    )


def training_step(
    head: zloss.Head, optimizer: torch.optim.Optimizer
) -> Callable[[Tensor, Tensor], Tensor]:
    def step(h: Tensor, target: Tensor) -> Tensor:
        loss: Tensor = head(h, target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def batch(number: int, device: torch.device, rows: int = B) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    h, target = (
        torch.randn(rows, H, generator=generator),
        torch.randint(C, (rows,), generator=generator),
    )
    return h.to(device), target.to(device)


def take_steps(step: Callable[..., Tensor], batches: Iterable[tuple[Tensor, ...]]) -> None:
    for inputs in batches:
        step(*inputs)
