"""The definition of the passes and the steps of a factored layer: every formula of docs/mathematics.md in torch.

Three products of a B x H with an H x H matrix serve both passes, whatever the number of classes and of targets:
`h @ gram` and `h @ U^T` forward, `(weighted sum of target rows) @ U` backward. The step uses the first two again.

Shape letters: B rows, H width of the layer (with the bias column), K targets per row, N valid targets, C classes.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from zloss.inputs import with_bias_column
from zloss.layers.backend import Backend, Forward, Passed, Upstream
from zloss.layers.gradient import RecordedGradient, all_places, nonzero_places
from zloss.layers.matrix import FactoredMatrix
from zloss.layers.supervisor import Conditioning, Fault, Health, Supervisor
from zloss.layers.update import Factors, Step, exact_step
from zloss.precision import finest_dtype
from zloss.targets import checked_targets, parse_targets

# A host that runs ahead of its GPU sees the condition pass its limit late. A single step that would exceed the limit
# this many times over has leapt towards singularity, and is refused.
_LEAP = 100.0
# A step may stretch W by this factor. U^-1 shrinks by the same factor, so that its digits cancel. The condition does
# not show it if the step stretches all directions alike. Float64 has digits to spare, also in products alone.
_MOST_STRETCH = {torch.float32: 2.0, torch.float64: 1e2}
# From this stretch up, a step is computed once more in the dtype of the state, if products have a coarser one.
_COARSE_STRETCH = 1.1
# A step may shrink W by this factor. Then rows of V change by more than rows of W, and their rounding with them.
_MOST_SHRINKAGE = {torch.float32: 1.5, torch.float64: 1e2}


class Saved(NamedTuple):
    """The tensors that the definition keeps for a backward pass."""

    h: Tensor  # (B, H) in the dtype of the state, as are the others where nothing else is said
    hg: Tensor  # (B, H) h @ gram, in the dtype of products
    hu: Tensor  # (B, H) h @ U^T, in the dtype of products
    mean: Tensor  # (B,)
    rows: Tensor  # (N, H) rows of V
    places: Tensor  # (N,) where these targets stand among all B K
    classes: Tensor  # (B, K) the targets
    valid: Tensor  # (B, K) bool
    refused: Tensor  # () bool


class TorchBackend(Backend):
    """The definition: every formula of docs/mathematics.md in torch."""

    def __init__(
        self, supervisor: Supervisor, conditioning: Conditioning, matrix: FactoredMatrix
    ) -> None:
        super().__init__(supervisor, conditioning)
        device = matrix.rows.device
        self.report = torch.zeros(4, device=device, dtype=finest_dtype(device))

    def forward(
        self,
        matrix: FactoredMatrix,
        h: Tensor,
        target: Tensor,
        ignore_index: int,
        *,
        has_backward: bool,
    ) -> Forward:
        f, dtype = matrix.factors, matrix.rows.dtype
        waits = self.supervisor.waits_for(h.device)
        parse, places_of = (
            (checked_targets, nonzero_places) if waits else (parse_targets, all_places)
        )
        targets = parse(target, len(h), matrix.rows.num_rows, ignore_index)
        places = places_of(targets.valid)
        rows = matrix.rows.gather(targets.index.flatten()[places])
        # A copy, as the caller may use the memory of h for the next batch before the step.
        hs = with_bias_column(h.to(f.U.dtype, copy=True), len(f.U))
        hp = hs.to(matrix.product_dtype)
        hg, hu = hp @ f.gram.to(hp.dtype), hp @ f.U.T.to(hp.dtype)
        mean, scatter = hs @ f.wbar, (hs * hg).sum(1).clamp_min(0)
        row = places // targets.shape[1]
        own = (rows * hu[row]).sum(-1, dtype=hs.dtype) + (hs @ f.omega)[row]
        scores = own.new_zeros(targets.valid.numel()).index_copy_(0, places, own)
        scores = torch.where(targets.valid, scores.reshape(targets.shape), 0)
        moments = (mean + scatter).to(dtype)  # which may overflow what holds them
        refused = self.supervisor.inspect(
            Fault.TARGET.value * targets.out_of_range
            + Fault.HIDDEN.value * ~moments.isfinite().all()
        )
        saved = Saved(hs, hg, hu, mean, rows, places, targets.index, targets.valid, refused)
        mean = torch.where(refused, torch.nan, mean)
        return Forward(scores.to(dtype), mean.to(dtype), scatter.to(dtype), targets.valid, saved)

    def backward(
        self, matrix: FactoredMatrix, passed: Passed, upstream: Upstream
    ) -> tuple[Tensor, RecordedGradient]:
        s: Saved = passed.saved
        f, dtype = matrix.factors, s.h.dtype
        shown = (s.valid, s.mean, s.mean)  # of the same shapes
        scores, mean, scatter = (
            torch.zeros_like(like, dtype=dtype) if grad is None else grad.to(dtype)
            for grad, like in zip(upstream, shown, strict=True)
        )
        target_grad, curvature = torch.where(s.valid, scores, 0), 2 * scatter
        own = s.rows * target_grad.flatten()[s.places][:, None]
        weighted = torch.zeros_like(s.h).index_add_(0, s.places // s.classes.shape[1], own)
        target_rows = weighted.to(s.hg.dtype) @ f.U.to(s.hg.dtype)
        target_rows = target_rows + target_grad.sum(1)[:, None] * f.omega
        grad_h = curvature[:, None] * s.hg + mean[:, None] * f.wbar + target_rows
        record = RecordedGradient(
            h=s.h,
            hg=s.hg,
            hu=s.hu,
            mean=s.mean,
            curvature=curvature,
            mean_grad=mean / matrix.rows.num_rows,
            index=s.classes,
            target_grad=target_grad,
            target_rows=target_rows,
        )
        # The layers below must not learn from a batch that this one refused.
        grad_h = torch.where(s.refused, 0, grad_h[:, : passed.shape[1]])
        return grad_h.to(passed.dtype), record

    def step_(
        self, matrix: FactoredMatrix, grad: RecordedGradient, lr: float, weight_decay: float
    ) -> None:
        waits = self.supervisor.waits_for(matrix.rows.device)
        take = self._apply_or_refuse if waits else self._apply_where_sound
        take(matrix, grad, lr, weight_decay)

    def _apply_or_refuse(
        self, matrix: FactoredMatrix, grad: RecordedGradient, lr: float, weight_decay: float
    ) -> None:
        """Take a step and wait for its report: through the factors, or explicitly in the course of a refactor."""
        f, num_rows, dtype = matrix.factors, matrix.rows.num_rows, matrix.rows.dtype
        step = exact_step(f, grad, lr, weight_decay, num_rows)
        before, after = sizes(f), sizes(step.factors)
        change = SizeChange.between(before, after)
        if matrix.product_dtype != f.U.dtype and not change.stretches_at_most(_COARSE_STRETCH):
            step = exact_step(f, grad.in_precision(f.U.dtype), lr, weight_decay, num_rows)
            after = sizes(step.factors)
            change = SizeChange.between(before, after)
        report = assess(step, after, grad, weight_decay, torch.finfo(dtype).max)
        keeps_digits = change.stretches_at_most(most_stretch(dtype, step.rows.dtype))
        keeps_digits &= change.shrinks_at_most(_MOST_SHRINKAGE[dtype])
        health = Health.read(report, matrix.rows.width)
        if health.fault:
            raise self.supervisor.error(Fault(health.fault), health.safe_lr)
        is_sound = self.conditioning.is_sound(health, matrix.rows.width, dtype)
        if is_sound and keeps_digits:
            matrix.set_(step.factors)
            matrix.subtract_rows_(grad, step.rows, lr)
            return
        # The new U_inv is badly conditioned or does not exist; once U is multiplied into V the step does not need it.
        matrix.multiply_(step.factors.U, step.factors.omega)
        matrix.subtract_rows_(grad, grad.h, lr)
        self.conditioning.warn_if_hasty(health.safe_lr)
        self.conditioning.note_refactor(matrix.restart_(step.factors.gram, step.factors.wbar))
        self.supervisor.forget_reports()

    def _apply_where_sound(
        self, matrix: FactoredMatrix, grad: RecordedGradient, lr: float, weight_decay: float
    ) -> None:
        """Decide on the device: take a step, or change nothing and raise a fault there for the host to find."""
        f, dtype = matrix.factors, matrix.rows.dtype
        step = exact_step(f, grad, lr, weight_decay, matrix.rows.num_rows)
        before, after = sizes(f), sizes(step.factors)
        report = assess(step, after, grad, weight_decay, torch.finfo(dtype).max)
        stretches = torch.stack([after[0] / before[0], before[1] / after[1]])
        keeps_digits = (stretches <= most_stretch(dtype, step.rows.dtype)).all()
        standing = self.supervisor.fault_on(matrix.rows.device)
        fault, _, U_squares, inverse_squares = report
        width = matrix.rows.width
        limit = self.conditioning.limit(width, dtype)
        leaps = ~((U_squares * inverse_squares).sqrt() / width <= _LEAP * limit) | ~keeps_digits
        verdict = torch.where(fault == 0, leaps * Fault.SINGULAR.value, fault).long()
        standing.copy_(torch.where(standing == 0, verdict, standing))
        report[0] = standing
        self.report.copy_(torch.where(self.report[0] == 0, report, self.report))
        sound = standing == 0
        pairs = zip(step.factors, f, strict=True)
        matrix.set_(Factors(*(torch.where(sound, new, old) for new, old in pairs)))
        grad = replace(grad, target_grad=torch.where(sound, grad.target_grad, 0))
        matrix.subtract_rows_(grad, torch.where(sound, step.rows, 0), lr)


class SizeChange(NamedTuple):
    """The factors by which a step changes the norms of U and of `U^-1`; any of them may be NaN or infinite."""

    growth_of_U: float
    growth_of_inverse: float
    shrinkage_of_U: float
    shrinkage_of_inverse: float

    @classmethod
    def between(cls, before: Tensor, after: Tensor) -> "SizeChange":  # (2,), (2,)
        """Return the change from one pair of `sizes` to another."""
        return cls(*torch.cat([after / before, before / after]).tolist())

    def stretches_at_most(self, factor: float) -> bool:
        """Return whether the step stretches W by no more, on average over all directions."""
        return self.growth_of_U <= factor and self.shrinkage_of_inverse <= factor

    def shrinks_at_most(self, factor: float) -> bool:
        """Return whether the step shrinks W by no more, on average over all directions."""
        return self.shrinkage_of_U <= factor and self.growth_of_inverse <= factor


def sizes(factors: Factors) -> Tensor:  # (2,)
    """Return the norms of U and of `U^-1`."""
    return torch.stack([factors.U.norm(), factors.U_inv.norm()])


def most_stretch(dtype: torch.dtype, computed_in: torch.dtype) -> float:
    """Return the stretch up to which a step is as precise as the dtype of V."""
    finer = torch.finfo(dtype).eps / torch.finfo(computed_in).eps
    return _MOST_STRETCH[dtype] * max(1.0, finer)


def assess(
    step: Step, after: Tensor, grad: RecordedGradient, weight_decay: float, largest: float
) -> Tensor:  # (4,)
    """Return the report on a step that has been computed but not applied, on the device.

    `after` are the `sizes` of its factors. `largest` is the largest number that the dtype of V can hold.
    """
    f, (U_norm, inverse_norm) = step.factors, after
    # |W_i - wbar| <= sqrt(trace gram) for every row i: what bounds the weights bounds what V must hold.
    size = f.gram.diagonal().sum().clamp_min(0).sqrt() + f.wbar.norm() + f.omega.norm() + U_norm
    is_finite = grad.is_finite() & (size < largest)
    # No eigenvalue of K1 exceeds its norm: half of the inverse keeps every eigenvalue of P above 1/2.
    safe_lr = 0.5 / (step.k1_norm + weight_decay)
    squares = U_norm.square(), inverse_norm.square()
    values = (~is_finite * Fault.GRADIENT.value, safe_lr, *squares)
    return torch.stack([value.to(finest_dtype(U_norm.device)) for value in values])
