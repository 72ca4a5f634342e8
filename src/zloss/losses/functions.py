r"""The spherical losses as functions of `SphericalStats`, with one value per example.

Each loss is written once, here. `zloss.losses.spherical` makes a module of each function. Autograd computes the
gradients.

Notation: activations o_1..o_C with mean mu and standard deviation sigma (denominator C), target t. With K targets per
example a loss is the average of its K single-target values.

Shape letters: B examples, C classes, K targets per example.
"""

import math

import torch.nn.functional as F
from torch import Tensor

from zloss.inputs import check_number, shown
from zloss.stats import SphericalStats

# Above this argument softplus(x) equals x to the last bit of a float64.
SOFTPLUS_IS_LINEAR = 40.0


# The defaults of the Z-loss. A z-score is at most sqrt(C - 1), so both depend on the number of classes.
_A_TIMES_MOST_Z, _LARGEST_B, _MOST_Z_OVER_B = 10.0, 10.0, 3.0


def default_a(num_classes: int) -> float:
    """Return the default softness a of the Z-loss for C classes, 10 / sqrt(C) to three digits.

    >>> default_a(10_000), default_a(200_000)
    (0.1, 0.0224)
    """
    return float(f"{_A_TIMES_MOST_Z / math.sqrt(num_classes):.3g}")


def default_b(num_classes: int) -> float:
    """Return the default b of the Z-loss for C classes: 10, and sqrt(C) / 3 to three digits if that is less.

    >>> default_b(10_000), default_b(100)
    (10.0, 3.33)
    """
    return min(_LARGEST_B, float(f"{math.sqrt(num_classes) / _MOST_Z_OVER_B:.3g}"))


def z_loss(
    stats: SphericalStats, *, a: float | None = None, b: float | None = None
) -> Tensor:  # (B,)
    r"""Return the Z-loss, `softplus(a (b - z_t)) / a` with `z_t = (o_t - mu) / sigma` (equation 1 of the paper).

    It does not change if all activations are shifted or scaled. Its minimum over activations is at `z_t = sqrt(C - 1)`,
    the largest possible value of z_t. It is not a likelihood: it ranks classes and gives no probabilities.

    Args:
        stats: statistics of B examples.
        a: the softness, > 0; by default 10 / sqrt(C). With a large a the loss becomes a hinge. A smaller value helps
            top-1 errors, and a larger value helps top-k errors with a high k.
        b: the z-score up to which the loss raises a target; by default 10, or sqrt(C) / 3 with less than 900 classes.

    Returns:
        One loss per example, (B,).

    >>> stats = SphericalStats.from_logits(torch.tensor([[0.0, 0.0, 0.0, 1.0]]), torch.tensor([3]))
    >>> stats.z                                       # sqrt(C - 1)
    tensor([1.7321])
    >>> z_loss(stats, a=1.0, b=1.7320508)             # log(2)
    tensor([0.6931])

    Reference: A. de Brébisson and P. Vincent, The Z-loss, 2016.
    """
    check_stats(stats)
    check_z_parameters(a, b)
    a = default_a(stats.num_classes) if a is None else a
    b = default_b(stats.num_classes) if b is None else b
    return stats.mean_over_targets(F.softplus(b - stats.z, beta=a, threshold=SOFTPLUS_IS_LINEAR))


def squared_error(stats: SphericalStats) -> Tensor:  # (B,)
    r"""Return half the squared distance to the one-hot target, `1/2 sum_i (o_i - [i = t])^2 = (q - 2 o_t + 1) / 2`.

    Here q is the sum of the squares of all activations.

    Args:
        stats: statistics of B examples.

    Returns:
        One loss per example, (B,).

    >>> squared_error(SphericalStats.from_logits(torch.tensor([[0.0, 3.0]]), torch.tensor([1])))
    tensor([2.])
    """
    check_stats(stats)
    return stats.mean_over_targets(0.5 * (stats.per_row(stats.sumsq) - 2 * stats.target + 1))


def taylor_softmax(stats: SphericalStats) -> Tensor:  # (B,)
    r"""Return the negative log-likelihood of the Taylor softmax, `p_i` proportional to `1 + o_i + o_i^2 / 2`.

    Args:
        stats: statistics of B examples.

    Returns:
        One loss per example, (B,).

    >>> taylor_softmax(SphericalStats.from_logits(torch.zeros(1, 4), torch.tensor([0])))    # log(4)
    tensor([1.3863])
    """
    check_stats(stats)
    # 1 + x + x^2/2 = ((x + 1)^2 + 1) / 2 is a sum of squares, and so is its sum over classes: nothing cancels.
    own = (stats.target + 1).square() + 1
    total = stats.scatter + stats.num_classes * ((stats.mean + 1).square() + 1)
    return stats.mean_over_targets(stats.per_row(total.log()) - own.log())


def spherical_softmax(stats: SphericalStats, *, eps: float) -> Tensor:  # (B,)
    r"""Return the negative log-likelihood of the spherical softmax, `p_i` proportional to `o_i^2 + eps`.

    Args:
        stats: statistics of B examples.
        eps: > 0, which keeps the likelihood of a zero activation away from 0.

    Returns:
        One loss per example, (B,).

    >>> spherical_softmax(SphericalStats.from_logits(torch.zeros(1, 4), torch.tensor([0])), eps=0.1)    # log(4)
    tensor([1.3863])
    """
    check_stats(stats)
    check_eps(eps)
    own = stats.target.square() + eps
    total = stats.sumsq + float(stats.num_classes) * eps
    return stats.mean_over_targets(stats.per_row(total.log()) - own.log())


def check_z_parameters(a: float | None, b: float | None) -> None:
    """Refuse hyper-parameters that the Z-loss cannot have."""
    if a is not None:
        check_number("a", a, above=0)
    if b is not None:
        check_number("b", b)


def check_eps(eps: float) -> None:
    """Refuse an eps that the spherical softmax cannot have."""
    check_number("eps", eps, above=0)


def check_stats(stats: SphericalStats) -> None:
    """Refuse anything else in the place of statistics."""
    if not isinstance(stats, SphericalStats):
        raise ValueError(
            f"stats must be SphericalStats, as a layer or SphericalStats.from_logits returns them, got {shown(stats)}"
        )
