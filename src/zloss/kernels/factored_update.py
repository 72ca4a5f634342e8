"""One exact SGD step on the factors by kernels, in place. `zloss.layers.update` is its definition.

As in the definition there are two regimes: `B < H` solves B x B systems, and `B >= H` forms the H x H matrices. Torch
computes the large products, in the dtype of products. Between them, single launches do all the small work:

    factored_terms     the terms that are computed entry by entry
    factored_system    the linear system of the step
    factored_apply     the verdict on the step, and the change of the factors

While a step is captured as a CUDA graph, products that do not need the inverse of the system become branches beside
it. Products that need the batch alone (`Begun`) became branches beside the loss and its gradient. The last launch
changes the factors in place if no fault was raised, in this step or before.

Shape letters: B rows, H width of the layer, K targets per row, C classes.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from zloss.kernels.factored_apply import apply_step
from zloss.kernels.factored_statistics import Begun
from zloss.kernels.factored_system import System
from zloss.kernels.factored_terms import (
    add_repeated,
    add_up_repeated,
    find_first,
    make_second_order,
    prepare_rows,
)
from zloss.kernels.rates import Rates, in_two
from zloss.kernels.tiles import ENTRYWISE_SIDE, pieces, power_of_2
from zloss.streams import Branch

_STRIP = 128  # entries of a vector for one program
_FEW, _MANY = 8, 1024  # targets of one program, and targets that it compares with these at a time


class Batch(NamedTuple):
    """A recorded gradient: see `zloss.layers.gradient.RecordedGradient`."""

    h: Tensor  # (B, H) in the dtype of products
    hg: Tensor  # (B, H) likewise
    mean: Tensor  # (B,) float64
    curvature: Tensor  # (B,) float64
    mean_grad: Tensor  # (B,) float64
    classes: Tensor  # (B, K) int64, the targets
    target_grad: Tensor  # (B, K) float64
    target_rows: Tensor  # (B, H) in the dtype of products
    begun: Begun | None = None


class State(NamedTuple):
    """The factors, which a step changes in place, with their copies and the report on the step."""

    V: Tensor  # (C, H) float32
    U: Tensor  # (H, H)
    U_inv: Tensor  # (H, H)
    omega: Tensor  # (H,)
    wbar: Tensor  # (H,)
    gram: Tensor  # (H, H)
    pack: Tensor  # (3, H, H) copies of gram, U and U_inv^T in the dtype of products
    fault: Tensor  # () int64 bits: a step is applied only if none is set
    report: Tensor  # float64: fault, safe lr, then sums of squares of the parts of U, then of U_inv


def report_length(width: int) -> int:
    """Return the number of entries in the report of a layer of this width."""
    return 2 + 2 * pieces(width, ENTRYWISE_SIDE) ** 2


def refresh_(pack: Tensor, report: Tensor, gram: Tensor, U: Tensor, U_inv: Tensor) -> None:
    """Copy the factors again, after other code than `step_` has changed them, and forget their norms."""
    for copy, original in zip(pack, (gram, U, U_inv.T), strict=True):
        copy.copy_(original)
    report[2:].zero_()


def step_(
    state: State,
    batch: Batch,
    lr: float,
    weight_decay: float,
    *,
    most_condition: float,
    gradient_fault: int,
    singular_fault: int,
) -> None:
    """Apply the step, or raise a fault on the device and change nothing.

    A condition of U above `most_condition` before the step is a singular fault as well.
    """
    if not len(batch.h):  # weights decay even then, so a row of zeros replaces the empty batch
        row: list[Any] = [part.new_zeros(1, *part.shape[1:]) for part in batch[:-1]]
        batch = Batch(*row)
    rows, width = batch.h.shape
    regime = _ThroughRows if rows < width else _ThroughColumns
    with torch.cuda.device_of(batch.h):
        step = regime(state, batch, lr, weight_decay)
        with step.gram_branch, step.other_branch:
            step.prepare(most_condition, gradient_fault, singular_fault)
            step.solve()
        step.apply(singular_fault)


class _Step:
    """The launches of one step, and the tensors that they share. All tensors live until the branches have joined."""

    system: System
    gram_change: Tensor  # (H, H) whose symmetric part is half the change of gram
    U_change: Tensor  # (H, H), subtracted lr times
    inverse_change: Tensor  # (H, H) of U_inv^T, added `inverse_scale` times
    inverse_scale: float
    rows_of_V: Tensor  # (B, H) `keep h U_inv`, with the new U_inv
    sums: Tensor  # (3, H) `columns @ h`

    def __init__(self, state: State, batch: Batch, lr: float, weight_decay: float) -> None:
        self.state, self.batch, self.lr, self.weight_decay = state, batch, lr, weight_decay
        self.rates = Rates.of(lr, weight_decay)
        (self.rows, self.width), self.targets = batch.h.shape, batch.classes.shape[1]
        self.bent_h, self.q = torch.empty_like(batch.h), torch.empty_like(batch.h)
        # B < H does not use this tensor.
        self.half = torch.empty_like(batch.h) if self.rows >= self.width else self.q
        self.columns = batch.h.new_empty(3, self.rows)
        self.row_sizes = {"H": self.width, "WIDTH": power_of_2(self.width), "num_warps": 4}
        self.gram_branch, self.other_branch = Branch(), Branch()

    def prepare(self, most_condition: float, gradient_fault: int, singular_fault: int) -> None:
        """Compute all terms of the batch that need no product."""
        b, s, parts = self.batch, self.state, pieces(self.width, ENTRYWISE_SIDE) ** 2
        prepare_rows[(self.rows,)](
            *b[:-1], s.omega, s.wbar, s.fault, s.report, self.bent_h, self.q, self.half, self.columns,
            *self.rates, self.rows, len(s.V), (most_condition * self.width) ** 2, parts,
            K=self.targets, PARTS=power_of_2(parts), FAULT=gradient_fault, CONDITION_FAULT=singular_fault,
            **self.row_sizes,
        )  # fmt: skip

    def solve(self) -> None:
        """Compute the changes of the factors, up to the launch that applies them."""
        raise NotImplementedError

    def apply(self, singular_fault: int) -> None:
        """Judge the step, and change the factors if it is safe."""
        b, s, across = self.batch, self.state, pieces(self.width, ENTRYWISE_SIDE)
        squares, remainder = self.system.squares, self.system.remainder
        apply_step[(3 * across**2 + pieces(self.width, _STRIP) + self.rows,)](
            b.classes, b.target_grad, *s, self.gram_change, self.U_change, self.inverse_change, self.rows_of_V,
            self.sums, remainder, squares, self.weight_decay, *in_two(self.inverse_scale), *self.rates,
            len(squares), len(remainder),
            K=self.targets, PARTS=power_of_2(len(squares)),
            SIDE=ENTRYWISE_SIDE, STRIP=_STRIP, FAULT=singular_fault, **self.row_sizes,
        )  # fmt: skip


class _ThroughRows(_Step):
    """The step by B x B systems, for B < H: X = ratio H H^T A."""

    def prepare(self, most_condition: float, gradient_fault: int, singular_fault: int) -> None:
        with self.gram_branch.open():  # the system does not need these terms
            super().prepare(most_condition, gradient_fault, singular_fault)
        self.other_branch.follow(self.gram_branch)

    def solve(self) -> None:
        b, s, width = self.batch, self.state, self.width
        begun = b.begun or Begun.of(b.h, b.hg, s.pack)
        begun.inner_branch.join()
        self.system = System(begun.inner, b.curvature, self.rates)
        begun.turned_branch.join()
        with self.gram_branch.open():
            self.gram_change = self.change_gram(begun)
        with self.other_branch.open():
            self.U_change = begun.turned[:, :width].T @ self.bent_h
            self.sums = self.columns @ b.h
        self.rows_of_V, _ = self.system.inverse_times(
            begun.turned[:, width:], begun.rounded, from_left=True
        )
        self.other_branch.join()  # and with it the prepared terms, which this branch follows
        self.inverse_change = self.rows_of_V.T @ self.bent_h
        self.inverse_scale = self.lr / (1 - self.lr * self.weight_decay)

    def change_gram(self, begun: Begun) -> Tensor:
        b, tiles = self.batch, pieces(self.rows, ENTRYWISE_SIDE)
        self.targets_by_row = b.target_rows @ b.h.T
        self.second = torch.empty_like(begun.inner)
        make_second_order[(tiles, tiles)](
            begun.scatter, self.targets_by_row, b.mean, b.curvature, b.classes, b.target_grad, self.second,
            *self.rates, self.rows, len(self.state.V), K=self.targets, SIDE=ENTRYWISE_SIDE, num_warps=4,
        )  # fmt: skip
        return b.h.T @ self.q.addmm_(self.second, b.h)


class _ThroughColumns(_Step):
    """The step by H x H matrices, for B >= H: X = ratio K1."""

    inverse_scale = 1.0
    k1: Tensor  # (H, H)
    rounded: Tensor  # (H, H) U_inv^T in float32
    first: Tensor  # (B, K) where each target occurs for the first time
    totals: Tensor  # (B K, H) zeros, to which rows of equal targets are added

    def prepare(self, most_condition: float, gradient_fault: int, singular_fault: int) -> None:
        classes, asked = self.batch.classes, self.batch.classes.numel()
        self.first, self.totals = (
            torch.empty_like(classes),
            self.bent_h.new_empty(asked, self.width),
        )
        with self.other_branch.open():
            self.rounded = self.state.pack[2].float()
            find_first[(pieces(asked, _FEW),)](
                classes, self.first, self.totals, asked, FEW=_FEW, MANY=_MANY, **self.row_sizes
            )
        super().prepare(most_condition, gradient_fault, singular_fault)

    def solve(self) -> None:
        b, s = self.batch, self.state
        self.other_branch.join()
        # Nothing runs beside this product. All other work waits for it, and it has one tile for every processor of a
        # large GPU. If a processor were busy for a moment, another one would do two tiles, in twice the time.
        self.k1 = b.h.T @ self.bent_h
        self.system = System(self.k1, None, self.rates)
        with self.gram_branch.open():
            self.sums = self.columns @ b.h
            self.add_repeated()
            self.gram_change = b.h.T @ self.q.addmm_(self.half, self.k1, alpha=self.lr**2)
        with self.other_branch.open():
            self.U_change = s.pack[1] @ self.k1
        inverse, self.inverse_change = self.system.inverse_times(
            s.pack[2], self.rounded, from_left=False
        )
        self.rows_of_V = b.h @ inverse.T

    def add_repeated(self) -> None:
        """Add `lr^2 (Y Y^T - y y^T / C) H / 2` to Q, through sums of g h over the examples that share a target."""
        b, sizes = self.batch, {"K": self.targets, **self.row_sizes}
        add_up_repeated[(self.rows,)](b.h, self.first, b.target_grad, self.totals, **sizes)
        add_repeated[(self.rows,)](
            self.first,
            b.target_grad,
            self.totals,
            self.sums,
            self.q,
            *self.rates,
            len(self.state.V),
            **sizes,
        )
