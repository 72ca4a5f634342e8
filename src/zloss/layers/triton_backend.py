"""The passes and the steps of a factored layer by Triton kernels.

`TorchBackend` and `update.py` define what is computed. On a GPU the same takes few launches here, and none of them
waits for the device. So a step can be captured as a CUDA graph.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from zloss import kernels
from zloss.layers.backend import Backend, Forward, Passed, Upstream
from zloss.layers.gradient import RecordedGradient
from zloss.layers.matrix import FactoredMatrix
from zloss.layers.supervisor import Conditioning, Fault, Supervisor
from zloss.streams import is_capturing
from zloss.targets import target_columns


@dataclass(frozen=True)
class BegunGradient(RecordedGradient):
    """A record whose step has begun: some products of the batch with the factors are under way already."""

    begun: Any = None  # `Begun` of the kernels, for these rows and these factors alone

    def after_refactor(self) -> RecordedGradient:
        """Return the record without the products, which belong to the factors of before."""
        return replace(self, begun=None)


class TritonBackend(Backend):
    """Few launches, and copies of the factors in the layout and dtype of products."""

    def __init__(
        self, supervisor: Supervisor, conditioning: Conditioning, matrix: FactoredMatrix
    ) -> None:
        super().__init__(supervisor, conditioning)
        self._statistics = kernels.load("factored_statistics")
        self._update = kernels.load("factored_update")
        U, width = matrix.factors.U, matrix.rows.width
        # A validation in inference mode may come first, and training has to be able to write to them.
        with torch.inference_mode(False):
            self.pack = torch.empty(3, width, width, dtype=matrix.product_dtype, device=U.device)
            length = self._update.report_length(width)
            self.report = torch.zeros(length, dtype=torch.float64, device=U.device)
        self._begins_steps = False
        # In this capture, so that all branches can be joined at its end. What they read is kept beside them, as a
        # record that is added to others is gone.
        self._begun: list[tuple[Any, Any]] = []
        self._used: list[RecordedGradient] = []  # by captured steps whose branches go on
        self.invalidate(matrix)

    def forward(
        self,
        matrix: FactoredMatrix,
        h: Tensor,
        target: Tensor,
        ignore_index: int,
        *,
        has_backward: bool,
    ) -> Forward:
        f = matrix.factors
        made, begun = self._statistics.statistics(
            h,
            target_columns(target, len(h), matrix.rows.num_rows),
            matrix.rows.tensor,
            f.omega,
            f.wbar,
            self.pack,
            ignore_index=ignore_index,
            target_fault=Fault.TARGET.value,
            hidden_fault=Fault.HIDDEN.value,
            layer_fault=self.supervisor.fault_on(h.device),
            begins_step=self._begins_steps and has_backward,
        )
        if begun is not None:
            self._begun.append((begun, made))
        return Forward(made.scores, made.mean, made.scatter, made.valid, made, begun)

    def backward(
        self, matrix: FactoredMatrix, passed: Passed, upstream: Upstream
    ) -> tuple[Tensor, RecordedGradient]:
        s, f = passed.saved, matrix.factors
        shown = (s.scores, s.mean, s.scatter)
        grads = (
            torch.zeros_like(value) if grad is None else grad
            for grad, value in zip(upstream, shown, strict=True)
        )
        grad = self._statistics.gradient(
            *grads,
            s,
            matrix.rows.tensor,
            f.omega,
            f.wbar,
            self.pack,
            shape=passed.shape,
            dtype=passed.dtype,
        )
        record = BegunGradient(
            h=s.h,
            hg=s.hg,
            hu=None,
            mean=s.exact_mean,
            curvature=grad.curvature,
            mean_grad=grad.mean,
            index=s.classes,
            target_grad=grad.target,
            target_rows=grad.target_rows,
            begun=passed.begun,
        )
        return grad.h, record

    def step_(
        self, matrix: FactoredMatrix, grad: RecordedGradient, lr: float, weight_decay: float
    ) -> None:
        f, fault = matrix.factors, self.supervisor.fault_on(matrix.rows.device)
        # On a branch, their memory must not be given away yet.
        self._used = [*self._used, grad] if is_capturing() else []
        self._update.step_(
            self._update.State(
                matrix.rows.tensor,
                f.U,
                f.U_inv,
                f.omega,
                f.wbar,
                f.gram,
                self.pack,
                fault,
                self.report,
            ),
            self._update.Batch(
                *(grad.padded(part).to(self.pack.dtype) for part in (grad.h, grad.hg)),
                *(
                    grad.padded(part).double()
                    for part in (grad.mean, grad.curvature, grad.mean_grad)
                ),
                grad.index,
                grad.target_grad.double(),
                grad.target_rows.to(self.pack.dtype),
                grad.begun if isinstance(grad, BegunGradient) else None,
            ),
            lr,
            weight_decay,
            most_condition=self.conditioning.most(matrix.rows.width, matrix.rows.dtype),
            gradient_fault=Fault.GRADIENT.value,
            singular_fault=Fault.SINGULAR.value,
        )

    def invalidate(self, matrix: FactoredMatrix) -> None:
        f = matrix.factors
        self._update.refresh_(self.pack, self.report, f.gram, f.U, f.U_inv)

    def begin_capture(self) -> None:
        self._begins_steps = True

    def end_capture(self) -> None:
        for begun, _ in self._begun:  # also where no step has come for them
            begun.join()
        self._begins_steps = False
        self._begun.clear()
        self._used.clear()
