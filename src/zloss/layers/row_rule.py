"""A rule of their own for the gradients of looked-up rows, within the exact step of everything else: row-wise Adagrad.

    squares[c] += mean of s^2        s: the sum of the gradients that all look-ups of class c have left, (H,)
    W[c]       -= row_lr s / (sqrt(squares[c]) + eps)

The step `W <- W P - lr 1 (H^T g_s)^T - S` is exact for any sparse S. So the rule puts `S / lr` in the place of the
gradients below the batch of a record. Then every formula of the step holds as it is. The targets of a spherical loss
are part of the batch, and stay as they are. Their pull has to balance the push of the dense part.

Shape letters: B rows of the batch, N entries below it, K targets per row, H width of the layer, C classes.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from zloss.layers.gradient import RecordedGradient


class RowAdagrad:
    """Row-wise Adagrad for one step: a small change for a class that has had large or many gradients before.

    Args:
        squares: one number per class, (C,), the state of the rule. A step that is taken changes it.
        ratio: the learning rate of rows as a multiple of the learning rate of the step.
        eps: the number that keeps the first steps of tiny gradients small.
    """

    def __init__(self, squares: Tensor, *, ratio: float, eps: float) -> None:
        self.squares, self.ratio, self.eps = squares, ratio, eps
        self._growth: tuple[Tensor, Tensor] | None = None  # (N,) classes, (N,) increments

    def applied_to(self, grad: RecordedGradient) -> RecordedGradient:
        """Return a record whose plain step takes the steps of the rule for the rows below the batch."""
        size = len(grad.curvature)
        if len(grad.h) == size:
            return grad
        below = _below_the_batch(grad)
        classes, sums = below.groups[1], below.summed_by_class(below.h)
        growth = sums.square().mean(1)
        squares = self.squares[classes].to(sums.dtype) + growth
        rates = self.ratio / (squares.sqrt() + self.eps)
        # The step refuses NaN. An infinite square would stop its class for good, without a word.
        fits = squares.to(self.squares.dtype).isfinite()
        steps = torch.where(fits, rates, torch.nan)[:, None] * sums
        self._growth = classes, growth
        # As in `rows.py`, a row of the gradient is a direction times its largest entry.
        length = steps.abs().amax(1, keepdim=True)
        columns = (0, grad.index.shape[1] - 1)
        return replace(
            grad,
            h=torch.cat([grad.batch, steps / length.clamp_min(torch.finfo(length.dtype).tiny)]),
            index=torch.cat([grad.index[:size], F.pad(classes[:, None], columns)]),
            target_grad=torch.cat([grad.target_grad[:size], F.pad(length, columns)]),
            target_rows=torch.cat([grad.target_rows[:size], length * _rows_of_W(below)]),
        )

    def note_step_(self, is_taken: Tensor) -> None:  # () bool, on the device
        """Add the squares of a step, if it was taken."""
        if self._growth is not None:
            classes, growth = self._growth
            kept = torch.where(is_taken, growth, 0).to(self.squares.dtype)
            self.squares.index_add_(0, classes, kept)


def without_rows(grad: RecordedGradient) -> RecordedGradient:
    """Return the record of the batch alone, without the looked-up rows below it."""
    size = len(grad.curvature)
    return replace(
        grad,
        h=grad.h[:size],
        index=grad.index[:size],
        target_grad=grad.target_grad[:size],
        target_rows=grad.target_rows[:size],
    )


def _below_the_batch(grad: RecordedGradient) -> RecordedGradient:
    """Return the record of the looked-up rows alone, with one column of classes."""
    size = len(grad.curvature)
    return replace(
        grad,
        h=grad.h[size:],
        hg=grad.hg[:0],
        hu=None,
        mean=grad.mean[:0],
        curvature=grad.curvature[:0],
        mean_grad=grad.mean_grad[:0],
        index=grad.index[size:, :1],
        target_grad=grad.target_grad[size:, :1],
        target_rows=grad.target_rows[size:],
    )


def _rows_of_W(below: RecordedGradient) -> Tensor:  # (N, H)
    """Return the row of W of each class, in the order of `groups`; zeros where a class has no gradient.

    The record has `g W_c` for each entry, so `sum |g| W_c / sum |g|` needs no look-up.
    """
    row, _, grad = below.entries
    group, dtype = below.groups[0], below.h.dtype
    signed = below.target_rows[row].to(dtype) * grad.sign().to(dtype)[:, None]
    total = torch.zeros_like(signed).index_add_(0, group, signed)
    weight = torch.zeros_like(grad).index_add_(0, group, grad.abs()).to(dtype)
    return total / weight.clamp_min(torch.finfo(dtype).tiny)[:, None]
