"""Log-probabilities within a cluster of classes, for the examples that have a target in it.

A step that must not wait for its device cannot know how many examples these are. The definition computes the softmax of
the cluster for all examples of the batch, and throws most of it away. The kernels skip examples without a target in the
cluster.

Shape letters: B examples, D width of the cluster's vectors, C classes of the cluster, K targets per example.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from zloss import kernels
from zloss.heads.softmax import log_softmax
from zloss.limits import first_derivatives_only


class WantedExamples(NamedTuple):
    """The examples that have a target in the cluster. Only the device knows these values."""

    order: Tensor  # (B,) int64, the numbers of all examples, the wanted examples first
    number: Tensor  # () int64, how many examples are wanted


def log_prob_within(
    p: Tensor,  # (B, D)
    weight: Tensor,  # (C, D)
    index: Tensor,  # (B, K) targets as numbers within the cluster, or -1 for a target outside
    wanted: WantedExamples,
) -> Tensor:  # (B, K)
    """Return the log-probability of every target under the softmax of `p @ weight.T`, 0 for a target outside.

    >>> weight, index = torch.zeros(4, 2), torch.tensor([[-1], [3]])
    >>> log_prob_within(torch.ones(2, 2), weight, index, WantedExamples(torch.tensor([1, 0]), torch.tensor(1)))
    tensor([[ 0.0000],
            [-1.3863]])
    """
    if _has_kernel(p, weight):
        found: Tensor = _LogProbWithin.apply(p.to(weight.dtype), weight, index, wanted)  # type: ignore[no-untyped-call]
        return found
    return torch.where(index < 0, 0, log_softmax(F.linear(p, weight)).gather(1, index.clamp_min(0)))


def _has_kernel(p: Tensor, weight: Tensor) -> bool:
    if p.device.type != "cuda" or weight.dtype != torch.float32 or not kernels.available():
        return False
    return bool(weight.shape[1] <= kernels.load("cluster_softmax").MOST_WIDTH)


class _LogProbWithin(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, p: Tensor, weight: Tensor, index: Tensor, wanted: WantedExamples
    ) -> Tensor:
        normalizer = kernels.load("cluster_softmax").normalizers(p, weight, *wanted)
        ctx.save_for_backward(p, weight, index, normalizer, *wanted)
        own = (weight[index.clamp_min(0)] * p[:, None]).sum(2)
        return torch.where(index < 0, 0, own - normalizer[:, None])

    @staticmethod
    @first_derivatives_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        p, weight, index, normalizer, order, number = ctx.saved_tensors
        grad = torch.where(index < 0, 0, grad)
        grads = kernels.load("cluster_softmax").gradients(
            p, weight, order, number, normalizer, index, grad
        )
        return *grads, None, None
