"""Implementations of the softmax cross-entropy of a linear layer: the same loss with other costs in time and memory.

    logits                     forms the B x C logits; needs torch alone, runs on any device
    linear_cross_entropy       torch >= 2.13: takes the batch in chunks, never forms all logits at once
    liger                      Liger Kernel (pip install liger-kernel), on a GPU
    cut_cross_entropy          Apple's CCE (pip install cut-cross-entropy), on a GPU, in half precision; leaves out
                               small gradients, as is its default
    cut_cross_entropy_exact    Apple's CCE with all gradients

The user chooses an implementation by its name. If it cannot run, an error gives the reason: no other implementation
replaces it silently.
"""

import importlib
import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from zloss.inputs import check_choice, check_device

SoftmaxName = Literal[
    "logits", "linear_cross_entropy", "liger", "cut_cross_entropy", "cut_cross_entropy_exact"
]
IGNORED = -100  # the target that all functions of this module ignore
_CHUNK_ELEMENTS = 2**26  # the largest number of logits in a chunk: 256 MiB in float32

CrossEntropy = Callable[[Tensor, Tensor, Tensor | None, Tensor, str], Tensor]
"""`(h (N, H), weight (C, H), bias (C,) or None, target (N,), reduction "none" or "sum") -> loss`."""


def of_logits(
    h: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, reduction: str
) -> Tensor:
    """Return the cross-entropy from all logits: the definition."""
    logits = F.linear(h, weight, bias)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, target, reduction=reduction, ignore_index=IGNORED)


def linear_cross_entropy(
    h: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, reduction: str
) -> Tensor:
    """Return the cross-entropy from torch's own function, in chunks of bounded memory.

    It ignores autocast and computes in the dtype of the weight. The chunks that torch would choose become smaller as
    C / H grows, and each chunk needs a pass over the gradient of all weights. At a ratio of a few hundred this would be
    many times slower.
    """
    rows = max(1, _CHUNK_ELEMENTS // len(weight))
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=rows, chunking_method=None)
    result: Tensor = F.linear_cross_entropy(
        h.to(weight.dtype),
        weight,
        target,
        linear_bias=bias,
        reduction=reduction,
        ignore_index=IGNORED,
        options=options,
    )
    return result.to(torch.promote_types(result.dtype, torch.float32))


def liger(h: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, reduction: str) -> Tensor:
    """Return the cross-entropy from Liger Kernel, with its default chunks."""
    function = importlib.import_module(
        "liger_kernel.transformers.functional"
    ).liger_fused_linear_cross_entropy
    result: Tensor = function(h, weight, target, bias, reduction=reduction, ignore_index=IGNORED)
    return result


def cut_cross_entropy(
    h: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, reduction: str, **options: Any
) -> Tensor:
    """Return the cross-entropy from Apple's CCE, in the half precision of autocast or else in bfloat16."""
    function = importlib.import_module("cut_cross_entropy").linear_cross_entropy
    if bias is not None:
        if "bias" not in inspect.signature(function).parameters:
            raise ValueError(
                "the installed cut-cross-entropy takes no bias: use bias=False, or install a newer version"
            )
        options |= {"bias": bias}
    autocast = torch.is_autocast_enabled(h.device.type)
    half = torch.get_autocast_dtype(h.device.type) if autocast else torch.bfloat16
    result: Tensor = function(
        h.to(half),
        weight.to(half),
        target,
        reduction=reduction,
        ignore_index=IGNORED,
        impl="cce",
        **options,
    )
    return result.float()


def cut_cross_entropy_exact(
    h: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, reduction: str
) -> Tensor:
    """Return the cross-entropy from Apple's CCE, with small gradients as well."""
    return cut_cross_entropy(h, weight, bias, target, reduction, filter_eps=None)


@dataclass(frozen=True)
class Implementation:
    """An implementation of the softmax cross-entropy, with its requirements."""

    cross_entropy: CrossEntropy
    package: str | None = None  # the name for pip
    needs_gpu: bool = False

    def missing(self, device: torch.device | None) -> str | None:
        """Return the reason why it cannot run on this device, or on any device for None. Return None if it can run."""
        if self.cross_entropy is linear_cross_entropy and not hasattr(F, "linear_cross_entropy"):
            return (
                f"torch {torch.__version__} has no F.linear_cross_entropy: it came with torch 2.13"
            )
        if self.package is not None and not _is_installed(self.package):
            return f"{self.package} is not installed: pip install {self.package}"
        if self.needs_gpu and device is not None and device.type != "cuda":
            return f"{self.package} runs on GPUs only, not on {device.type}"
        return None


@cache  # every step asks
def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package.replace("-", "_")) is not None


IMPLEMENTATIONS: dict[str, Implementation] = {
    "logits": Implementation(of_logits),
    "linear_cross_entropy": Implementation(linear_cross_entropy),
    "liger": Implementation(liger, "liger-kernel", needs_gpu=True),
    "cut_cross_entropy": Implementation(cut_cross_entropy, "cut-cross-entropy", needs_gpu=True),
    "cut_cross_entropy_exact": Implementation(
        cut_cross_entropy_exact, "cut-cross-entropy", needs_gpu=True
    ),
}
assert tuple(IMPLEMENTATIONS) == get_args(SoftmaxName)


def softmax_implementations(device: torch.device | str) -> dict[str, str | None]:
    """Return for each implementation of the softmax the reason why it cannot run on this device, or None if it can.

    >>> softmax_implementations("cpu")["logits"] is None
    True
    """
    check_device("device", device, must_exist=False)
    return {name: entry.missing(torch.device(device)) for name, entry in IMPLEMENTATIONS.items()}


def find_cross_entropy(name: str, device: torch.device | None = None) -> CrossEntropy:
    """Return the implementation with this name, or raise `ValueError` with the reason why it cannot run.

    Without a device this checks only what is installed, because a layer may still move to another device.
    """
    check_choice("softmax", name, IMPLEMENTATIONS)
    if reason := IMPLEMENTATIONS[name].missing(device):
        here = [other for other, entry in IMPLEMENTATIONS.items() if entry.missing(device) is None]
        raise ValueError(
            f"softmax={name!r} cannot run here: {reason}; these can: {', '.join(here)}"
        )
    return IMPLEMENTATIONS[name].cross_entropy


def log_softmax(logits: Tensor) -> Tensor:  # (n, m) -> (n, m)
    """Return the log-softmax in float32 or better. Half precision, as autocast gives it, is too coarse for it."""
    return F.log_softmax(logits, dim=1, dtype=torch.promote_types(logits.dtype, torch.float32))
