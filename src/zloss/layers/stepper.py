"""The life of a factored weight matrix: passes, steps, refactors, writes of others, and faults.

A `Stepper` puts the parts of a layer together. These are the gradient that waits, the backend that computes, the
supervisor of faults, and the guard against writes of others. The tensors belong to the module, which hands over the
matrix at every call. `FactoredStatistics` is the autograd function of both passes.

Shape letters: B rows, H width of the layer (with the bias column), K targets per row.
"""

from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from zloss import kernels
from zloss.inputs import check_choice
from zloss.layers.backend import Backend, Passed, Upstream
from zloss.layers.gradient import PendingGradient, RecordedGradient
from zloss.layers.mark import GradientMark
from zloss.layers.matrix import FactoredMatrix, Integrity, Writes
from zloss.layers.row_rule import RowAdagrad
from zloss.layers.supervisor import Conditioning, Fault, Health, Supervisor
from zloss.layers.torch_backend import TorchBackend
from zloss.layers.triton_backend import TritonBackend
from zloss.limits import first_derivatives_only
from zloss.precision import exact_products
from zloss.streams import is_capturing

Implementation = Literal["auto", "torch", "triton"]


class Stepper:
    """The changing state of a factored weight matrix, without its tensors."""

    def __init__(
        self,
        matrix: FactoredMatrix,
        mark: GradientMark,
        *,
        max_condition: float | None,
        synchronous: bool,
        implementation: Implementation,
    ) -> None:
        check_choice("implementation", implementation, get_args(Implementation))
        self.implementation = implementation
        self.pending = PendingGradient(mark)
        self.integrity = Integrity(matrix)
        self.supervisor = Supervisor(matrix.rows.num_rows, synchronous=synchronous)
        self.conditioning = Conditioning(max_condition)
        self._backend: Backend | None = None
        self._is_stepped_in_capture = False

    def statistics(
        self,
        matrix: FactoredMatrix,
        h: Tensor,  # (B, H), or one column less where there is a bias
        target: Tensor,  # (B,) or (B, K)
        ignore_index: int,
        *,
        record: Callable[[RecordedGradient], None] | None,
    ) -> tuple[Tensor, ...]:  # (B, K), (B,), (B,), (B, K), (B, K)
        """Return the target scores, means, scatters, valid targets and classes of a batch, differentiable in h.

        Where a backward pass would give a gradient to an ordinary weight, it calls `record`, if that is not None.
        """
        tape = self.tape(matrix)
        anchor = None if record is None else tape.anchor(record)
        passed = FactoredStatistics.apply(h, anchor, target, ignore_index, tape)  # type: ignore[no-untyped-call]
        return tuple(passed)

    def tape(self, matrix: FactoredMatrix) -> "Tape":
        """Return a tape for a forward pass through the weights as they are now."""
        return Tape(matrix, self.backend(matrix), self.integrity)

    def step_(
        self, matrix: FactoredMatrix, lr: float, weight_decay: float, rule: RowAdagrad | None = None
    ) -> None:
        """Take the SGD step of the recorded gradient and use it up; looked-up rows may have a rule of their own."""
        backend, waits = self.backend(matrix), self.waits(matrix)
        if not waits and not is_capturing():
            report = self.supervisor.arrived(self.conditioning.steps_ahead)
            if report is not None:
                self.act_on(matrix, report)
        grad = self.pending.gradient()
        if grad is None:
            self.pending.warn_if_zeroed_too_soon()
            return
        if self.integrity.changed(matrix):
            raise ValueError(
                "V or its factors were written to between the forward pass and the step: step first"
            )
        self.conditioning.note_step(lr, len(grad.h), matrix.rows.num_rows, matrix.rows.width)
        with exact_products(matrix.rows.device.type):
            grad = grad if rule is None else rule.applied_to(grad)
            backend.step_(matrix, grad, lr, weight_decay)
        if rule is not None:
            rule.note_step_(self.supervisor.fault_on(matrix.rows.device) == 0)
        if is_capturing():
            self._is_stepped_in_capture = True
        elif not waits:
            self.supervisor.send(backend.report)
        self.conditioning.steps_since_refactor += 1
        self.pending.use_up()
        self.integrity.accept(matrix)

    def act_on(self, matrix: FactoredMatrix, report: Tensor) -> None:
        """Refactor, or raise, when a report on an earlier step has come back from the device."""
        health = Health.read(report, matrix.rows.width)
        if health.fault:
            raise self._reported(Fault(health.fault), health.safe_lr)
        if not self.conditioning.is_sound(health, matrix.rows.width, matrix.rows.dtype):
            self.conditioning.warn_if_hasty(health.safe_lr)
            self.refactor_(matrix)

    def refactor_(self, matrix: FactoredMatrix) -> None:
        """Multiply U into V and take all statistics anew, without a change of W."""
        self.conditioning.note_refactor(matrix.refactor_())
        self.invalidate_copies(matrix)
        self.supervisor.forget_reports()
        self.pending.fit_refactored()
        self.integrity.accept(matrix, are_own=False)

    def settles(self, matrix: FactoredMatrix) -> bool:
        """Take over what others have written, where it makes a matrix. Returns whether it does."""
        writes = self.integrity.judge(matrix)
        if writes is Writes.ALL:
            self.invalidate_copies(matrix)
            self.forget_history()
        elif writes is Writes.ROWS:
            self.pending.warn_if_overwritten()
            self.adopt_rows_(matrix)
        return writes is not Writes.MISFIT

    def settles_before_leaving(self, matrix: FactoredMatrix) -> bool:
        """Settle while there is a trace of what others wrote: a checkpoint, a copy and another place have none.

        Tensors that make no matrix may leave too. They are refused where they are used.
        """
        was_unproven = self.integrity.is_unproven
        settles = self.settles(matrix)
        self.integrity.is_unproven |= was_unproven
        return settles

    def adopt_rows_(self, matrix: FactoredMatrix) -> None:
        """Take what V holds now as W."""
        matrix.set_(matrix.plain_factors())
        self.invalidate_copies(matrix)
        self.forget_history()
        self.integrity.accept(matrix)

    def forget_history(self) -> None:
        """Drop what refers to earlier weights: gradient, faults, and reports under way."""
        self.pending.drop()
        self.supervisor.forget()
        if self._backend is not None:
            self._backend.report.zero_()  # in place: a captured step goes on writing there
        self.integrity.advance()

    def waits(self, matrix: FactoredMatrix) -> bool:
        """Return whether verdicts are read at once."""
        return self.supervisor.waits_for(matrix.rows.device)

    def raise_faults(self, matrix: FactoredMatrix) -> None:
        """Raise for a batch or step that was refused on the device and not reported yet. Waits for the device."""
        if fault := self.supervisor.standing_fault():
            raise self._reported(fault, float(self.backend(matrix).report[1]))

    def _reported(self, fault: Fault, safe_lr: float) -> ValueError:
        self.forget_history()
        return self.supervisor.error(fault, safe_lr)

    def begin_capture(self, matrix: FactoredMatrix) -> None:
        """Prepare for the capture of a step."""
        self._is_stepped_in_capture = False
        self.backend(matrix).begin_capture()

    def end_capture(self, matrix: FactoredMatrix) -> Tensor | None:
        """Finish a capture. Returns the report that every replay writes, if the layer has taken a step in it."""
        backend = self.backend(matrix)
        backend.end_capture()
        return backend.report if self._is_stepped_in_capture else None

    def after_replay(self, report: Tensor) -> Tensor | None:
        """Take note of a replay, at next to no cost. Returns a report to act on, every few replays."""
        self.conditioning.steps_since_refactor += 1
        self.integrity.advance()
        return self.supervisor.after_replay(report, self.conditioning.steps_ahead)

    def uses_kernels(self, matrix: FactoredMatrix) -> bool:
        """Return whether Triton does the work: where it can, unless the user has chosen otherwise."""
        can = not self.waits(matrix) and matrix.rows.dtype == torch.float32 and kernels.available()
        if self.implementation == "triton" and not can:
            raise ValueError(
                "implementation 'triton' needs triton, a CUDA device, float32 weights and synchronous=False: use "
                "implementation='auto'"
            )
        return can and self.implementation != "torch"

    def backend(self, matrix: FactoredMatrix) -> Backend:
        """Return the backend for the device and dtype of the rows; it is made on first use."""
        kind: Callable[..., Backend] = TritonBackend if self.uses_kernels(matrix) else TorchBackend
        if type(self._backend) is not kind:
            self._backend = kind(self.supervisor, self.conditioning, matrix)
            self.supervisor.restart_reports()  # reports have another length now
        assert self._backend is not None
        return self._backend

    def invalidate_copies(self, matrix: FactoredMatrix) -> None:
        """Tell the backend that the factors have changed."""
        if self._backend is not None:
            self._backend.invalidate(matrix)

    def forget_backend(self) -> None:
        """Make another backend at the next use: for another device or dtype."""
        self._backend = None

    def __getstate__(self) -> dict[str, Any]:
        # A copy has no part in what this layer has under way on a device.
        return self.__dict__ | {"_backend": None}


class Tape:
    """Link from one forward pass to the weights it saw, and from its backward pass to its record."""

    def __init__(self, matrix: FactoredMatrix, backend: Backend, integrity: Integrity) -> None:
        self.matrix, self.backend = matrix, backend
        self._integrity, self._version = integrity, integrity.version
        self._record: RecordedGradient | None = None

    def anchor(self, record: Callable[[RecordedGradient], None]) -> Tensor:  # (0,)
        """Return a leaf that autograd accumulates into exactly when it would into the weight of an `nn.Linear`.

        Then the record is made. So `loss.backward()` records, while `torch.autograd.grad(loss, h)` does not.
        """
        leaf = torch.empty(0, device=self.matrix.rows.device, requires_grad=True)
        leaf.register_post_accumulate_grad_hook(lambda _: record(self.take()))
        return leaf

    def check_unchanged(self) -> None:
        """Refuse a backward pass through weights that are gone."""
        if self._integrity.version != self._version:
            raise RuntimeError(
                "the layer took a step, was refactored or got new weights between this forward pass and its backward "
                "pass: run every backward before that"
            )

    def put(self, record: RecordedGradient) -> None:
        """Leave the record of the backward pass."""
        self._record = record

    def take(self) -> RecordedGradient:
        """Return the record of the backward pass, once."""
        record, self._record = self._record, None
        assert record is not None, "autograd accumulates after backward, which puts a record here"
        return record


class FactoredStatistics(torch.autograd.Function):
    """`h -> (target scores, mean, scatter, valid, classes)` of the activations `h @ (V U + 1 omega^T)^T`."""

    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,  # (B, H)
        anchor: Tensor | None,  # (0,)
        target: Tensor,  # (B,) or (B, K)
        ignore_index: int,
        tape: Tape,
    ) -> tuple[Tensor, ...]:
        has_backward = any(ctx.needs_input_grad)
        with exact_products(h.device.type):
            passed = tape.backend.forward(
                tape.matrix, h.detach(), target, ignore_index, has_backward=has_backward
            )
        ctx.save_for_backward(*passed.saved)
        ctx.tape, ctx.kind, ctx.begun = tape, type(passed.saved), passed.begun
        ctx.shape, ctx.dtype = h.shape, h.dtype
        ctx.mark_non_differentiable(passed.valid, passed.saved.classes)
        ctx.set_materialize_grads(False)  # each would be a launch
        return *passed[:4], passed.saved.classes

    @staticmethod
    @first_derivatives_only
    def backward(
        ctx: Any,
        scores: Tensor | None,
        mean: Tensor | None,
        scatter: Tensor | None,
        *_: None,
    ) -> tuple[Tensor | None, ...]:
        ctx.tape.check_unchanged()
        passed = Passed(ctx.kind(*ctx.saved_tensors), ctx.begun, ctx.shape, ctx.dtype)
        with exact_products(ctx.tape.matrix.rows.device.type):
            grad_h, record = ctx.tape.backend.backward(
                ctx.tape.matrix, passed, Upstream(scores, mean, scatter)
            )
        ctx.tape.put(record)
        anchor_grad = grad_h.new_empty(0) if ctx.needs_input_grad[1] else None
        return grad_h, anchor_grad, None, None, None
