"""The slow definitions of the losses and probabilities of heads, in float64.

The definitions form all logits, use elementary functions of them, and leave the gradients to autograd. They contain
none of the fast methods of the library. They get the weights of a head by name.

Shape letters: N pairs of an example and a class, H width of the hidden layer, C classes.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.losses.registry import EPS, A, B

Weights = dict[str, Tensor]


def own(values: Tensor, index: Tensor) -> Tensor:  # (N, C), (N,) -> (N,)
    return values.gather(1, index[:, None])[:, 0]


def softplus(x: Tensor) -> Tensor:
    return x.clamp_min(0) + (-x.abs()).exp().log1p()


def linear(prefix: str, w: Weights, h: Tensor) -> Tensor:  # (N, C)
    logits = h @ w[f"{prefix}weight"].T
    return logits + w[f"{prefix}bias"] if f"{prefix}bias" in w else logits


# ---- losses of all logits: (N, C), (N,) -> (N,) ----------------------------------------------------------------------


def z_scores(logits: Tensor) -> Tensor:
    centred = logits - logits.mean(1, keepdim=True)
    return centred / centred.square().mean(1, keepdim=True).sqrt()


def softmax(logits: Tensor, index: Tensor) -> Tensor:
    return logits.logsumexp(1) - own(logits, index)


def sigmoid(logits: Tensor, index: Tensor) -> Tensor:
    one_hot = F.one_hot(index, logits.shape[1]).bool()
    return torch.where(one_hot, softplus(-logits), softplus(logits)).sum(1)


def z_softmax(logits: Tensor, index: Tensor) -> Tensor:
    return softmax(A * z_scores(logits), index) / A


def z_sigmoid(logits: Tensor, index: Tensor) -> Tensor:
    return sigmoid(A * z_scores(logits), index) / A


def z_loss(logits: Tensor, index: Tensor) -> Tensor:
    return softplus(A * (B - own(z_scores(logits), index))) / A


def squared_error(logits: Tensor, index: Tensor) -> Tensor:
    return 0.5 * (logits - F.one_hot(index, logits.shape[1])).square().sum(1)


def taylor_softmax(logits: Tensor, index: Tensor) -> Tensor:
    return -own(taylor_log_prob(logits), index)


def spherical_softmax(logits: Tensor, index: Tensor) -> Tensor:
    return -own(spherical_log_prob(logits), index)


# ---- log-probabilities of all classes: (N, C) ------------------------------------------------------------------------


def softmax_log_prob(scores: Tensor) -> Tensor:
    return scores - scores.logsumexp(1, keepdim=True)


def z_log_prob(logits: Tensor) -> Tensor:
    return softmax_log_prob(A * z_scores(logits))


def taylor_log_prob(logits: Tensor) -> Tensor:
    return softmax_log_prob((1 + logits + logits.square() / 2).log())


def spherical_log_prob(logits: Tensor) -> Tensor:
    return softmax_log_prob((logits.square() + EPS).log())


def hierarchical_log_prob(clusters: Sequence[Tensor], w: Weights, h: Tensor) -> Tensor:  # (N, C)
    of_cluster = softmax_log_prob(linear("clusters.", w, h))
    members = linear("member_", {"member_weight": w["members"], **w}, h).split(
        [len(part) for part in clusters], 1
    )
    parts = [of_cluster[:, [i]] + softmax_log_prob(logits) for i, logits in enumerate(members)]
    return torch.cat(parts, 1)[:, torch.cat(list(clusters)).argsort()]


def adaptive_log_prob(
    cutoffs: Sequence[int], order: Tensor, w: Weights, h: Tensor
) -> Tensor:  # (N, C)
    of_head = softmax_log_prob(linear("softmax.head.", w, h))
    parts = [of_head[:, : cutoffs[0]]]
    for i in range(len(cutoffs)):
        narrow = linear(f"softmax.tail.{i}.0.", w, h)
        parts.append(
            of_head[:, [cutoffs[0] + i]]
            + softmax_log_prob(linear(f"softmax.tail.{i}.1.", w, narrow))
        )
    return torch.cat(parts, 1)[:, order.argsort()]


# ---- losses of draws: (N,) -------------------------------------------------------------------------------------------


def sampled_softmax(
    logits: Tensor, index: Tensor, draws: Tensor, log_expected: Tensor
) -> Tensor:  # (N,)
    drawn = (logits - log_expected)[:, draws].masked_fill(draws == index[:, None], -math.inf)
    return torch.cat([own(logits, index)[:, None], drawn], 1).logsumexp(1) - own(logits, index)


def nce(logits: Tensor, index: Tensor, draws: Tensor, log_expected: Tensor) -> Tensor:  # (N,)
    log_odds = logits - log_expected
    return softplus(-own(log_odds, index)) + softplus(log_odds[:, draws]).sum(1)
