"""Gradients that wait for a step: what backward passes have left, in a form that is no `.grad` and behaves like one."""

import warnings

import torch
from torch import Tensor, nn

from zloss.capture import is_capturing
from zloss.layers.gradient import RecordedGradient, concatenate

_FORGOTTEN_STEP = 100  # backward passes without a step before we suspect that there is no optimizer
_MARK = 1e-20  # told from zero, and lost in any norm of gradients that it gets into


class GradientMark(nn.Parameter):
    """Has a `.grad`, not zero, exactly while a factored layer has a gradient of W recorded.

    So `zero_grad()` of a model, or of any optimizer that holds its parameters, drops the record too, as it would the
    gradient of an `nn.Linear`.
    """

    @classmethod
    def like(cls, weight: Tensor) -> "GradientMark":
        """One for a layer with this weight."""
        return cls(
            torch.zeros(1, device=weight.device, dtype=weight.dtype),
            requires_grad=weight.requires_grad,
        )


class RecordsGradients(nn.Module):
    """A layer whose gradient is recorded in factored form, until a step uses it up or somebody zeroes it.

    Whoever makes one gives it both parameters.
    """

    V: nn.Parameter
    gradient_mark: nn.Parameter  # a `GradientMark`, but for the moment in which torch moves it

    def __init__(self) -> None:
        super().__init__()
        self._records: list[RecordedGradient] = []
        self._captured_records: list[RecordedGradient] = []
        self._passes_without_step: int | None = 0  # None once there was a step
        self._mark: Tensor | None = None
        self._mark_version = 0

    def record(self, gradient: RecordedGradient) -> None:
        """Add to the gradient that the next step will apply."""
        if self._is_zeroed():
            self._records = []
            self.gradient_mark.grad = self._intact_mark()
        self._records.append(gradient)
        if self._passes_without_step is None:
            return
        self._passes_without_step += 1
        if self._passes_without_step == _FORGOTTEN_STEP:
            warnings.warn(
                f"{_FORGOTTEN_STEP} backward passes without a step: give this layer to a FactoredSGD, as other "
                "optimizers pass over it",
                stacklevel=2,
            )

    def recorded_gradient(self) -> RecordedGradient | None:
        """The gradient of W left by the backward passes since the last step, in factored form; None without any."""
        if not self._has_gradient():
            return None
        self._warn_if_scaled()
        if len(self._records) > 1:
            self._records = [concatenate(self._records)]
        return self._records[0]

    def _has_gradient(self) -> bool:
        return bool(self._records) and not self._is_zeroed()

    def _intact_mark(self) -> Tensor:
        """The last one until somebody writes to it: in a graph, a launch to make another would delay every step."""
        mark, own = self._mark, self.gradient_mark
        if (
            mark is None
            or mark._version != self._mark_version
            or (mark.device, mark.dtype) != (own.device, own.dtype)
        ):
            mark = self._mark = torch.full_like(own, _MARK)
            self._mark_version = mark._version
        return mark

    def _is_zeroed(self) -> bool:
        mark = self.gradient_mark.grad
        if mark is None:
            return True
        # `set_to_none=False` writes a zero. Who has not been written to need not be read: a GPU would be waited for.
        # Writes to `.data` are not counted.
        is_suspect = mark._version != self._mark_version or mark.device.type == "cpu"
        return is_suspect and not is_capturing() and not mark.any()

    def _warn_if_scaled(self) -> None:
        mark = self.gradient_mark.grad
        if mark is None or mark._version == self._mark_version or is_capturing():
            return
        warnings.warn(
            "the gradients of the parameters were changed in place, as torch's clip_grad_norm_ and clip_grad_value_ "
            "do: that of a factored layer is none of them, and stays as it is; use zloss.clip_grad_norm_ or "
            "scale_grad_",
            stacklevel=2,
        )

    @torch.no_grad()
    def scale_grad_(self, factor: Tensor | float) -> None:
        """Multiply the recorded gradient by `factor`."""
        self._records = [record.scaled(factor) for record in self._records]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the recorded gradient."""
        super().zero_grad(set_to_none=True)
        self._records = []

    def _warn_if_zeroed_too_soon(self) -> None:
        if self._records:
            self._records = []
            warnings.warn(
                "the gradient was dropped before the step: the model, or another optimizer that holds this layer's "
                "parameters, was told to zero_grad() in between; take all steps first",
                stacklevel=2,
            )

    def _restore_mark(self) -> None:
        """After torch has made a plain parameter of it, or has given memory to a layer that had none."""
        if (
            not isinstance(self.gradient_mark, GradientMark)
            or self.gradient_mark.device != self.V.device
        ):
            self.gradient_mark = GradientMark.like(self.V)
