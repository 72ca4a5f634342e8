"""Training steps: forward, backward and update of an output layer, gradient of its input included."""

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
    """Matrix products in the precision of the entry."""
    # The older of torch's two switches, which sets the newer one too: torch.compile reads both and wants them equal.
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    matmul.allow_tf32 = entry.precision == "tf32"
    try:
        # A weight is used once a step: a cache of converted ones would only be in the way of CUDA graphs.
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
    """`(h, target) -> loss`: one step of SGD on the head."""
    optimizer = head.sgd(entry.lr if lr is None else lr)

    def step(h: Tensor, target: Tensor) -> Tensor:
        h = (
            h.detach().requires_grad_()
        )  # so that its gradient is computed, as the layers below would want it
        with products_of(entry, device):
            loss: Tensor = head(h, target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    return step


def launched(step: TrainingStep, launch: Launch) -> TrainingStep:
    """The step as it is, or as a CUDA graph, which leaves out the time that the host takes to launch it."""
    return step if launch == "eager" else zloss.CapturedStep(step)
