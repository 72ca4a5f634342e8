"""The losses of all logits by name, each with its slow definition."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn

import zloss
from tests.heads.definitions import (
    sigmoid,
    softmax,
    softmax_log_prob,
    spherical_log_prob,
    spherical_softmax,
    squared_error,
    taylor_log_prob,
    taylor_softmax,
    z_log_prob,
    z_loss,
    z_sigmoid,
    z_softmax,
)
from tests.losses.registry import EPS, A, B


class LogitLoss(NamedTuple):
    """A loss of all logits by its definition."""

    make: Callable[..., nn.Module]  # called with reduction and ignore_index
    definition: Callable[[Tensor, Tensor], Tensor]
    log_prob: Callable[[Tensor], Tensor] | None = None
    ranks_by: Callable[[Tensor], Tensor] = lambda logits: logits


def z_normalized(inner: Callable[..., nn.Module], **common: Any) -> nn.Module:
    return zloss.ZNormalized(inner(**common), a=A)


LOGIT_LOSSES = {
    "softmax": LogitLoss(zloss.SoftmaxCrossEntropy, softmax, softmax_log_prob),
    "sigmoid": LogitLoss(zloss.SigmoidCrossEntropy, sigmoid),
    "z_softmax": LogitLoss(partial(z_normalized, zloss.SoftmaxCrossEntropy), z_softmax, z_log_prob),
    "z_sigmoid": LogitLoss(partial(z_normalized, zloss.SigmoidCrossEntropy), z_sigmoid),
    "z_loss": LogitLoss(partial(zloss.ZLoss, a=A, b=B), z_loss),
    "squared_error": LogitLoss(zloss.SquaredError, squared_error),
    "taylor_softmax": LogitLoss(
        zloss.TaylorSoftmax, taylor_softmax, taylor_log_prob, taylor_log_prob
    ),
    "spherical_softmax": LogitLoss(
        partial(zloss.SphericalSoftmax, eps=EPS),
        spherical_softmax,
        spherical_log_prob,
        spherical_log_prob,
    ),
    "torch's softmax": LogitLoss(nn.CrossEntropyLoss, softmax, softmax_log_prob),
    "torch's z_softmax": LogitLoss(
        partial(z_normalized, nn.CrossEntropyLoss), z_softmax, z_log_prob
    ),
}
