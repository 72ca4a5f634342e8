"""The autograd function of the factored layer: statistics forward; backward, the gradient of h and a record for W.

Three products of a B x H with an H x H matrix, whatever the number of classes and of targets: `h @ gram` and `h @ U^T`
forward, `(weighted sum of target rows) @ U` backward. The step uses the first two again.

Shape letters: B rows, H width of the layer (with the bias column), K targets per row, C classes.
"""

from typing import Any

import torch
from torch import Tensor

from zloss import kernels
from zloss.capture import is_capturing_step
from zloss.layers.faults import Fault
from zloss.layers.gradient import RecordedGradient
from zloss.layers.limits import first_derivatives_only
from zloss.layers.precision import exact_products
from zloss.layers.weight import FactoredWeight
from zloss.targets import Targets


class Tape:
    """Ties one forward pass to the weights it saw, and carries its recorded gradient back to them."""

    def __init__(self, weight: FactoredWeight) -> None:
        self.weight = weight
        self._version = weight.version
        self._record: RecordedGradient | None = None

    def check_unchanged(self) -> None:
        if self.weight.version != self._version:
            raise RuntimeError(
                "the layer took a step, was refactored or got new weights between this forward pass and its backward "
                "pass: run every backward before that"
            )

    def put(self, record: RecordedGradient) -> None:
        self._record = record

    def take(self) -> RecordedGradient:
        assert self._record is not None, (
            "autograd accumulates after backward, and backward puts a record here"
        )
        record, self._record = self._record, None
        return record


class FactoredStatistics(torch.autograd.Function):
    """`h -> (target scores, mean, scatter)` of the activations `h @ (V U + 1 omega^T)^T`."""

    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,  # (B, H)
        anchor: Tensor
        | None,  # (0,) takes part so that backward runs even where h needs no gradient
        rows: Tensor,  # (N, H) the rows of V of those targets
        places: Tensor,  # (N,) that have these places among all, of which there are B K
        targets: Targets,
        tape: Tape,
    ) -> tuple[Tensor, Tensor, Tensor]:
        f = tape.weight.factors()
        with exact_products(h.device.type):
            # Detached, because the record outlives this pass and must not keep the graph below alive; and a copy, as
            # the caller may use the memory of h for the next batch before the step.
            hs = with_bias_column(h.detach().to(f.U.dtype, copy=True), len(f.U))
            hp = hs.to(tape.weight.product_dtype)
            hg, hu = hp @ f.gram.to(hp.dtype), hp @ f.U.T.to(hp.dtype)
            mean = hs @ f.wbar
            scatter = (hs * hg).sum(1).clamp_min(0)
            row = places // targets.shape[1]
            own = (rows * hu[row]).sum(-1, dtype=hs.dtype) + (hs @ f.omega)[row]
        scores = (
            own.new_zeros(targets.valid.numel()).index_copy_(0, places, own).reshape(targets.shape)
        )
        moments = (mean + scatter).to(rows.dtype)  # which may overflow what holds them
        refused = tape.weight.inspect(
            Fault.TARGET.value * targets.out_of_range
            + Fault.HIDDEN.value * ~moments.isfinite().all()
        )
        ctx.save_for_backward(hs, hg, hu, mean, rows, places, targets.index, targets.valid, refused)
        ctx.tape, ctx.h_dtype, ctx.h_width = tape, h.dtype, h.shape[1]
        scores = torch.where(targets.valid, scores, 0)
        mean = torch.where(refused, torch.nan, mean)
        return scores.to(rows.dtype), mean.to(rows.dtype), scatter.to(rows.dtype)

    @staticmethod
    @first_derivatives_only
    def backward(
        ctx: Any, score_grad: Tensor, mean_grad: Tensor, scatter_grad: Tensor
    ) -> tuple[Tensor | None, ...]:
        hs, hg, hu, mean, rows, places, index, valid, refused = ctx.saved_tensors
        ctx.tape.check_unchanged()
        f, num_classes = ctx.tape.weight.factors(), len(ctx.tape.weight.V)
        target_grad = torch.where(valid, score_grad.to(hs.dtype), 0)
        mean_grad, curvature = mean_grad.to(hs.dtype), 2 * scatter_grad.to(hs.dtype)
        with exact_products(hs.device.type):
            own = rows * target_grad.flatten()[places][:, None]
            weighted = (
                torch.zeros_like(hs).index_add_(0, places // index.shape[1], own).to(hg.dtype)
            )
            target_rows = weighted @ f.U.to(hg.dtype) + target_grad.sum(1)[:, None] * f.omega
        grad_h = curvature[:, None] * hg + mean_grad[:, None] * f.wbar + target_rows
        ctx.tape.put(
            RecordedGradient(
                hs,
                hg,
                hu,
                mean,
                curvature,
                mean_grad / num_classes,
                index,
                target_grad,
                target_rows,
            )
        )
        # The layers below must not learn from a batch that this one refused.
        grad_h = torch.where(refused, 0, grad_h[:, : ctx.h_width])
        anchor_grad = hs.new_empty(0) if ctx.needs_input_grad[1] else None
        return grad_h.to(ctx.h_dtype), anchor_grad, None, None, None, None


class KernelStatistics(torch.autograd.Function):
    """The same by kernels, from the targets as they are given; also yields which of them are valid."""

    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,  # (B, H)
        anchor: Tensor | None,  # (0,) as above
        target: Tensor,  # (B, K)
        ignore_index: int,
        tape: Tape,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        weight, f = tape.weight, tape.weight.factors()
        with exact_products(h.device.type):
            made, ctx.begun = kernels.load("factored_statistics").statistics(
                h.detach(),
                target,
                weight.V.detach(),
                f.omega,
                f.wbar,
                weight.fused().pack,
                ignore_index=ignore_index,
                target_fault=Fault.TARGET.value,
                hidden_fault=Fault.HIDDEN.value,
                layer_fault=weight.fault,
                begins_step=is_capturing_step() and any(ctx.needs_input_grad),
            )
        ctx.save_for_backward(*made)
        ctx.kind, ctx.tape, ctx.shape, ctx.dtype = type(made), tape, h.shape, h.dtype
        ctx.mark_non_differentiable(made.valid)
        ctx.set_materialize_grads(False)  # each would be a launch
        return made.scores, made.mean, made.scatter, made.valid

    @staticmethod
    @first_derivatives_only
    def backward(
        ctx: Any,
        score_grad: Tensor | None,
        mean_grad: Tensor | None,
        scatter_grad: Tensor | None,
        _: None,
    ) -> tuple[Tensor | None, ...]:
        ctx.tape.check_unchanged()
        passed, f = ctx.kind(*ctx.saved_tensors), ctx.tape.weight.factors()
        with exact_products(passed.h.device.type):
            grad = kernels.load("factored_statistics").gradient(
                torch.zeros_like(passed.scores) if score_grad is None else score_grad,
                torch.zeros_like(passed.mean) if mean_grad is None else mean_grad,
                torch.zeros_like(passed.scatter) if scatter_grad is None else scatter_grad,
                passed,
                ctx.tape.weight.V.detach(),
                f.omega,
                f.wbar,
                ctx.tape.weight.fused().pack,
                shape=ctx.shape,
                dtype=ctx.dtype,
            )
        ctx.tape.put(
            RecordedGradient(
                passed.h,
                passed.hg,
                None,
                passed.exact_mean,
                grad.curvature,
                grad.mean,
                passed.classes,
                grad.target,
                grad.target_rows,
                ctx.begun,
            )
        )
        anchor_grad = passed.mean.new_empty(0) if ctx.needs_input_grad[1] else None
        return grad.h, anchor_grad, None, None, None


def with_bias_column(h: Tensor, width: int) -> Tensor:
    """`h`, with a column of ones where the layer has one more column than `h`: its bias."""
    return h if h.shape[1] == width else torch.cat([h, h.new_ones(len(h), 1)], 1)
