"""Log-probabilities within a cluster of classes, for the examples that have a target in it.

A step that must not wait for its device cannot know how many examples these are. By its definition the softmax is
computed for all of them, and most of it is thrown away; the kernels skip those that want nothing.

Shape letters: B examples, D width of the cluster's vectors, C classes of the cluster, K targets per example.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from zloss import kernels
from zloss.heads.softmax import log_softmax
from zloss.layers.limits import first_derivatives_only


class Wanting(NamedTuple):
    """Which examples have a target in the cluster, known to the device alone."""

    order: Tensor  # (B,) int64, every example once, those first
    number: Tensor  # () int64, how many these are


def log_prob_within(
    p: Tensor,  # (B, D)
    weight: Tensor,  # (C, D)
    index: Tensor,  # (B, K) in the cluster, or -1 for none
    wanting: Wanting,
) -> Tensor:  # (B, K)
    """Of every target under the softmax of `p @ weight.T`, 0 for none.

    >>> weight, index = torch.zeros(4, 2), torch.tensor([[-1], [3]])
    >>> log_prob_within(torch.ones(2, 2), weight, index, Wanting(torch.tensor([1, 0]), torch.tensor(1)))
    tensor([[ 0.0000],
            [-1.3863]])
    """
    if _has_kernel(p, weight):
        found: Tensor = _LogProbWithin.apply(p.to(weight.dtype), weight, index, wanting)  # type: ignore[no-untyped-call]
        return found
    return torch.where(index < 0, 0, log_softmax(F.linear(p, weight)).gather(1, index.clamp_min(0)))


def _has_kernel(p: Tensor, weight: Tensor) -> bool:
    if p.device.type != "cuda" or weight.dtype != torch.float32 or not kernels.available():
        return False
    return bool(weight.shape[1] <= kernels.load("cluster_softmax").MOST_WIDTH)


class _LogProbWithin(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, p: Tensor, weight: Tensor, index: Tensor, wanting: Wanting) -> Tensor:
        normalizer = kernels.load("cluster_softmax").normalizers(p, weight, *wanting)
        ctx.save_for_backward(p, weight, index, normalizer, *wanting)
        own = (weight[index.clamp_min(0)] * p[:, None]).sum(2)
        return torch.where(index < 0, 0, own - normalizer[:, None])

    @staticmethod
    @first_derivatives_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        p, weight, index, normalizer, order, number = ctx.saved_tensors
        grad = torch.where(index < 0, 0, grad)
        return (
            *kernels.load("cluster_softmax").gradients(
                p, weight, order, number, normalizer, index, grad
            ),
            None,
            None,
        )
