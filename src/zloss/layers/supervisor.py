"""Faults of batches and steps, and how they are reported without making a GPU wait.

On a CPU a fault is a `ValueError` at once. On a GPU that would mean waiting for the device on every step. So a bit is
set there, and no further step is taken while any bit is set. The host raises the same `ValueError` when it reads the
bits: a few steps later, or at the next call that reads results anyway.
"""

import math
import warnings
from enum import IntFlag
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zloss.inputs import NotFiniteError
from zloss.layers.device_reports import MOST_AHEAD, DeviceReports
from zloss.targets import out_of_range_message, row_id_message

# How much smaller than the rest one direction of U may become: rounding errors of V there are that much larger in W.
_MAX_SHRINKAGE = {torch.float32: 30.0, torch.float64: 1e4}
# Weight decay shrinks U as a whole; multiply it into V long before V could overflow.
_MAX_SCALE = 1e6
# A host that runs ahead of its GPU sees the condition pass its limit late. The device itself refuses further steps when
# the condition exceeds the limit this many times over.
_MOST_OVER_LIMIT = 16.0
# A host may run ahead by this part of the steps that have gone well, so that it sees the condition grow by little more.
_TRUST = 16
# This number of refactors, each within this number of steps after the last: the learning rate is too large.
_HASTY_REFACTORS, _HASTY_STEPS = 5, 10
# A refactor takes as long as C / (4 (B + H)) steps, as measured on a CPU. If the steps since the last one took longer,
# frequent refactors are cheap.
_CLASSES_FOR_A_ROW = 4
# The part of a rate that is named as safe. With smaller steps the weights grow less, and smaller weights turn faster.
_MARGIN = 0.25


class Fault(IntFlag):
    """A reason to refuse a batch or a step."""

    TARGET = 1  # a target is not a class
    HIDDEN = 2  # h has a NaN or an infinity
    GRADIENT = 4  # the upstream gradient has, or the step would overflow
    SINGULAR = 8  # P is singular or nearly so
    ROW = 16  # a row was looked up that does not exist


class RefusedStepError(ValueError):
    """A step that was not taken; the layer is as it was before. `safe_lr` is a learning rate that would do."""

    def __init__(self, message: str, safe_lr: float) -> None:
        super().__init__(message)
        self.safe_lr = safe_lr


def fault_error(fault: Fault, safe_lr: float, num_classes: int) -> ValueError:
    """Return the error for the first of the bits that are set."""
    if Fault.TARGET in fault:
        return ValueError(out_of_range_message("a target", num_classes))
    if Fault.ROW in fault:
        return ValueError(row_id_message("an id of rows()", num_classes))
    if Fault.HIDDEN in fault:
        return NotFiniteError(
            "h has a NaN or an infinity (or activations that overflow): check the layers below, and whether the "
            "weights of this one are finite"
        )
    if Fault.GRADIENT in fault:
        is_known = 0 < safe_lr < math.inf
        stable = f" (with lr <= {safe_lr:.3g} this step is stable)" if is_known else ""
        return RefusedStepError(
            "step refused, the layer is unchanged: the gradient has a NaN or an infinity, or the step would overflow "
            f"the weights; lower the learning rate{stable}, clip the gradient, or drop it with zero_grad() and go on",
            safe_lr,
        )
    return RefusedStepError(
        "step refused, the layer is unchanged: with so large a learning rate the update matrix stretches the weights "
        f"too far or is nearly singular; use lr <= {safe_lr:.3g}, or FactoredLinear(..., synchronous=True), which "
        "takes such steps another way; without CapturedStep only steps much nearer to singular are refused",
        safe_lr,
    )


class Supervisor:
    """Keeper of the faults of one layer or head, and of the reports on its steps that are on their way to the host.

    Args:
        num_classes: C, for messages.
        synchronous: wait for every verdict on a GPU as well, so that faults are raised at once.
    """

    def __init__(self, num_classes: int, *, synchronous: bool = False) -> None:
        self.num_classes, self.synchronous = num_classes, synchronous
        self._fault: Tensor | None = None  # () bits of `Fault`, on a GPU
        self._reports = DeviceReports()

    def waits_for(self, device: torch.device) -> bool:
        """Return whether verdicts are read at once: always on a CPU, where that is free."""
        return self.synchronous or device.type != "cuda"

    @property
    def fault(self) -> Tensor:  # () int64
        """The bits that are kept on a device, after `fault_on`."""
        assert self._fault is not None, "a batch has been noted before"
        return self._fault

    def fault_on(self, device: torch.device) -> Tensor:  # () int64
        """Return the bits that are kept on a device."""
        if self._fault is None or self._fault.device != device:
            self._reports = DeviceReports()  # the old ones belong to another device
            # A validation in inference mode may come first, and training has to be able to write to them.
            with torch.inference_mode(False):
                self._fault = torch.zeros((), device=device, dtype=torch.long)
        return self._fault

    def inspect(self, bits: Tensor) -> Tensor:  # () -> () bool
        """Refuse a batch with these fault bits: raise at once, or note them on the device.

        Returns whether the batch is refused.
        """
        if not self.waits_for(bits.device):
            return self.note(bits)
        if fault := Fault(int(bits)):
            raise self.error(fault)
        return bits != 0

    def note(self, bits: Tensor) -> Tensor:  # () -> () bool
        """Note fault bits on the device. Returns whether there are any."""
        self.fault_on(bits.device).bitwise_or_(bits)
        return bits != 0

    def standing_fault(self) -> Fault:
        """Return what was refused on the device and not reported yet. Waits for the device."""
        if self._fault is None or self.waits_for(self._fault.device):
            return Fault(0)
        return Fault(int(self._fault))

    def error(self, fault: Fault, safe_lr: float = math.nan) -> ValueError:
        """Return the error of a fault."""
        return fault_error(fault, safe_lr, self.num_classes)

    def raise_if(self, fault: Fault) -> None:
        """Raise the error of a fault, if there is one, and forget what was noted."""
        if fault:
            self.forget()
            raise self.error(fault)

    def forget(self) -> None:
        """Drop noted faults, and reports that are under way."""
        if self._fault is not None:
            self._fault.zero_()  # in place: a captured step goes on writing there
        self._reports.forget()

    # ---- reports -----------------------------------------------------------------------------------------------------

    def send(self, report: Tensor) -> None:
        """Send a report on its way to the host."""
        self._reports.push(report)

    def arrived(self, ahead: int = MOST_AHEAD) -> Tensor | None:
        """Return the newest report that has arrived since the last call, or None."""
        return self._reports.latest(ahead)

    def after_replay(self, report: Tensor, ahead: int = MOST_AHEAD) -> Tensor | None:
        """Send the report of a captured step every few replays, and return the newest that has arrived."""
        return self._reports.after_replay(report, ahead)

    def forget_reports(self) -> None:
        """Pass over the reports that are under way."""
        self._reports.forget()

    def restart_reports(self) -> None:
        """Begin with reports of another length, or on another device."""
        self._reports = DeviceReports()

    def __getstate__(self) -> dict[str, Any]:
        # A copy has no part in what the original has under way on a device.
        return self.__dict__ | {"_fault": None, "_reports": DeviceReports()}


class Health(NamedTuple):
    """Facts about a step that decide whether it is applied, and whether the layer refactors."""

    fault: int  # bits of `Fault` that stand
    safe_lr: float  # a learning rate at which P is far from singular
    condition: float  # of U after the step
    scale: float  # |U^-1|_F / sqrt(H): weight decay shrinks U as a whole, which its condition does not show

    @classmethod
    def read(cls, report: Tensor, width: int) -> "Health":
        """Read a report: fault, safe lr, then the squared norm of U in parts, then that of U^-1 in as many."""
        report = (
            report.cpu()
        )  # at once: to read it piece by piece would mean to wait for a device twice
        fault, safe_lr = report[:2].tolist()
        U_squares, inverse_squares = report[2:].reshape(2, -1).sum(1).tolist()
        condition = math.sqrt(U_squares * inverse_squares) / width
        return cls(int(fault), safe_lr, condition, math.sqrt(inverse_squares / width))


class Conditioning:
    """The limit of the condition of U, and the history of the refactors that keep it.

    `U^-1` makes V grow where U shrinks; left alone, the condition of U grows without bound and the digits of W drown.
    The remedy is to *refactor*: multiply U into V, set U to the identity, and take all statistics anew. That is one
    pass over V. U drifts in proportion to 1/C, so the passes become rarer as they become dearer.
    """

    def __init__(self, max_condition: float | None) -> None:
        if max_condition is not None and not max_condition > 1:
            raise ValueError(
                f"max_condition must be greater than 1, which a refactor restores, got {max_condition}"
            )
        self.max_condition = max_condition
        self.refactors = 0
        self.drift: Tensor | None = None  # found by the latest refactor
        self.steps_since_refactor = self._hasty_refactors = 0
        self._fewest_steps = _HASTY_STEPS  # between hasty refactors in a row
        self._last_lr, self._refactor_cost = math.nan, math.inf  # the cost in steps like the last

    def limit(self, width: int, dtype: torch.dtype) -> float:
        """Return the condition from which on a layer of this width and dtype refactors.

        By default it is that of an identity in which one direction has shrunk so much.
        """
        return self.max_condition or math.sqrt(1 + _MAX_SHRINKAGE[dtype] ** 2 / width)

    def most(self, width: int, dtype: torch.dtype) -> float:
        """Return the condition from which on a device refuses steps, because the host has not refactored in time."""
        return _MOST_OVER_LIMIT * self.limit(width, dtype)

    @property
    def steps_ahead(self) -> int:
        """The number of steps that a host may run ahead of its device: few soon after a refactor.

        The condition grows exponentially. Where no refactor was needed for n steps, n / 16 more change it by little.
        """
        return min(MOST_AHEAD, max(1, self.steps_since_refactor // _TRUST))

    def is_sound(self, health: Health, width: int, dtype: torch.dtype) -> bool:
        """Return whether the factors can stay as they are."""
        is_large = not 1 / _MAX_SCALE <= health.scale <= _MAX_SCALE
        return health.condition <= self.limit(width, dtype) and not is_large

    def note_refactor(self, drift: Tensor) -> None:
        """Count a refactor that has found this drift."""
        self.drift = drift
        self.refactors += 1
        self.steps_since_refactor = 0

    def note_step(self, lr: float, batch_rows: int, num_rows: int, width: int) -> None:
        """Note the rate of the next step, and its cost. For replays this happens once, when the step is captured."""
        self._last_lr = lr
        self._refactor_cost = num_rows / (_CLASSES_FOR_A_ROW * (batch_rows + width))

    def warn_if_hasty(self, safe_lr: float) -> None:
        """Warn where one refactor follows the other and costs more than the steps; to be called before a refactor.

        At `safe_lr` the latest step would have shrunk no direction of U by more than half.
        """
        steps = self.steps_since_refactor + 1  # with the step that brings it about
        # At the end of a schedule the rate may be 0, and a report from a GPU older than that.
        if steps > min(_HASTY_STEPS, self._refactor_cost) or self._last_lr == 0:
            self._hasty_refactors, self._fewest_steps = 0, _HASTY_STEPS
            return
        self._hasty_refactors += 1
        self._fewest_steps = min(self._fewest_steps, steps)
        if self._hasty_refactors == _HASTY_REFACTORS:
            # With this rate, refactors would be rarer in the same proportion, were it not for smaller weights.
            rarer = self._last_lr * self._fewest_steps / _HASTY_STEPS
            part = _MARGIN * min(safe_lr, rarer) / self._last_lr
            warnings.warn(
                f"{_HASTY_REFACTORS} refactors within {_HASTY_STEPS} steps of each other, each a pass over V that "
                "takes longer than these steps: the learning rate is too large for the factors; about "
                f"{part:.2g} times the present rate would be safe, which is lr={part * self._last_lr:.2g}",
                stacklevel=2,
            )
