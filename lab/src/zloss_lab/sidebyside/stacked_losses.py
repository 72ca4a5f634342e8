r"""Every loss with its gradient, for all trials at once and in few passes over the logits.

    loss = z_loss(logits, target, a=a, b=b)         # (T, B); logits now hold d loss / d logits

The T x B x C logits are by far the largest thing that a step touches, so what counts is how often memory is gone
through. Each function overwrites the logits with their gradient, that of each example's own loss: a mean over the batch
is up to the step, which divides its learning rate instead. The losses are those of `zloss.losses`, by the same names.

A spherical loss sees the activations o through their mean, their variance and that of the target t. So its gradient is

    alpha o_k + beta                for every class k, and gamma more for the target

with three numbers per example: one pass to find the moments, one to apply alpha and beta.

Shape letters: T trials, B examples, C classes. Hyper-parameters are (T, 1, 1), what belongs to an example is (T, B, 1).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from zloss.losses.spherical import SOFTPLUS_IS_LINEAR


def softmax(
    logits: Tensor,  # (T, B, C)
    target: Tensor,  # (T, B)
) -> Tensor:  # (T, B)
    """`log(sum_k exp(o_k)) - o_t`; the gradient is the probability, less 1 for the target.

    The loss is taken from the probability of the target, which saves passes: one too small for the dtype counts as the
    smallest that there is (in float32, a loss of 87). The gradient is not affected.
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
    # In float64, because a single huge logit must not wipe out the many small terms when it is subtracted again.
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
    """The softmax of `a z`, divided by a."""
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
    """`softplus(a (b - z_t)) / a`, where `d z_t / d o_k = -(1 + z_t z_k) / (C sigma)`, and `1 / sigma` more for t."""
    index, classes = target[..., None], logits.shape[-1]
    mean, variance = _moments(logits)
    inverse_std = _inverse_std(mean, variance)
    z = (logits.gather(-1, index) - mean) * inverse_std
    margin = a * (b - z)
    z_grad = -margin.sigmoid() * inverse_std  # of sigma z_t
    alpha = -z_grad * z * inverse_std / classes
    _apply(logits, alpha, -z_grad / classes - alpha * mean)
    _correct_target(logits, index, z_grad)
    return (F.softplus(margin, threshold=SOFTPLUS_IS_LINEAR) / a).squeeze(-1)


def squared_error(
    logits: Tensor,  # (T, B, C)
    target: Tensor,  # (T, B)
) -> Tensor:  # (T, B)
    """`1/2 sum_k (o_k - [k = t])^2`: the logits are their own gradient, but for the target."""
    index = target[..., None]
    loss = 0.5 * (_sum_of_squares(logits) - 2 * logits.gather(-1, index) + 1)
    _correct_target(logits, index, -1.0)
    return loss.squeeze(-1)


def taylor_softmax(
    logits: Tensor,  # (T, B, C)
    target: Tensor,  # (T, B)
) -> Tensor:  # (T, B)
    """`-log p_t` where p_k is proportional to `1 + o_k + o_k^2 / 2`, half of `(o_k + 1)^2 + 1`."""
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
    """What a Taylor softmax ranks classes by, in place of the logits."""
    return logits.add_(1).square_().add_(1).log_()


def spherical_score(logits: Tensor, *, eps: Tensor) -> Tensor:
    """What a spherical softmax ranks classes by, in place of the logits."""
    return logits.square_().add_(eps).log_()


@dataclass(frozen=True)
class StackedLoss:
    """A loss for all trials: see above."""

    of: Callable[..., Tensor]  # logits (T, B, C), target (T, B), hyper-parameters -> (T, B)
    score: Callable[..., Tensor] | None = (
        None  # what classes are ranked by, where it is not the logits
    )


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
    """`loss_of(a z) / a`. With g the gradient by a z, that by o is `(g - mean(g) - z mean(g z)) / sigma`."""
    mean, variance = _moments(logits)
    inverse_std = _inverse_std(mean, variance)
    z = logits.sub_(mean).mul_(inverse_std)
    grad = a * z
    loss = loss_of(grad, target) / a[..., 0]  # which leaves g there
    along_z = (grad * z).mean(-1, keepdim=True)
    shift = grad.mean(-1, keepdim=True)
    z.mul_(-along_z * inverse_std).addcmul_(grad.sub_(shift), inverse_std)
    return loss


def _moments(logits: Tensor) -> tuple[Tensor, Tensor]:  # (T, B, 1), (T, B, 1)
    """Mean and variance, with denominator C, without the cancellation of mean squares."""
    if logits.device.type == "cuda":
        variance, mean = torch.var_mean(logits, -1, correction=0, keepdim=True)
        return mean, variance
    # On a CPU torch's one pass takes ten times as long as these.
    mean = logits.mean(-1, keepdim=True)
    return mean, _sum_of_squares(logits - mean) / logits.shape[-1]


def _sum_of_squares(logits: Tensor) -> Tensor:  # (T, B, 1)
    """In one pass, without the squares."""
    norm: Tensor = torch.linalg.vector_norm(logits, dim=-1, keepdim=True)
    return norm.square()


def _inverse_std(mean: Tensor, variance: Tensor) -> Tensor:
    """0 for a row without spread, as `zloss.stats.z_normalize` has it: then z is 0, and so is every gradient."""
    info = torch.finfo(variance.dtype)
    noise = (4 * info.eps * mean).square().clamp_min(info.tiny)
    return torch.where(variance <= noise, 0, variance.rsqrt())


def _apply(logits: Tensor, alpha: Tensor, beta: Tensor) -> None:
    """`alpha o + beta` in one pass."""
    torch.addcmul(beta, logits, alpha, out=logits)


def _correct_target(grad: Tensor, index: Tensor, gamma: Tensor | float) -> None:
    """Add gamma to the gradient of the target."""
    grad.scatter_(-1, index, grad.gather(-1, index) + gamma)
