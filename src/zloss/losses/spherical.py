r"""The spherical losses as modules, with reduction, row weights and ignored rows, and their kernels.

A spherical loss is a function of `SphericalStats` alone: see `zloss.losses.functions`. So it can be computed in two
ways:

    loss(logits, target)        the dense definition
    loss(layer(h, target))      the same loss, from a layer that never forms logits

A new loss is one function and a module of a few lines. Any layer that computes `SphericalStats` can train it.
`KERNELS` lists the losses that a GPU computes in one launch, together with their derivatives.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from zloss import kernels
from zloss.inputs import FLOATS, check_tensor, check_whole
from zloss.losses.class_weight import weight_of
from zloss.losses.functions import (
    check_eps,
    check_z_parameters,
    default_a,
    default_b,
    spherical_softmax,
    squared_error,
    taylor_softmax,
    z_loss,
)
from zloss.losses.loss import Loss
from zloss.losses.reduction import Reduction, reduce_loss
from zloss.stats import SphericalStats
from zloss.targets import IGNORE_INDEX, Targets


class SphericalLoss(Loss):
    """A spherical loss with its hyper-parameters, its reduction and ignored rows.

    It takes statistics from a layer, or logits and targets. Both forms take row weights as `weight=(B,)`:

        loss(stats)
        loss(logits, target)

    Args:
        reduction: "mean" over the rows that are not ignored, "sum", or "none" for one value per example.
        ignore_index: the target that is ignored. It is used for logits only: statistics use the ignore_index of their
            layer, and the loss refuses a different one.
        class_weight: a weight for each class, (C,), which multiplies the losses of its targets: see
            `zloss.balanced_weights`. It does not scale the loss of K targets as a whole, but each of them.
    """

    @abstractmethod
    def per_example(self, stats: SphericalStats) -> Tensor:  # (B,)
        """Return the loss of each example, 0 if every target is ignored."""

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
        return reduce_loss(self._weighted(stats), stats.counted, self.reduction, weight)

    def _weighted(self, stats: SphericalStats) -> Tensor:  # (B,)
        """Return the loss of each example with the weights of its targets."""
        weights = self._target_weight(stats)
        if weights is None:
            return self.per_example(stats)
        # By definition a loss is the average over the targets of an example, so each of them can be taken by itself.
        values = self.per_example(stats.of_single_targets()).reshape(weights.shape)
        return stats.mean_over_targets(values * weights.to(values.dtype))

    def _target_weight(self, stats: SphericalStats) -> Tensor | None:  # as stats.target
        """Return the weights of the classes of the targets, or None if this loss has no weights of classes."""
        if self.class_weight is None:
            return None
        if stats.classes is None:
            raise ValueError(
                "class_weight needs the classes of the targets, which these statistics do not hold: take them from a "
                "layer, or give classes=target to SphericalStats.from_moments"
            )
        return weight_of(stats.classes, self.class_weight, stats.num_classes)

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
                    f"this loss ignores the target {self.ignore_index}, but the layer that made the statistics "
                    f"ignores {input.ignore_index}: say it to the layer, ignore_index={self.ignore_index}"
                )
            return input
        if target is None:
            raise ValueError(
                "logits need a target: call loss(logits, target), or loss(stats) with a layer's statistics"
            )
        return SphericalStats.from_logits(input, target, ignore_index=self.ignore_index)


class ZLoss(SphericalLoss):
    """The Z-loss as a module: see `z_loss` for the definition, and `SphericalLoss` for the arguments of a call.

    What is not given has a default for the number of classes of each call, as `parameters_for` returns it.

    >>> logits = torch.tensor([[0.0, 1.0, 5.0], [2.0, 0.0, 1.0]])
    >>> ZLoss(a=0.1, b=10)(logits, torch.tensor([2, 0]))
    tensor(12.1945)
    >>> ZLoss().parameters_for(200_000)
    {'a': 0.0224, 'b': 10.0}
    """

    def __init__(
        self,
        *,
        a: float | None = None,
        b: float | None = None,
        reduction: Reduction = "mean",
        ignore_index: int = IGNORE_INDEX,
        class_weight: Tensor | None = None,
    ) -> None:
        super().__init__(reduction=reduction, ignore_index=ignore_index, class_weight=class_weight)
        check_z_parameters(a, b)
        self.a, self.b = a, b

    def parameters_for(self, num_classes: int) -> dict[str, float]:
        """Return a and b as they are, or as their defaults for this number of classes."""
        check_whole("num_classes", num_classes, least=1)
        a = default_a(num_classes) if self.a is None else self.a
        return {"a": a, "b": default_b(num_classes) if self.b is None else self.b}

    def per_example(self, stats: SphericalStats) -> Tensor:
        return z_loss(stats, a=self.a, b=self.b)

    def extra_repr(self) -> str:
        return f"a={self.a}, b={self.b}, reduction={self.reduction!r}"


class SquaredError(SphericalLoss):
    """The squared distance to the one-hot target as a module: see `squared_error` and `SphericalLoss`.

    >>> SquaredError()(torch.tensor([[0.0, 3.0]]), torch.tensor([1]))
    tensor(2.)
    """

    def per_example(self, stats: SphericalStats) -> Tensor:
        return squared_error(stats)


class TaylorSoftmax(SphericalLoss):
    """The likelihood of the Taylor softmax as a module: see `taylor_softmax` and `SphericalLoss`.

    >>> TaylorSoftmax()(torch.zeros(1, 4), torch.tensor([0]))    # log(4)
    tensor(1.3863)
    """

    is_likelihood = True
    is_monotone = False  # the least probable activation is -1

    def score(self, logits: Tensor) -> Tensor:
        check_tensor("logits", logits, FLOATS)
        return ((logits + 1).square() + 1).log()

    def per_example(self, stats: SphericalStats) -> Tensor:
        return taylor_softmax(stats)


class SphericalSoftmax(SphericalLoss):
    """The likelihood of the spherical softmax as a module: see `spherical_softmax` and `SphericalLoss`.

    >>> SphericalSoftmax(eps=0.1)(torch.zeros(1, 4), torch.tensor([0]))    # log(4)
    tensor(1.3863)
    """

    is_likelihood = True
    is_monotone = False  # an activation and its negative are equally probable

    def __init__(
        self,
        *,
        eps: float,
        reduction: Reduction = "mean",
        ignore_index: int = IGNORE_INDEX,
        class_weight: Tensor | None = None,
    ) -> None:
        super().__init__(reduction=reduction, ignore_index=ignore_index, class_weight=class_weight)
        check_eps(eps)
        self.eps = eps

    def per_example(self, stats: SphericalStats) -> Tensor:
        return spherical_softmax(stats, eps=self.eps)

    def score(self, logits: Tensor) -> Tensor:
        check_tensor("logits", logits, FLOATS)
        return (logits.square() + self.eps).log()

    def extra_repr(self) -> str:
        return f"eps={self.eps}, reduction={self.reduction!r}"


# ---- kernels on a GPU ------------------------------------------------------------------------------------------------


class Kernel(NamedTuple):
    """The name of a kernel, the hyper-parameters that it takes from the loss, and the check of these."""

    name: str
    parameters: tuple[str, ...] = ()
    check: Callable[..., None] = lambda: None


# The keys are the definitions that the kernels compute. A subclass with another `per_example` has no kernel.
KERNELS: dict[Callable[..., Tensor], Kernel] = {
    ZLoss.per_example: Kernel("z_loss", ("a", "b"), check_z_parameters),
    SquaredError.per_example: Kernel("squared_error"),
    TaylorSoftmax.per_example: Kernel("taylor_softmax"),
    SphericalSoftmax.per_example: Kernel("spherical_softmax", ("eps",), check_eps),
}
KERNEL_DTYPES = (torch.float32, torch.float64)


def has_kernel(loss: SphericalLoss) -> bool:
    """Return whether a kernel computes this loss. Kernels cannot take a tensor as a hyper-parameter."""
    kernel = KERNELS.get(type(loss).per_example)
    if kernel is None or "per_example" in vars(loss):
        return False
    given = (getattr(loss, parameter) for parameter in kernel.parameters)
    return all(value is None or isinstance(value, float | int) for value in given)


def suits_kernels(stats: SphericalStats, weight: Tensor | None) -> bool:
    """Return whether kernels may replace autograd: on a GPU, for statistics that have only first derivatives."""
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
        and not torch.compiler.is_compiling()  # the compiler fuses the definition itself
        and bool(kernels.load("spherical_losses").fits(target))
    )


def _is_plain_weight(weight: Tensor, stats: SphericalStats) -> bool:
    """Return whether kernels can take this weight. `reduce_loss` takes other weights, or refuses them."""
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
    """Return `loss(stats, weight=weight)` from its kernel, with first derivatives only."""
    kernel = KERNELS[type(loss).per_example]
    parameters = {name: getattr(loss, name) for name in kernel.parameters}
    if isinstance(loss, ZLoss):
        parameters = loss.parameters_for(stats.num_classes)
    kernel.check(**parameters)
    value: Tensor = kernels.load("spherical_losses").reduced_loss(
        kernel.name,
        stats.target,
        stats.mean,
        stats.scatter,
        stats.valid,
        weight,
        loss._target_weight(stats),
        stats.num_classes,
        loss.reduction,
        **parameters,
    )
    return value
