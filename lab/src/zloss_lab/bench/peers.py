"""Peers: softmaxes of other libraries that `zloss.DenseOutput` has no option for.

Each is called directly, without our checks of its inputs.
"""

import importlib
import importlib.metadata
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import zloss

PeerLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""`(h (B, H), weight (C, H), target (B,)) -> mean loss`."""

# Torch compiles anew for each size. By default it stops compiling after eight sizes.
_MOST_COMPILED_SIZES = 64


@dataclass(frozen=True)
class Peer:
    """An implementation of the softmax cross-entropy of a linear layer."""

    make: Callable[[], PeerLoss]
    missing: Callable[[torch.device], str | None]  # why it cannot run on a device; None if it can

    def __call__(self, head: zloss.Head) -> zloss.Head:
        """Return a head with the same weights, which computes its loss by this implementation."""
        assert isinstance(head, zloss.DenseOutput), "peers are softmaxes of a dense layer"
        return PeerSoftmax(head.linear, self.make())


class PeerSoftmax(zloss.DenseOutput):
    """A dense softmax around a linear layer, with the loss of another library."""

    def __init__(self, linear: nn.Linear, cross_entropy: PeerLoss) -> None:
        super().__init__(linear.in_features, linear.out_features, device="meta")
        self.linear, self.cross_entropy = linear, cross_entropy

    def forward(self, h: Tensor, target: Tensor, *, weight: Tensor | None = None) -> Tensor:
        assert weight is None, "benchmarks have no row weights"
        return self.cross_entropy(h, self.linear.weight, target)


# ---- torch.compile ---------------------------------------------------------------------------------------------------


def _of_logits(h: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(h, weight).float(), target)


def _compiled() -> PeerLoss:
    settings: Any = importlib.import_module("torch._dynamo").config
    settings.cache_size_limit = max(settings.cache_size_limit, _MOST_COMPILED_SIZES)
    compiled: PeerLoss = torch.compile(_of_logits, dynamic=False)
    return compiled


def _no_compiler(device: torch.device) -> str | None:
    return None if device.type == "cuda" else "torch.compile is measured on GPUs only"


# ---- torch's linear_cross_entropy ------------------------------------------------------------------------------------


def _chunks_of_torch(h: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    options = torch.nn.LinearCrossEntropyOptions()
    result: Tensor = F.linear_cross_entropy(h, weight, target, options=options)
    return result


def _no_linear_cross_entropy(device: torch.device) -> str | None:
    return zloss.softmax_implementations(device)["linear_cross_entropy"]


# ---- Liger -----------------------------------------------------------------------------------------------------------


def _liger_in_one_chunk(h: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    result: Tensor = _liger()(h, weight, target, chunk_size=len(h))
    return result


def _liger() -> Any:
    return importlib.import_module(
        "liger_kernel.transformers.functional"
    ).liger_fused_linear_cross_entropy


def _no_liger_chunks(device: torch.device) -> str | None:
    if reason := zloss.softmax_implementations(device)["liger"]:
        return reason
    if "chunk_size" not in inspect.signature(_liger()).parameters:
        return f"liger-kernel {importlib.metadata.version('liger-kernel')} has no option for its chunks"
    return None


PEERS = {
    "compiled": Peer(_compiled, _no_compiler),
    "torch's chunks": Peer(lambda: _chunks_of_torch, _no_linear_cross_entropy),
    "liger in one chunk": Peer(lambda: _liger_in_one_chunk, _no_liger_chunks),
}
