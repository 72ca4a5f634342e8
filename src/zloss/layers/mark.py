"""The mark: a small parameter beside V whose `.grad` stands for the gradient of the whole C x H matrix.

A recorded gradient is no `.grad`, so code that goes through the gradients of a model would not find it. It finds the
`.grad` of the mark. `zero_grad()` removes that, and so drops the record.

Under a `zloss.Optimizer` the mark also has the norm of the recorded gradient. `clip_grad_norm_` of torch then computes
the one norm of all gradients, and multiplies the mark by the same factor as the others. `GradScaler` divides it by its
scale, and finds a NaN or an infinity in it. At the step the layer multiplies its record by what the mark was multiplied
by. Only a common factor can be followed: the record has no single entries that could be clipped.
"""

from typing import Any, Self

import torch
from torch import Tensor, nn

# Not zero, and yet too small to change a norm of gradients that it is part of.
SMALLEST = 1e-20

# The second entry, as a part of the first. The norm of both is that of the first to 13 digits. So a limit of values
# that leaves the mark as it is leaves every entry of the gradient as it is. One that does not changes their proportion.
_SECOND = 2.0**-20
_ROUNDINGS = (
    64  # of multiplications, each of which may change the proportion by one unit in the last place
)


class GradientMark(nn.Parameter):
    """A parameter that has a `.grad`, not zero, exactly while a factored layer has a gradient of W recorded."""

    @classmethod
    def like(cls, weight: Tensor) -> Self:
        """Return a mark for a layer with this weight."""
        zeros = torch.zeros(2, device=weight.device, dtype=weight.dtype)
        return cls(zeros, requires_grad=weight.requires_grad)

    def detach(self) -> Tensor:
        """Return the values as a tensor, which refuses an average of weights if the layer is trained."""
        plain = self.data
        return plain.as_subclass(_NoAverage) if self.requires_grad else plain

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # Torch would make a plain parameter of it, and an optimizer in the same file would hold that one.
        return type(self), (self.data, self.requires_grad)


class _NoAverage(Tensor):
    """The values of a mark, as `AveragedModel` takes them before it writes an average to them."""

    def copy_(self, *_: Any, **__: Any) -> Self:
        raise ValueError(
            "the parameters of a model with a FactoredLinear cannot be averaged, as AveragedModel and EMA do: V is a "
            "factor of the weights, and an average of factors makes another matrix. Average the layers below, as in "
            "AveragedModel(model.trunk), and output.weight() by hand (guide: saving, averages of weights)"
        )


class WrittenNorm:
    """The norm of a gradient, written to the `.grad` of a mark, and what others have done to it since."""

    def __init__(self, mark: GradientMark, norm: Tensor) -> None:
        first = (
            norm.abs().clamp_min(SMALLEST).to(mark.dtype)
        )  # a zero would mean that no gradient is recorded
        self._mark = mark
        self._grad = mark.grad = torch.stack([first, _SECOND * first])
        self._version, self._values = self._grad._version, self._grad.clone()

    def factor_since(self) -> Tensor | None:  # ()
        """Return the factor by which others have multiplied the mark, None for one, or refuse other changes.

        On a GPU the host does not wait. There the factor of other changes is NaN, which the step refuses.
        """
        now = self._mark.grad
        assert now is not None, "a mark without a .grad has no record"
        on_cpu = now.device.type == "cpu"
        is_untouched = now is self._grad and now._version == self._version
        # Writes to `.data` are not counted.
        if is_untouched and not (on_cpu and not torch.equal(now, self._values)):
            return None
        finfo, (first, second), before = torch.finfo(now.dtype), now, self._values
        factor = first / before[0]
        expected = factor * before[1]
        limit = _ROUNDINGS * finfo.eps * expected.abs() + finfo.tiny
        is_common = (second - expected).abs() <= limit
        if on_cpu and factor.isfinite() and not is_common:
            raise ValueError(
                "the gradients were changed by more than a common factor, as clip_grad_value_ does. The gradient of a "
                "FactoredLinear has no single entries, so it can only be multiplied: clip by norm "
                "(in Lightning, gradient_clip_algorithm='norm'), and call zero_grad() before you go on"
            )
        return torch.where(is_common, factor, torch.nan)
