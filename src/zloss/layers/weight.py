"""A C x H weight matrix held in factors, which can take exact SGD steps without ever being formed."""

import math
import warnings
from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from zloss import kernels
from zloss.capture import is_capturing, must_not_wait, note_captured
from zloss.layers.conditioning import Health, assess, centred_moments, condition_of, materialise_
from zloss.layers.faults import DeviceReports, Fault, fault_error
from zloss.layers.foreign_writes import Stamp, is_one_matrix, is_plain, stamps
from zloss.layers.fused import FusedFactors
from zloss.layers.gradient import RecordedGradient
from zloss.layers.limits import refuse_export
from zloss.layers.precision import check_dtypes, default_product_dtype, exact_products, finest_dtype
from zloss.layers.recording import GradientMark, RecordsGradients
from zloss.layers.update import Factors, Step, exact_step, subtract_rows_
from zloss.parallel import refuse_data_parallel

Implementation = Literal["auto", "torch", "triton"]

# How much smaller than the rest one direction of U may become: rounding errors of V there are that much larger in W.
_MAX_SHRINKAGE = {torch.float32: 30.0, torch.float64: 1e4}
# Weight decay shrinks U as a whole; multiply it into V long before V could overflow.
_MAX_SCALE = 1e6
# A host that runs ahead of its GPU sees the condition pass its limit late. A single step that would exceed the limit
# this many times over has leapt towards singularity, and is refused.
_LEAP = 100.0
_HASTY_STEPS, _HASTY_REFACTORS = (
    10,
    5,
)  # so many refactors, each so soon after the last: the learning rate is too large


class FactoredWeight(RecordsGradients):
    """`W = V U + 1 omega^T` with its mean row and centred Gram matrix, and the gradient recorded for it.

    Below `FactoredLinear`, without inputs, targets or classes' scores: here the matrix is kept, stepped and kept in
    good condition. `V` is a parameter that never has a `.grad`; the H x H state are buffers. `recording.py` has how its
    gradient waits for a step, `portable.py` how all of it moves and is saved.
    """

    U: Tensor  # (H, H)
    U_inv: Tensor  # (H, H)
    omega: Tensor  # (H,)
    wbar: Tensor  # (H,)
    gram: Tensor  # (H, H)
    fault: Tensor  # () bits of `Fault`, kept on a GPU until the host reads them
    _report: Tensor  # see `Health.read`; of the first step that was refused, or else of the latest

    def __init__(
        self,
        num_classes: int,
        width: int,
        *,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        state_dtype: torch.dtype | None,
        product_dtype: torch.dtype | None,
        max_condition: float | None,
        synchronous: bool,
        implementation: Implementation,
    ) -> None:
        super().__init__()
        if implementation not in get_args(Implementation):
            expected = ", ".join(get_args(Implementation))
            raise ValueError(f"implementation must be one of {expected}, got {implementation!r}")
        if max_condition is not None and not max_condition > 1:
            raise ValueError(
                f"max_condition must be greater than 1, which a refactor restores, got {max_condition}"
            )
        dtype = dtype or torch.get_default_dtype()
        check_dtypes(dtype, state_dtype, product_dtype)
        self.max_condition, self.synchronous, self.implementation = (
            max_condition,
            synchronous,
            implementation,
        )
        self.refactors = 0
        self._drift: Tensor | None = None
        self._steps_since_refactor = self._hasty_refactors = 0
        self._is_unproven = (
            True  # until it is first used: `.data` may be written to before, which leaves no trace
        )
        self._is_copy = (
            False  # until it has weights of its own: an average is often collected in a copy
        )
        self.version = 0  # counts changes of the weights, so that a stale backward pass is noticed
        self._reports = DeviceReports()
        self._fused: FusedFactors | None = None
        self._asked_state_dtype, self._asked_product_dtype = state_dtype, product_dtype
        self.V = nn.Parameter(torch.empty(num_classes, width, device=device, dtype=dtype))
        self.gradient_mark = GradientMark.like(self.V)
        square, row = (width, width), (width,)
        for name, shape in {
            "U": square,
            "U_inv": square,
            "omega": row,
            "wbar": row,
            "gram": square,
        }.items():
            self.register_buffer(
                name, torch.empty(shape, device=self.V.device, dtype=self._state_dtype())
            )
        self._forget_history()
        self._stamps = self._current_stamps()

    # ---- the matrix --------------------------------------------------------------------------------------------------

    def refactor(self) -> None:
        """Multiply U into V and take all statistics anew: one pass over V in place, O(C H^2). Leaves W as it is.

        Happens by itself when `condition()` passes `max_condition`.
        """
        self.settle_foreign_writes()
        self._refactor()

    @torch.no_grad()
    def _refactor(self) -> None:
        with exact_products(self.V.device.type):
            materialise_(self.V, self.U, self.omega, self.product_dtype)
            self._finish_refactor(tracked_gram=self.gram.clone(), tracked_mean=self.wbar.clone())
        self._records = [record.after_refactor() for record in self._records]
        self.version += 1
        self._stamps = self._current_stamps()

    @torch.no_grad()
    def condition(self) -> float:
        """`|U|_F |U^-1|_F / H`: 1 after a refactor, growing by training."""
        self.raise_faults()
        return condition_of(self.U, self.U_inv).item()

    def drift(self) -> float:
        """Relative error that the tracked Gram matrix had picked up by the last refactor; 0 before the first."""
        return 0.0 if self._drift is None else self._drift.item()

    def factors(self) -> Factors:
        """The small state, as the tensors themselves."""
        return Factors(self.U, self.U_inv, self.omega, self.wbar, self.gram)

    @torch.no_grad()
    def materialised(self) -> Tensor:  # (C, H)
        """W itself, as a new tensor."""
        self.raise_faults()
        self.settle_foreign_writes()
        weight = self.V.detach().clone()
        with exact_products(self.V.device.type):
            materialise_(weight, self.U, self.omega, self.product_dtype)
        return weight

    @torch.no_grad()
    def adopt_rows(self) -> None:
        """Take what V holds now as W: after you have written weights of your own to it, to all of it.

        Once the layer has stepped, other rows of V are no weights; before you write to some of them, `refactor()`.
        """
        self._set_factors(self._plain_factors(self.V))
        self._forget_history()
        self._own_weights()

    # ---- writes of others --------------------------------------------------------------------------------------------

    @torch.no_grad()
    def settle_foreign_writes(self) -> None:
        """Take rows as W that others have written to V while it alone made up W; refuse what leaves no matrix.

        An initialiser that goes through the parameters of a model means W, and knows nothing of what is known about it.
        """
        refuse_export()
        if not self._settles():
            raise ValueError(
                "V or its factors were written to from outside, as when weights are averaged (or by LBFGS), and no "
                "longer make one weight matrix: average weight() instead (README, averages), load a checkpoint, or "
                "call adopt_rows() where all of V is yours; to write some rows of a trained layer, refactor() first"
            )

    def _settles(self) -> bool:
        now = self._current_stamps()
        looks = self._is_unproven and not must_not_wait()
        if self.V.is_meta or (now == self._stamps and not looks):
            return True
        self._is_unproven &= not looks
        changed = [new != old for new, old in zip(now, self._stamps, strict=True)]
        if (all(changed) or not any(changed)) and is_one_matrix(self.V, self.factors()):
            if any(changed):  # somebody has loaded all of it
                self._refresh_copies()
                self._forget_history()
            self._stamps = now
        elif not any(changed[1:]) and not self._is_copy and is_plain(self.factors()):
            if self._has_gradient():
                warnings.warn(
                    "the gradient recorded for V was lost as others wrote to it: step first",
                    stacklevel=2,
                )
            self.adopt_rows()
        else:
            self._is_unproven = True
            return False
        return True

    def _current_stamps(self) -> tuple[Stamp, ...]:
        return stamps(self.V, self.factors())

    def _own_weights(self) -> None:
        """From here on these are its own, as they are now."""
        self._is_copy = False
        self._stamps = self._current_stamps()

    # ---- the gradient and its step -----------------------------------------------------------------------------------

    @torch.no_grad()
    def grad_norm(self) -> Tensor:  # ()
        """Frobenius norm of the full C x H gradient, exact, in O(B H^2); 0 without any."""
        gradient = self.recorded_gradient()
        if gradient is None:
            return self.wbar.new_zeros(())
        with exact_products(self.V.device.type):
            return gradient.norm(self.wbar, len(self.V))

    @torch.no_grad()
    def step_(self, lr: float, *, weight_decay: float = 0.0) -> None:
        """Take the SGD step of the recorded gradient and use it up. `FactoredSGD` calls this."""
        refuse_data_parallel(self)  # it may have been whole for the forward pass
        if (
            not self.waits_for_device
            and not is_capturing()
            and (report := self._reports.latest()) is not None
        ):
            self._act_on(report)
        if self.V.grad is not None and self._has_gradient():
            raise ValueError(
                "V has a .grad, which this layer never gives it. V is a factor of the weights, not the weights: leave "
                "it out of penalties on parameters(), FactoredSGD has weight_decay; and tie no embedding to it"
            )
        grad = self.recorded_gradient()
        if grad is None:
            self._warn_if_zeroed_too_soon()
            return
        if self._current_stamps() != self._stamps:
            raise ValueError(
                "V or its factors were written to between the forward pass and the step: step first"
            )
        with exact_products(self.V.device.type):
            if self.uses_kernels:
                self.fused().step_(self.V, self.factors(), self.fault, grad, lr, weight_decay)
            else:
                self._step_by_definition(grad, lr, weight_decay)
        if is_capturing():
            note_captured(self)
            self._captured_records = (
                self._records
            )  # on a branch, their memory must not be given away yet
        elif not self.waits_for_device:
            self._reports.push(self._report)
        self._steps_since_refactor += 1
        self._passes_without_step = None
        self._forget_gradient()
        self._own_weights()

    def after_replay(self) -> None:
        """Look after the layer once a captured step has been replayed."""
        self._steps_since_refactor += 1
        self.version += 1
        if (report := self._reports.after_replay(self._report)) is not None:
            self._act_on(report)

    def _step_by_definition(self, grad: RecordedGradient, lr: float, weight_decay: float) -> None:
        step = exact_step(self.factors(), grad, lr, weight_decay, len(self.V))
        report = assess(step, grad, weight_decay, torch.finfo(self.V.dtype).max)
        if self.waits_for_device:
            self._apply_or_refuse(step, grad, lr, Health.read(report, len(self.U)))
        else:
            self._apply_where_sound(step, grad, lr, report)

    def _apply_or_refuse(
        self, step: Step, grad: RecordedGradient, lr: float, health: Health
    ) -> None:
        """Apply a step of known health: through the factors, or explicitly in the course of a refactor."""
        if health.fault:
            raise self._error(Fault(health.fault), health.safe_lr)
        if self._is_sound(health):
            self._set_factors(step.factors)
            subtract_rows_(self.V, grad, step.rows, lr)
            return
        # The new U_inv is badly conditioned or does not exist; once U is multiplied into V the step does not need it.
        materialise_(self.V, step.factors.U, step.factors.omega, self.product_dtype)
        subtract_rows_(self.V, grad, grad.h, lr)
        self._warn_if_hasty(health.safe_lr)
        self._finish_refactor(tracked_gram=step.factors.gram, tracked_mean=step.factors.wbar)

    def _apply_where_sound(
        self, step: Step, grad: RecordedGradient, lr: float, report: Tensor
    ) -> None:
        """Decide on the device: apply the step, or change nothing and raise a fault there for the host to find."""
        fault, _, U_squares, inverse_squares = report
        leaps = ~(
            (U_squares * inverse_squares).sqrt() / len(self.U) <= _LEAP * self._condition_limit()
        )
        verdict = torch.where(fault == 0, leaps * Fault.SINGULAR.value, fault).long()
        self.fault.copy_(torch.where(self.fault == 0, verdict, self.fault))
        report[0] = self.fault
        self._report.copy_(torch.where(self._report[0] == 0, report, self._report))
        sound = self.fault == 0
        pairs = zip(step.factors, self.factors(), strict=True)
        self._set_factors(Factors(*(torch.where(sound, new, old) for new, old in pairs)))
        grad = replace(grad, target_grad=torch.where(sound, grad.target_grad, 0))
        subtract_rows_(self.V, grad, torch.where(sound, step.rows, 0), lr)

    def _act_on(self, report: Tensor) -> None:
        """Refactor, or raise, when word of an earlier step's trouble has come back from the device."""
        health = Health.read(report, len(self.U))
        if health.fault:
            raise self._clear_fault(Fault(health.fault), health.safe_lr)
        if not self._is_sound(health):
            self._warn_if_hasty(health.safe_lr)
            self._refactor()

    def _is_sound(self, health: Health) -> bool:
        return (
            health.condition <= self._condition_limit()
            and 1 / _MAX_SCALE <= health.scale <= _MAX_SCALE
        )

    def _condition_limit(self) -> float:
        # The condition of a U that is the identity but for one direction, which has shrunk so much.
        return self.max_condition or math.sqrt(1 + _MAX_SHRINKAGE[self.V.dtype] ** 2 / len(self.U))

    # ---- faults ------------------------------------------------------------------------------------------------------

    @property
    def waits_for_device(self) -> bool:
        """Whether verdicts are read at once: always on a CPU, where that is free."""
        return self.synchronous or self.V.device.type != "cuda"

    def inspect(self, fault: Tensor) -> Tensor:  # () -> () bool
        """Refuse a batch with the given fault bits: raise at once, or note it on the device. Returns whether to."""
        if self.waits_for_device:
            if bits := Fault(int(fault)):
                raise self._error(bits, math.nan)
        else:
            self.fault.bitwise_or_(fault)
        return fault != 0

    def raise_faults(self) -> None:
        """Raise the error of a batch or step that was refused on the device and not reported yet. Waits for it."""
        if not self.waits_for_device and (fault := Fault(int(self.fault))):
            raise self._clear_fault(fault, float(self._report[1]))

    def _clear_fault(self, fault: Fault, safe_lr: float) -> ValueError:
        self._forget_history()
        return self._error(fault, safe_lr)

    def _error(self, fault: Fault, safe_lr: float) -> ValueError:
        return fault_error(fault, safe_lr, len(self.V))

    # ---- state -------------------------------------------------------------------------------------------------------

    @property
    def uses_kernels(self) -> bool:
        """Whether Triton does the work: where it can, unless it was told otherwise."""
        can = not self.waits_for_device and self.V.dtype == torch.float32 and kernels.available()
        if self.implementation == "triton" and not can:
            raise ValueError(
                "implementation 'triton' needs triton, a CUDA device, float32 weights and synchronous=False: use "
                "implementation='auto'"
            )
        return can and self.implementation != "torch"

    def fused(self) -> FusedFactors:
        """What the kernels keep beside the factors; made when it is first asked for."""
        if self._fused is None:
            with torch.inference_mode(
                False
            ):  # or training could not write to it, where a validation comes first
                self._fused = FusedFactors(self.factors(), self.product_dtype)
            self._report = self._fused.report
        return self._fused

    def _set_factors(self, new: Factors) -> None:
        # In place, so that tensors handed out by state_dict() stay consistent with V, which is updated in place too.
        for old, value in zip(self.factors(), new, strict=True):
            old.copy_(value)
        self._refresh_copies()

    def _plain_factors(self, V: Tensor, pivot: Tensor | None = None) -> Factors:
        """With which V is W."""
        with exact_products(V.device.type):
            wbar, gram = centred_moments(V, self.U.dtype, self.product_dtype, pivot=pivot)
        identity = torch.eye(len(wbar), dtype=wbar.dtype, device=wbar.device)
        return Factors(identity, identity.clone(), torch.zeros_like(wbar), wbar, gram)

    def _refresh_copies(self) -> None:
        if self._fused is not None:
            self._fused.refresh_(self.factors())

    def _finish_refactor(self, tracked_gram: Tensor, tracked_mean: Tensor) -> None:
        self._set_factors(self._plain_factors(self.V, pivot=tracked_mean))
        self._drift = (tracked_gram - self.gram).norm() / self.gram.norm().clamp_min(
            torch.finfo(self.gram.dtype).tiny
        )
        self.refactors += 1
        self._steps_since_refactor = 0
        self._reports.forget()

    def _forget_gradient(self) -> None:
        self.zero_grad()
        self.version += 1

    def _forget_history(self) -> None:
        """Drop what refers to earlier weights or to another device: gradient, faults, and reports under way."""
        self._forget_gradient()
        if "fault" in self.__dict__ and self.fault.device == self.V.device:
            self.fault.zero_()  # in place, here and below: a captured step goes on writing there
            self._report.zero_()
        else:
            self.fault = torch.zeros((), device=self.V.device, dtype=torch.long)
            self._report = self._empty_report()
            self._fused = None
        self._reports.forget()

    def _empty_report(self) -> Tensor:
        return torch.zeros(4, device=self.V.device, dtype=finest_dtype(self.V.device))

    def _warn_if_hasty(self, safe_lr: float) -> None:
        self._hasty_refactors = (
            self._hasty_refactors + 1 if self._steps_since_refactor < _HASTY_STEPS else 0
        )
        if self._hasty_refactors == _HASTY_REFACTORS:
            warnings.warn(
                f"{_HASTY_REFACTORS} refactors within {_HASTY_STEPS} steps of each other, each a pass over V: "
                f"the learning rate is too large for the factors; about {safe_lr:.3g} would be safe",
                stacklevel=2,
            )

    def _state_dtype(self) -> torch.dtype:
        asked = self._asked_state_dtype or finest_dtype(self.V.device)
        return torch.promote_types(asked, self.V.dtype)

    @property
    def product_dtype(self) -> torch.dtype:
        """The dtype that matrix products run in; never finer than the state."""
        asked = self._asked_product_dtype or default_product_dtype(self.V.device, self.V.dtype)
        finest = torch.promote_types(asked, self.V.dtype)
        return torch.float32 if self.U.dtype == torch.float32 else finest
