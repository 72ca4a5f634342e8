"""The definition of the passes and the steps of a factored layer: every formula of docs/mathematics.md in torch.

Three products of a B x H with an H x H matrix serve both passes, whatever the number of classes and of targets:
`h @ gram` and `h @ U^T` forward, `(weighted sum of target rows) @ U` backward. The step uses the first two again.

Shape letters: B rows, H width of the layer (with the bias column), K targets per row, N valid targets, C classes.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from zloss.inputs import with_bias_column
from zloss.layers.backend import Backend, Forward, Passed, Upstream
from zloss.layers.gradient import RecordedGradient, all_places, nonzero_places
from zloss.layers.matrix import FactoredMatrix, RowChanges
from zloss.layers.supervisor import Conditioning, Fault, Health, Supervisor
from zloss.layers.update import Factors, Step, exact_step
from zloss.precision import finest_dtype
from zloss.targets import checked_targets, parse_targets

# From this part on, terms of a scatter have cancelled; in a wide layer their errors cancel as well.
_MOST_CANCELLATION = 2.0


class Limits(NamedTuple):
    """The limits of a step that is precise enough when it is computed through the new `U^-1`."""

    # Of lr |K1|_F. It bounds how far the step stretches or shrinks W, and `U^-1` has an error that grows with it.
    bend: float
    # Of the rounding of V, as a multiple of the rounding by a dense step. Where U shrinks, rows of V grow.
    rounding: float


# A GPU cannot take a step again. It refuses a step only if the limits are exceeded this many times over.
_GPU_LENIENCY = 10.0
# By the dtype of V and the dtype of products. A search for steps that are less precise than dense ones argues them:
# tests/layers/test_step_error.py. Float64 has digits to spare.
_LIMITS = {
    (torch.float32, torch.float32): Limits(bend=0.5, rounding=2.0),
    (torch.float32, torch.float64): Limits(bend=1e4, rounding=2.0),
    (torch.float64, torch.float64): Limits(bend=1e2, rounding=1e3),
}


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
        if waits and hp.dtype != hs.dtype:
            _sharpen_cancelled(hg, hs, f.gram)
        mean, scatter = hs @ f.wbar, (hs * hg).sum(1).clamp_min(0)
        row = places // targets.shape[1]
        own = (rows * hu[row].to(hs.dtype)).sum(-1) + (hs @ f.omega)[row]
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
        changes = matrix.row_changes(grad, step.rows, lr)
        is_precise = bool(_is_precise(matrix, step, changes, lr, weight_decay))
        if matrix.product_dtype != f.U.dtype and not is_precise:
            step = exact_step(f, grad.in_precision(f.U.dtype), lr, weight_decay, num_rows)
            changes = matrix.row_changes(grad, step.rows, lr)
            is_precise = bool(_is_precise(matrix, step, changes, lr, weight_decay))
        report = assess(step, grad, weight_decay, torch.finfo(dtype).max)
        health = Health.read(report, matrix.rows.width)
        if health.fault:
            raise self.supervisor.error(Fault(health.fault), health.safe_lr)
        is_sound = self.conditioning.is_sound(health, matrix.rows.width, dtype)
        if is_precise and is_sound:
            matrix.set_(step.factors)
            matrix.add_rows_(changes)
            return
        # The new U_inv is badly conditioned or does not exist; once U is multiplied into V the step does not need it.
        matrix.multiply_(step.factors.U, step.factors.omega)
        matrix.add_rows_(matrix.row_changes(grad, grad.h, lr))
        if not is_sound:  # with few classes, refactors for precision alone are frequent and cheap
            self.conditioning.warn_if_hasty(health.safe_lr)
        self.conditioning.note_refactor(matrix.restart_(step.factors.gram, step.factors.wbar))
        self.supervisor.forget_reports()

    def _apply_where_sound(
        self, matrix: FactoredMatrix, grad: RecordedGradient, lr: float, weight_decay: float
    ) -> None:
        """Decide on the device: take a step, or change nothing and raise a fault there for the host to find."""
        f, dtype, width = matrix.factors, matrix.rows.dtype, matrix.rows.width
        step = exact_step(f, grad, lr, weight_decay, matrix.rows.num_rows)
        changes = matrix.row_changes(grad, step.rows, lr)
        report = assess(step, grad, weight_decay, torch.finfo(dtype).max)
        standing = self.supervisor.fault_on(matrix.rows.device)
        fault, _, U_squares, inverse_squares = report
        condition = (U_squares * inverse_squares).sqrt() / width
        leaps = ~(condition <= self.conditioning.most(width, dtype))
        leaps |= ~_is_precise(matrix, step, changes, lr, weight_decay, leniency=_GPU_LENIENCY)
        verdict = torch.where(fault == 0, leaps * Fault.SINGULAR.value, fault).long()
        standing.copy_(torch.where(standing == 0, verdict, standing))
        report[0] = standing
        self.report.copy_(torch.where(self.report[0] == 0, report, self.report))
        sound = standing == 0
        pairs = zip(step.factors, f, strict=True)
        matrix.set_(Factors(*(torch.where(sound, new, old) for new, old in pairs)))
        matrix.add_rows_(changes._replace(sums=torch.where(sound, changes.sums, 0)))


def _sharpen_cancelled(hg: Tensor, h: Tensor, gram: Tensor) -> None:
    """Compute rows of `h @ gram` in the finer dtype of h where `h^T gram h` is small because its terms cancel.

    Products of coarse numbers lose about this part of their digits. A dense layer has cancellations in `W h`, with the
    root of that part.
    """
    terms = h.square() @ gram.diagonal()
    scatter = (h * hg).sum(1)
    cancelled = (math.sqrt(len(gram)) * scatter < terms / _MOST_CANCELLATION).nonzero()[:, 0]
    if len(cancelled):
        hg[cancelled] = (h[cancelled] @ gram).to(hg.dtype)


def _is_precise(
    matrix: FactoredMatrix,
    step: Step,
    changes: RowChanges,
    lr: float,
    weight_decay: float,
    *,
    leniency: float = 1.0,
) -> Tensor:  # () bool
    """Return whether a step through the new `U^-1` keeps the digits of W."""
    limits = _LIMITS[matrix.rows.dtype, step.rows.dtype]
    bend = lr * step.k1_norm  # P is `keep I - lr K1`
    bends = bend <= limits.bend * leniency * abs(1 - lr * weight_decay)
    return bends & (matrix.rounding_after(changes, step.factors) <= limits.rounding * leniency)


def assess(
    step: Step, grad: RecordedGradient, weight_decay: float, largest: float
) -> Tensor:  # (4,)
    """Return the report on a step that has been computed but not applied, on the device.

    `largest` is the largest number that the dtype of V can hold.
    """
    f = step.factors
    U_norm, inverse_norm = f.U.norm(), f.U_inv.norm()
    # |W_i - wbar| <= sqrt(trace gram) for every row i: what bounds the weights bounds what V must hold.
    size = f.gram.diagonal().sum().clamp_min(0).sqrt() + f.wbar.norm() + f.omega.norm() + U_norm
    is_finite = grad.is_finite() & (size < largest)
    # No eigenvalue of K1 exceeds its norm: half of the inverse keeps every eigenvalue of P above 1/2.
    safe_lr = 0.5 / (step.k1_norm + weight_decay)
    squares = U_norm.square(), inverse_norm.square()
    values = (~is_finite * Fault.GRADIENT.value, safe_lr, *squares)
    return torch.stack([value.to(finest_dtype(U_norm.device)) for value in values])
