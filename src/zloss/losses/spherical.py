r"""The spherical family: losses that are functions of `SphericalStats` alone.

Each loss is written once, as a function from statistics to one value per example; each has a module around it that
adds reduction, row weights and ignored rows, and that takes either logits (dense) or statistics (factored):

    loss(logits, target)        the dense definition
    loss(layer(h, target))      the same loss, from a layer that never forms logits

A new member of the family is one such function and a three-line module; autograd supplies the gradient, and any layer
that yields `SphericalStats` can train it. `KERNELS` names those that a GPU computes in one launch, derivatives and all.

Notation: activations o_1..o_C with mean mu and standard deviation sigma (denominator C), target t.
With K targets per example a loss is the average of its K single-target values.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from zloss import kernels
from zloss.losses.loss import Loss
from zloss.losses.reduction import Reduction, reduce_loss
from zloss.stats import SphericalStats
from zloss.targets import IGNORE_INDEX, Targets

# Beyond this argument softplus(x) equals x to the last bit of a float64.
SOFTPLUS_IS_LINEAR = 40.0


def z_loss(stats: SphericalStats, *, a: float, b: float) -> Tensor:  # (B,)
    r"""The Z-loss, `softplus(a (b - z_t)) / a` with `z_t = (o_t - mu) / sigma` (equation 1 of the paper).

    Invariant to shifts and scalings of the activations. Its minimum over activations is at `z_t = sqrt(C - 1)`, the
    largest value that z_t can take. Not a likelihood: it ranks, it does not give probabilities.

    Args:
        stats: statistics of B examples.
        a: softness, > 0; a large one makes a hinge of it. Start from 10 / sqrt(C), from less for top-1 errors, from
            more for top-k errors with a high k.
        b: the z-score up to which a target is pushed. Start from 10.

    >>> stats = SphericalStats.from_logits(torch.tensor([[0.0, 0.0, 0.0, 1.0]]), torch.tensor([3]))
    >>> stats.z                                       # sqrt(C - 1)
    tensor([1.7321])
    >>> z_loss(stats, a=1.0, b=1.7320508)             # log(2)
    tensor([0.6931])

    Reference: A. de Brébisson and P. Vincent, The Z-loss, 2016.
    """
    _check_z_parameters(a, b)
    return stats.mean_over_targets(F.softplus(b - stats.z, beta=a, threshold=SOFTPLUS_IS_LINEAR))


def squared_error(stats: SphericalStats) -> Tensor:  # (B,)
    r"""Half the squared distance to the one-hot target, `1/2 sum_i (o_i - [i = t])^2 = (q - 2 o_t + 1) / 2`.

    >>> squared_error(SphericalStats.from_logits(torch.tensor([[0.0, 3.0]]), torch.tensor([1])))
    tensor([2.])
    """
    return stats.mean_over_targets(0.5 * (stats.per_row(stats.sumsq) - 2 * stats.target + 1))


def taylor_softmax(stats: SphericalStats) -> Tensor:  # (B,)
    r"""Negative log-likelihood of the Taylor softmax, `p_i` proportional to `1 + o_i + o_i^2 / 2`.

    >>> taylor_softmax(SphericalStats.from_logits(torch.zeros(1, 4), torch.tensor([0])))    # log(4)
    tensor([1.3863])
    """
    # 1 + x + x^2/2 = ((x + 1)^2 + 1) / 2: a sum of squares, here and summed over classes, so nothing cancels.
    own = (stats.target + 1).square() + 1
    total = stats.scatter + stats.num_classes * ((stats.mean + 1).square() + 1)
    return stats.mean_over_targets(stats.per_row(total.log()) - own.log())


def spherical_softmax(stats: SphericalStats, *, eps: float) -> Tensor:  # (B,)
    r"""Negative log-likelihood of the spherical softmax, `p_i` proportional to `o_i^2 + eps`.

    Args:
        stats: statistics of B examples.
        eps: > 0; keeps the likelihood of a zero activation away from 0.

    >>> spherical_softmax(SphericalStats.from_logits(torch.zeros(1, 4), torch.tensor([0])), eps=0.1)    # log(4)
    tensor([1.3863])
    """
    _check_eps(eps)
    own = stats.target.square() + eps
    total = stats.sumsq + stats.num_classes * eps
    return stats.mean_over_targets(stats.per_row(total.log()) - own.log())


class SphericalLoss(Loss):
    """A spherical loss with its hyper-parameters, reduction and treatment of ignored rows.

    Call it with statistics from a layer, or with logits and targets:

        loss(stats)                 loss(logits, target)              either with weight=(B,) row weights

    Args:
        reduction: "mean" over the rows that are not ignored, "sum", or "none" for one value per example.
        ignore_index: the target that counts for nothing. Only for logits: statistics have that of their layer, and
            another one is refused.
    """

    @abstractmethod
    def per_example(self, stats: SphericalStats) -> Tensor:  # (B,)
        """The loss of each example; 0 where every target is ignored."""

    def forward(
        self,
        input: SphericalStats | Tensor,
        target: Tensor | Targets | None = None,
        *,
        weight: Tensor | None = None,
    ) -> Tensor:
        stats = self._statistics(input, target)
        if has_kernel(self) and suits_kernels(stats, weight):
            return kernel_loss(self, stats, weight)
        return reduce_loss(self.per_example(stats), stats.counted, self.reduction, weight)

    def _statistics(
        self, input: SphericalStats | Tensor, target: Tensor | Targets | None
    ) -> SphericalStats:
        if isinstance(input, SphericalStats):
            if target is not None:
                raise ValueError(
                    "target was given twice: the statistics already hold it; call loss(stats)"
                )
            if input.ignore_index is not None and self.ignore_index not in (
                IGNORE_INDEX,
                input.ignore_index,
            ):
                raise ValueError(
                    f"this loss is to ignore the target {self.ignore_index}, but the layer that made the statistics "
                    f"has ignored {input.ignore_index}: say it to the layer, ignore_index={self.ignore_index}"
                )
            return input
        if target is None:
            raise ValueError(
                "logits need a target: call loss(logits, target), or loss(stats) with a layer's statistics"
            )
        return SphericalStats.from_logits(input, target, ignore_index=self.ignore_index)


class ZLoss(SphericalLoss):
    """The Z-loss as a module: see `z_loss` for the definition and `SphericalLoss` for how to call it.

    >>> logits = torch.tensor([[0.0, 1.0, 5.0], [2.0, 0.0, 1.0]])
    >>> ZLoss(a=0.1, b=10)(logits, torch.tensor([2, 0]))
    tensor(12.1945)
    """

    def __init__(
        self, *, a: float, b: float, reduction: Reduction = "mean", ignore_index: int = IGNORE_INDEX
    ) -> None:
        super().__init__(reduction=reduction, ignore_index=ignore_index)
        _check_z_parameters(a, b)
        self.a, self.b = a, b

    def per_example(self, stats: SphericalStats) -> Tensor:
        return z_loss(stats, a=self.a, b=self.b)

    def extra_repr(self) -> str:
        return f"a={self.a}, b={self.b}, reduction={self.reduction!r}"


class SquaredError(SphericalLoss):
    """Squared distance to the one-hot target as a module: see `squared_error` and `SphericalLoss`."""

    def per_example(self, stats: SphericalStats) -> Tensor:
        return squared_error(stats)


class TaylorSoftmax(SphericalLoss):
    """Taylor-softmax likelihood as a module: see `taylor_softmax` and `SphericalLoss`."""

    is_likelihood = True
    is_monotone = False  # the least probable activation is -1

    def score(self, logits: Tensor) -> Tensor:
        return ((logits + 1).square() + 1).log()

    def per_example(self, stats: SphericalStats) -> Tensor:
        return taylor_softmax(stats)


class SphericalSoftmax(SphericalLoss):
    """Spherical-softmax likelihood as a module: see `spherical_softmax` and `SphericalLoss`."""

    is_likelihood = True
    is_monotone = False  # an activation and its negative are equally probable

    def __init__(
        self, *, eps: float, reduction: Reduction = "mean", ignore_index: int = IGNORE_INDEX
    ) -> None:
        super().__init__(reduction=reduction, ignore_index=ignore_index)
        _check_eps(eps)
        self.eps = eps

    def per_example(self, stats: SphericalStats) -> Tensor:
        return spherical_softmax(stats, eps=self.eps)

    def score(self, logits: Tensor) -> Tensor:
        return (logits.square() + self.eps).log()

    def extra_repr(self) -> str:
        return f"eps={self.eps}, reduction={self.reduction!r}"


def _check_z_parameters(a: float, b: float) -> None:
    if not (math.isfinite(a) and a > 0):
        raise ValueError(f"a must be a finite number > 0, got {a}")
    if not math.isfinite(b):
        raise ValueError(f"b must be a finite number, got {b}")


def _check_eps(eps: float) -> None:
    if not (math.isfinite(eps) and eps > 0):
        raise ValueError(f"eps must be a finite number > 0, got {eps}")


# ---- in one launch on a GPU ------------------------------------------------------------------------------------------


class Kernel(NamedTuple):
    """The name of a kernel, the hyper-parameters that it takes from the loss, and who refuses bad ones."""

    name: str
    parameters: tuple[str, ...] = ()
    check: Callable[..., None] = lambda: None


# By the definition that they compute: who overrides `per_example` gets what they wrote.
KERNELS: dict[Callable[..., Tensor], Kernel] = {
    ZLoss.per_example: Kernel("z_loss", ("a", "b"), _check_z_parameters),
    SquaredError.per_example: Kernel("squared_error"),
    TaylorSoftmax.per_example: Kernel("taylor_softmax"),
    SphericalSoftmax.per_example: Kernel("spherical_softmax", ("eps",), _check_eps),
}
KERNEL_DTYPES = (torch.float32, torch.float64)


def has_kernel(loss: SphericalLoss) -> bool:
    """Whether a kernel computes this very loss; none does where a hyper-parameter is a tensor, which it cannot take."""
    kernel = KERNELS.get(type(loss).per_example)
    if kernel is None or "per_example" in vars(loss):
        return False
    return all(isinstance(getattr(loss, parameter), float | int) for parameter in kernel.parameters)


def suits_kernels(stats: SphericalStats, weight: Tensor | None) -> bool:
    """Whether kernels may stand in for autograd: on a GPU, where nobody can ask for more than first derivatives."""
    target, moments = stats.target, (stats.mean, stats.scatter)
    return (
        stats.once_differentiable
        and target.device.type == "cuda"
        and target.dtype in KERNEL_DTYPES
        and all(
            moment.dtype == target.dtype and moment.device == target.device for moment in moments
        )
        and (weight is None or _is_plain_weight(weight, stats))
        and kernels.available()
        and not torch.compiler.is_compiling()  # which fuses the definition by itself
        and bool(kernels.load("spherical_losses").fits(target))
    )


def _is_plain_weight(weight: Tensor, stats: SphericalStats) -> bool:
    """Others are for `reduce_loss`, which differentiates by them or says what is wrong with them."""
    return (
        isinstance(weight, Tensor)
        and weight.shape == stats.mean.shape
        and weight.device == stats.mean.device
        and weight.dtype in KERNEL_DTYPES
        and not weight.requires_grad
    )


def kernel_loss(
    loss: SphericalLoss, stats: SphericalStats, weight: Tensor | None = None
) -> Tensor:  # () or (B,)
    """What `loss(stats, weight=weight)` is by definition, from its kernel and only once differentiable."""
    kernel = KERNELS[type(loss).per_example]
    parameters = {name: getattr(loss, name) for name in kernel.parameters}
    kernel.check(**parameters)
    value: Tensor = kernels.load("spherical_losses").reduced_loss(
        kernel.name,
        stats.target,
        stats.mean,
        stats.scatter,
        stats.valid,
        weight,
        stats.num_classes,
        loss.reduction,
        **parameters,
    )
    return value
