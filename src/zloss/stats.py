"""Spherical statistics: the few numbers through which a spherical loss depends on the C activations of an example.

A loss is *spherical* when it depends on the pre-activations `o = W h` only through

    the targets' own activations   o_t                (K of them per example)
    their sum                      s = sum_i o_i
    the sum of their squares       q = sum_i o_i^2

`SphericalStats` is the narrow waist between the two halves of the library. Losses are small functions *of* it. Output
layers are ways to *obtain* it. Neither half imports the other. A dense layer obtains it from logits in O(C H) per
example. `zloss.FactoredLinear` obtains it in O(H^2) and never forms a logit.

Inside, the sum and the sum of squares are kept as the mean and the sum of squared deviations, called `scatter`. The
reason is that `q / C - mean^2` cancels catastrophically when the mean dominates. Also, the centred Gram matrix of a
factored layer gives the scatter directly.

Shape letters: B examples, K targets per example, C classes.
"""

# Long because the statistics, their checks and the moments that they are made of explain each other.
import torch
from torch import Tensor

from zloss.inputs import (
    FLOATS,
    INTEGERS,
    check_flag,
    check_same_device,
    check_tensor,
    checked_classes,
    fault_of_tensor,
    is_whole,
    shown,
)
from zloss.targets import IGNORE_INDEX, Targets, check_ignore_index, checked_targets


class SphericalStats:
    """The activations of the targets, and the first two moments of all activations, for each example of a batch.

    Args:
        target: activations of the targets, (B,) or (B, K).
        sum: sum of all C activations of each example, (B,).
        sumsq: sum of their squares, (B,).
        num_classes: C.
        valid: the targets that count, a bool tensor of the shape of `target`; None if all count.

    Prefer `from_logits` or `from_moments`, which do not lose the variance to cancellation.

    >>> stats = SphericalStats.from_logits(torch.tensor([[1.0, 2.0, 6.0]]), torch.tensor([2]))
    >>> stats.target, stats.sum, stats.sumsq
    (tensor([6.]), tensor([9.]), tensor([41.]))
    """

    __slots__ = (
        "classes",
        "ignore_index",
        "mean",
        "num_classes",
        "once_differentiable",
        "scatter",
        "target",
        "valid",
    )

    target: Tensor  # (B,) or (B, K)
    mean: Tensor  # (B,)
    scatter: Tensor  # (B,) sum of squared deviations from the mean
    num_classes: int
    valid: Tensor  # as target, bool
    classes: Tensor | None  # as target, int64, if they are known; 0 where not valid
    once_differentiable: bool  # the layer has first derivatives only: a loss needs no second ones
    ignore_index: int | None  # the target that the layer has ignored, if that is known

    def __init__(
        self,
        target: Tensor,  # (B,) or (B, K)
        sum: Tensor,  # (B,)
        sumsq: Tensor,  # (B,)
        num_classes: int,
        *,
        valid: Tensor | None = None,
    ) -> None:
        _check_shapes(target, sum, sumsq, num_classes, valid)
        mean = sum / num_classes
        self._set(target, mean, (sumsq - sum * mean).clamp_min(0), num_classes, valid, None)

    @classmethod
    def from_moments(
        cls,
        target: Tensor,  # (B,) or (B, K)
        mean: Tensor,  # (B,)
        scatter: Tensor,  # (B,)
        num_classes: int,
        *,
        valid: Tensor | None = None,
        classes: Tensor | None = None,
        once_differentiable: bool = False,
        ignore_index: int | None = None,
    ) -> "SphericalStats":
        """Return statistics from the mean and the sum of squared deviations, which lose nothing to cancellation.

        Args:
            target: activations of the targets, (B,) or (B, K).
            mean: mean of all C activations of each example, (B,).
            scatter: sum of their squared deviations from the mean, (B,).
            num_classes: C.
            valid: the targets that count, a bool tensor of the shape of `target`; None if all count.
            classes: the classes of the targets, in their shape, for losses with weights of classes; None if unknown.
            once_differentiable: True if these tensors come from a function without second derivatives. A loss may then
                compute its first derivatives together with its value, in fewer launches.
            ignore_index: the target that the layer has ignored. A loss with another `ignore_index` refuses the
                statistics.

        >>> stats = SphericalStats.from_moments(torch.tensor([6.0]), torch.tensor([3.0]), torch.tensor([14.0]), 3)
        >>> stats.sum, stats.sumsq
        (tensor([9.]), tensor([41.]))
        """
        _check_shapes(target, mean, scatter, num_classes, valid)
        check_flag("once_differentiable", once_differentiable)
        if ignore_index is not None:
            check_ignore_index(ignore_index)
        return stats_of_layer(
            target,
            mean,
            scatter,
            num_classes,
            valid=valid,
            classes=_checked_classes(classes, target, valid, num_classes),
            once_differentiable=once_differentiable,
            ignore_index=ignore_index,
        )

    @classmethod
    def from_logits(
        cls,
        logits: Tensor,  # (B, C)
        target: Tensor | Targets,  # (B,) or (B, K)
        *,
        ignore_index: int = IGNORE_INDEX,
    ) -> "SphericalStats":
        """Return the statistics of dense logits, which is their definition. Sums of half-precision logits are float32.

        Args:
            logits: the activations of all classes, (B, C).
            target: class indices, (B,) or (B, K).
            ignore_index: the target that counts for nothing.
        """
        logits = checked_logits(logits)
        check_ignore_index(ignore_index)
        check_same_device(logits, target, "logits")
        targets = checked_targets(target, logits.shape[0], logits.shape[1], ignore_index)
        mean, scatter = mean_and_scatter(logits)
        # Padding points at class 0: cut it off, value and gradient alike.
        own = torch.where(targets.valid, logits.gather(1, targets.index), 0)
        return stats_of_layer(
            own.reshape(target.shape),
            mean,
            scatter,
            logits.shape[1],
            valid=targets.valid.reshape(target.shape),
            classes=targets.index.reshape(target.shape),
            ignore_index=ignore_index,
        )

    def _set(
        self,
        target: Tensor,
        mean: Tensor,
        scatter: Tensor,
        num_classes: int,
        valid: Tensor | None,
        classes: Tensor | None,
        once_differentiable: bool = False,
        ignore_index: int | None = None,
    ) -> None:
        self.target, self.mean, self.scatter, self.num_classes = target, mean, scatter, num_classes
        self.classes = classes
        self.valid = torch.ones_like(target, dtype=torch.bool) if valid is None else valid
        self.once_differentiable, self.ignore_index = once_differentiable, ignore_index

    @property
    def sum(self) -> Tensor:  # (B,)
        """The sum of all activations of each example."""
        return self.mean * self.num_classes

    @property
    def sumsq(self) -> Tensor:  # (B,)
        """The sum of the squares of all activations of each example."""
        return self.scatter + self.num_classes * self.mean.square()

    @property
    def variance(self) -> Tensor:  # (B,)
        """The variance of the activations of each example, with denominator C as in the paper."""
        return self.scatter / self.num_classes

    @property
    def z(self) -> Tensor:  # as target
        """The Z-normalised activations of the targets, `(o_t - mean) / std`; 0 where all activations are equal."""
        return z_normalize(self.target, self.mean, self.variance)

    def per_row(self, vector: Tensor) -> Tensor:
        """Shape a (B,) vector so that it broadcasts against `target`."""
        if not _is_like(vector, self.mean):
            check_tensor("vector", vector, FLOATS, like=self.mean)
        return vector.reshape(-1, *[1] * (self.target.dim() - 1))

    def mean_over_targets(self, values: Tensor) -> Tensor:  # as target -> (B,)
        """Average one value per target into one per example; 0 where every target is ignored."""
        if not _is_like(values, self.target):
            check_tensor("values", values, FLOATS, like=self.target)
        values = torch.where(self.valid, values, 0)
        if values.dim() == 1:
            return values
        return values.sum(1) / self.valid.sum(1).clamp_min(1)

    @property
    def counted(self) -> Tensor:  # (B,) bool
        """The examples that have at least one target which is not ignored."""
        return self.valid if self.valid.dim() == 1 else self.valid.any(1)

    def of_single_targets(self) -> "SphericalStats":
        """Return the statistics of B K examples with one target each, example by example."""
        columns = self.target.shape[1] if self.target.dim() == 2 else 1
        return stats_of_layer(
            self.target.flatten(),
            self.mean.repeat_interleave(columns),
            self.scatter.repeat_interleave(columns),
            self.num_classes,
            valid=self.valid.flatten(),
            classes=None if self.classes is None else self.classes.flatten(),
            once_differentiable=self.once_differentiable,
            ignore_index=self.ignore_index,
        )

    def __repr__(self) -> str:
        return f"SphericalStats(target={tuple(self.target.shape)}, num_classes={self.num_classes})"


def stats_of_layer(
    target: Tensor,  # (B,) or (B, K)
    mean: Tensor,  # (B,)
    scatter: Tensor,  # (B,)
    num_classes: int,
    *,
    valid: Tensor | None,
    classes: Tensor | None,
    once_differentiable: bool = False,
    ignore_index: int | None,
) -> SphericalStats:
    """Return the statistics of a layer of this library, without the checks of `SphericalStats.from_moments`."""
    stats = SphericalStats.__new__(SphericalStats)
    stats._set(
        target, mean, scatter, num_classes, valid, classes, once_differentiable, ignore_index
    )
    return stats


def _is_like(values: Tensor, like: Tensor) -> bool:
    """Return True for the values that losses give in every step, of which nothing else has to be checked."""
    return (
        type(values) is Tensor
        and not values.is_nested
        and values.shape == like.shape
        and values.dtype == like.dtype
        and values.layout is like.layout
        and values.device == like.device
    )


def _check_shapes(
    target: Tensor, first: Tensor, second: Tensor, num_classes: int, valid: Tensor | None
) -> None:
    if not is_whole(num_classes) or num_classes < 2:
        raise ValueError(
            f"num_classes must be a whole number of at least 2, got {shown(num_classes)}"
        )
    for part in (target, first, second):
        if fault := fault_of_tensor(part, FLOATS):
            raise ValueError(
                f"target and sums must be tensors of floating-point numbers, got {fault}"
            )
    rows = target.shape[:1]
    if target.dim() not in (1, 2) or first.shape != rows or second.shape != rows:
        raise ValueError(
            "expected target of shape (B,) or (B, K) and sums of shape (B,), got "
            f"{tuple(target.shape)}, {tuple(first.shape)} and {tuple(second.shape)}"
        )
    if not target.device == first.device == second.device:
        raise ValueError(
            f"expected everything on one device, got {target.device}, {first.device} and {second.device}"
        )
    if valid is not None:
        check_tensor("valid", valid, {torch.bool}, like=target)


def _checked_classes(
    classes: Tensor | None, target: Tensor, valid: Tensor | None, num_classes: int
) -> Tensor | None:
    """Return the classes of the targets as int64, 0 where a target does not count."""
    if classes is None:
        return None
    check_tensor("classes", classes, INTEGERS, like=target)
    if valid is not None:
        classes = torch.where(valid, classes.long(), 0)
    return checked_classes("classes", classes, num_classes)


def checked_logits(logits: Tensor) -> Tensor:  # (B, C) -> (B, C)
    """Return the logits in float32 at least: half precision is for products, not for sums over classes.

    Refuses anything but a (B, C) tensor of floating-point logits with at least two classes.
    """
    if fault := fault_of_tensor(logits, FLOATS):
        raise ValueError(f"logits must be a floating-point tensor of shape (B, C), got {fault}")
    if logits.dim() != 2 or logits.shape[1] < 2:
        raise ValueError(f"logits must have shape (B, C) with C >= 2, got {tuple(logits.shape)}")
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def mean_and_scatter(logits: Tensor) -> tuple[Tensor, Tensor]:  # (B, C) -> (B,), (B,)
    """Return the mean and the sum of squared deviations of each row."""
    mean = logits.mean(1)
    mean = mean + (logits - mean[:, None]).mean(1)  # correct the rounding error, which grows with C
    return mean, (logits - mean[:, None]).square().sum(1)


def z_normalize(
    values: Tensor,  # (B,) or (B, K)
    mean: Tensor,  # (B,)
    variance: Tensor,  # (B,)
) -> Tensor:
    """Return `(values - mean) / std`, and 0 with zero gradient on rows without spread.

    A row has no spread if its standard deviation is no larger than the rounding error of its mean. Such a deviation
    is noise, and division would blow it up.
    """
    info = torch.finfo(variance.dtype)
    noise = (4 * info.eps * mean.detach()).square().clamp_min(info.tiny)
    flat = variance <= noise
    std = torch.where(flat, 1, variance).sqrt()
    row = (-1, *[1] * (values.dim() - 1))
    z = (values - mean.reshape(row)) / std.reshape(row)
    return torch.where(flat.reshape(row), 0, z)
