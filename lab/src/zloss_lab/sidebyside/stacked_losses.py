r"""Every loss with its gradient, for all trials at once and in few passes over the logits.

    loss = z_loss(logits, target, a=a, b=b)         # (T, B); logits now hold d loss / d logits

The T x B x C logits are by far the largest tensor of a step, so the number of passes over them decides the time. Each
function overwrites the logits with their gradient. It is the gradient of the loss of each example: the step divides its
learning rate by B instead of taking a mean. The losses have the definitions and the names of `zloss.losses`.

A spherical loss depends on the activations o only through their mean, their variance and the activation of the target
t. So its gradient has three numbers per example:

    alpha o_k + beta                for every class k, and gamma more for the target

One pass finds the moments, and one applies alpha and beta.

Shape letters: T trials, B examples, C classes. Hyper-parameters are (T, 1, 1), numbers per example (T, B, 1).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from zloss.losses.functions import SOFTPLUS_IS_LINEAR


def softmax(
    logits: Tensor,  # (T, B, C)
    target: Tensor,  # (T, B)
) -> Tensor:  # (T, B)
    """`log(sum_k exp(o_k)) - o_t`; the gradient is the probability, less 1 for the target.

    The loss is computed from the probability of the target, which saves passes over the logits. If this probability is
    too small for the dtype, the loss is the largest possible one, 87 in float32. The gradient is not affected.
    """
    index = target[..., None]
    torch.softmax(logits, -1, out=logits)
    probability = logits.gather(-1, index)
    logits.scatter_(-1, index, probability - 1)
    return -probability.clamp_min(torch.finfo(logits.dtype).tiny).log().squeeze(-1)


def sigmoid(
    logits: Tensor,  # (T, B, C)
    target: Tensor,  # (T, B)
    *,
    b: Tensor,  # (T, 1, 1)
) -> Tensor:  # (T, B)
    """`softplus(-o_t) + sum_{k != t} softplus(o_k)` of `o - b`; the gradient is the sigmoid, less 1 for the target."""
    index = target[..., None]
    logits.sub_(b)
    # In float64, because a single huge logit must not wipe out the many small terms before it is subtracted.
    total = F.softplus(logits, threshold=SOFTPLUS_IS_LINEAR).sum(
        -1, keepdim=True, dtype=torch.float64
    )
    loss = (total - logits.gather(-1, index)).to(logits.dtype)
    _correct_target(logits.sigmoid_(), index, -1.0)
    return loss.squeeze(-1)


def z_softmax(
    logits: Tensor,  # (T, B, C)
    target: Tensor,  # (T, B)
    *,
    a: Tensor,  # (T, 1, 1)
) -> Tensor:  # (T, B)
    """The softmax loss of `a z`, divided by a."""
    return _z_normalized(softmax, logits, target, a)


def z_sigmoid(
    logits: Tensor,  # (T, B, C)
    target: Tensor,  # (T, B)
    *,
    a: Tensor,  # (T, 1, 1)
    b: Tensor,  # (T, 1, 1)
) -> Tensor:  # (T, B)
    """The sigmoid cross-entropy of `a (z - b)`, divided by a."""
    return _z_normalized(partial(sigmoid, b=a * b), logits, target, a)


def z_loss(
    logits: Tensor,  # (T, B, C)
    target: Tensor,  # (T, B)
    *,
    a: Tensor,  # (T, 1, 1)
    b: Tensor,  # (T, 1, 1)
) -> Tensor:  # (T, B)
    """`softplus(a (b - z_t)) / a`; `d z_t / d o_k` is `-(1 + z_t z_k) / (C sigma)`, and `1 / sigma` more for k = t."""
    index, classes = target[..., None], logits.shape[-1]
    mean, variance = _moments(logits)
    inverse_std = _inverse_std(mean, variance)
    z = (logits.gather(-1, index) - mean) * inverse_std
    margin = a * (b - z)
    z_grad = -margin.sigmoid() * inverse_std  # the derivative of the loss by sigma z_t
    alpha = -z_grad * z * inverse_std / classes
    _apply(logits, alpha, -z_grad / classes - alpha * mean)
    _correct_target(logits, index, z_grad)
    return (F.softplus(margin, threshold=SOFTPLUS_IS_LINEAR) / a).squeeze(-1)


def squared_error(
    logits: Tensor,  # (T, B, C)
    target: Tensor,  # (T, B)
) -> Tensor:  # (T, B)
    """`1/2 sum_k (o_k - [k = t])^2`; the gradient is the logit, less 1 for the target."""
    index = target[..., None]
    loss = 0.5 * (_sum_of_squares(logits) - 2 * logits.gather(-1, index) + 1)
    _correct_target(logits, index, -1.0)
    return loss.squeeze(-1)


def taylor_softmax(
    logits: Tensor,  # (T, B, C)
    target: Tensor,  # (T, B)
) -> Tensor:  # (T, B)
    """`-log p_t` where p_k is proportional to `1 + o_k + o_k^2 / 2 = ((o_k + 1)^2 + 1) / 2`."""
    index, classes = target[..., None], logits.shape[-1]
    mean, variance = _moments(logits)
    total = classes * (variance + (mean + 1).square() + 1)
    shifted = logits.gather(-1, index) + 1
    own = shifted.square() + 1
    alpha = 2 / total
    _apply(logits, alpha, alpha)
    _correct_target(logits, index, -2 * shifted / own)
    return (total.log() - own.log()).squeeze(-1)


def spherical_softmax(
    logits: Tensor,  # (T, B, C)
    target: Tensor,  # (T, B)
    *,
    eps: Tensor,  # (T, 1, 1)
) -> Tensor:  # (T, B)
    """`-log p_t` where p_k is proportional to `o_k^2 + eps`."""
    index, classes = target[..., None], logits.shape[-1]
    total = _sum_of_squares(logits) + classes * eps
    activation = logits.gather(-1, index)
    own = activation.square() + eps
    logits.mul_(2 / total)
    _correct_target(logits, index, -2 * activation / own)
    return (total.log() - own.log()).squeeze(-1)


def taylor_score(logits: Tensor) -> Tensor:
    """Overwrite logits with the scores by which a Taylor softmax ranks classes."""
    return logits.add_(1).square_().add_(1).log_()


def spherical_score(logits: Tensor, *, eps: Tensor) -> Tensor:
    """Overwrite logits with the scores by which a spherical softmax ranks classes."""
    return logits.square_().add_(eps).log_()


@dataclass(frozen=True)
class StackedLoss:
    """A loss for all trials, and the scores by which its classes are ranked."""

    of: Callable[..., Tensor]  # logits (T, B, C), target (T, B), hyper-parameters -> (T, B)
    score: Callable[..., Tensor] | None = None  # None where classes are ranked by their logits


STACKED_LOSSES: dict[str, StackedLoss] = {
    "softmax": StackedLoss(softmax),
    "sigmoid": StackedLoss(sigmoid),
    "z_softmax": StackedLoss(z_softmax),
    "z_sigmoid": StackedLoss(z_sigmoid),
    "z_loss": StackedLoss(z_loss),
    "squared_error": StackedLoss(squared_error),
    "taylor_softmax": StackedLoss(taylor_softmax, taylor_score),
    "spherical_softmax": StackedLoss(spherical_softmax, spherical_score),
}


def _z_normalized(
    loss_of: Callable[[Tensor, Tensor], Tensor], logits: Tensor, target: Tensor, a: Tensor
) -> Tensor:
    """`loss_of(a z) / a`. If g is the gradient by a z, then `(g - mean(g) - z mean(g z)) / sigma` is the one by o."""
    mean, variance = _moments(logits)
    inverse_std = _inverse_std(mean, variance)
    z = logits.sub_(mean).mul_(inverse_std)
    grad = a * z
    loss = loss_of(grad, target) / a[..., 0]  # overwrites `grad` with g
    along_z = (grad * z).mean(-1, keepdim=True)
    shift = grad.mean(-1, keepdim=True)
    z.mul_(-along_z * inverse_std).addcmul_(grad.sub_(shift), inverse_std)
    return loss


def _moments(logits: Tensor) -> tuple[Tensor, Tensor]:  # (T, B, 1), (T, B, 1)
    """Return mean and variance, with the denominator C, and without the cancellation of mean squares."""
    if logits.device.type == "cuda":
        variance, mean = torch.var_mean(logits, -1, correction=0, keepdim=True)
        return mean, variance
    # On a CPU, torch's single pass takes ten times as long as these two.
    mean = logits.mean(-1, keepdim=True)
    return mean, _sum_of_squares(logits - mean) / logits.shape[-1]


def _sum_of_squares(logits: Tensor) -> Tensor:  # (T, B, 1)
    """Return the sum of squares of each row, in one pass and without a tensor of squares."""
    norm: Tensor = torch.linalg.vector_norm(logits, dim=-1, keepdim=True)
    return norm.square()


def _inverse_std(mean: Tensor, variance: Tensor) -> Tensor:
    """Return 1 / sigma, or 0 for a row without spread, as in `zloss.stats.z_normalize`: z and all gradients are 0."""
    info = torch.finfo(variance.dtype)
    noise = (4 * info.eps * mean).square().clamp_min(info.tiny)
    return torch.where(variance <= noise, 0, variance.rsqrt())


def _apply(logits: Tensor, alpha: Tensor, beta: Tensor) -> None:
    """Overwrite logits o with `alpha o + beta` in one pass."""
    torch.addcmul(beta, logits, alpha, out=logits)


def _correct_target(grad: Tensor, index: Tensor, gamma: Tensor | float) -> None:
    """Add gamma to the gradient of the target."""
    grad.scatter_(-1, index, grad.gather(-1, index) + gamma)
