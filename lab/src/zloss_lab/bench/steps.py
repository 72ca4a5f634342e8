"""Training steps of an output layer: forward, backward with the gradient of its input, and update."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Literal

import torch
from torch import Tensor

import zloss
from zloss_lab.bench.entries import HeadEntry

Launch = Literal["eager", "graph"]
TrainingStep = Callable[..., Tensor]


@contextmanager
def products_of(entry: HeadEntry, device: torch.device) -> Iterator[None]:
    """Compute matrix products in the block in the precision of the entry."""
    # Torch has two switches, and torch.compile wants them equal. This older one sets the newer one too.
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    matmul.allow_tf32 = entry.precision == "tf32"
    try:
        # A weight is used once per step, so a cache of converted weights has no use, and it disturbs CUDA graphs.
        with (
            torch.autocast(device.type, torch.bfloat16, cache_enabled=False)
            if entry.autocasts
            else nullcontext()
        ):
            yield
    finally:
        matmul.allow_tf32 = before


def layer_step(
    entry: HeadEntry, head: zloss.Head, device: torch.device, lr: float | None = None
) -> TrainingStep:
    """Return a function `(h, target) -> loss` that takes one step of SGD on the head."""
    optimizer = head.sgd(entry.lr if lr is None else lr)

    def step(h: Tensor, target: Tensor) -> Tensor:
        h = h.detach().requires_grad_()  # its gradient is needed by the layers below
        with products_of(entry, device):
            loss: Tensor = head(h, target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    return step


def launched(step: TrainingStep, launch: Launch) -> TrainingStep:
    """Return the step itself, or as a CUDA graph, which saves the host's time to launch it."""
    return step if launch == "eager" else zloss.CapturedStep(step)
