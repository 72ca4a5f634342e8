"""Rows of W that a network looks up, and the record of their gradients: the step takes them with the batch's gradient.

Let r be the gradient of the row of class c. It belongs to the sparse part Y^T H of the gradient of W: as if an example
`r / |r|` had the target c, with `dL/do_c = |r|`, and nothing else. So every formula that knows Y^T H serves as it is,
and these rows stand below the batch in a `RecordedGradient`. The cost is O(H^2) for a row, whatever the number of
classes.

The step does not ask where the rows below the batch come from. `row_rule.py` replaces them where they have a rule of
their own, and the step stays exact.

Shape letters: n ids, N classes that are looked up, H width of the layer (with the bias column).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from zloss.layers.gradient import RecordedGradient
from zloss.layers.matrix import FactoredMatrix
from zloss.layers.stepper import Stepper, Tape
from zloss.layers.supervisor import Fault
from zloss.limits import first_derivatives_only
from zloss.precision import exact_products
from zloss.targets import checked_row_ids, parse_row_ids


def look_up(
    stepper: Stepper,
    matrix: FactoredMatrix,
    ids: Tensor,  # (...)
    *,
    record: Callable[[RecordedGradient], None] | None,
) -> Tensor:  # (..., H)
    """Return rows of W. Where a backward pass would give a gradient to an ordinary weight, it calls `record`."""
    tape = stepper.tape(matrix)
    anchor = None if record is None else tape.anchor(record)
    misfits = place = None
    if stepper.waits(matrix):
        # Shapes may depend on values here: each row is computed once, and gets one gradient.
        classes, place = checked_row_ids(ids, matrix.rows.tensor).unique(return_inverse=True)
    else:
        classes, misfits = parse_row_ids(ids, matrix.rows.tensor)
        stepper.supervisor.note(Fault.ROW.value * misfits.any())
    rows: Tensor = LookedUpRows.apply(anchor, classes, place, tape)  # type: ignore[no-untyped-call]
    if misfits is not None:
        # The fault stops the layer. Zeros leave the layers above in order, which a NaN would not.
        rows = torch.where(misfits[:, None], 0, rows)
    return rows.reshape(*ids.shape, matrix.rows.width)


class LookedUpRows(torch.autograd.Function):
    """`W[classes][place]`, with a record of the gradient instead of a gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor | None,  # (0,)
        classes: Tensor,  # (N,)
        place: Tensor
        | None,  # (n,) where each id stands among the classes, if it is not in the same place
        tape: Tape,
    ) -> Tensor:  # (n, H)
        f, dtype = tape.matrix.factors, tape.matrix.product_dtype
        with exact_products(classes.device.type):
            own = tape.matrix.rows.gather(classes)
            rows = own.to(dtype) @ f.U.to(dtype) + f.omega
        ctx.tape = tape
        ctx.save_for_backward(classes, place, rows)
        shown = rows.to(own.dtype)
        return shown.clone() if place is None else shown[place]

    @staticmethod
    @first_derivatives_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        ctx.tape.check_unchanged()
        classes, place, rows = ctx.saved_tensors
        grad = grad.to(rows.dtype)
        sums = grad if place is None else torch.zeros_like(rows).index_add_(0, place, grad)
        ctx.tape.put(recorded_rows(classes, sums, rows, ctx.tape.matrix.product_dtype))
        return grad.new_empty(0), None, None, None


def recorded_rows(
    classes: Tensor,  # (N,)
    gradients: Tensor,  # (N, H)
    rows: Tensor,  # (N, H) of W
    product_dtype: torch.dtype,
) -> RecordedGradient:
    """Return the record of gradients of rows; there is no batch above them.

    A gradient with a NaN or an infinity has such a size, where a step looks for them.
    """
    size = gradients.abs().amax(1)
    batch = gradients[:0]  # in the dtype of the state
    return RecordedGradient(
        h=gradients / size.clamp_min(torch.finfo(size.dtype).tiny)[:, None],
        hg=batch.to(product_dtype),
        hu=batch.to(product_dtype),
        mean=size[:0],
        curvature=size[:0],
        mean_grad=size[:0],
        index=classes[:, None],
        target_grad=size[:, None],
        target_rows=size[:, None] * rows,
    )
