"""A C x H weight matrix held in factors: `W = V U + 1 omega^T`, with its mean row and its centred Gram matrix.

`FactoredMatrix` ties the small H x H state to the storage of V and has no state of its own: it is made anew whenever
somebody asks. Its parts make one matrix only while all of them fit. Code that goes through the parameters and buffers
of a model does not know that. It may initialise, average, load or replace any of them. `Integrity` notices such writes.

Shape letters: B rows of a batch, C classes, H width of the layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import NamedTuple

import torch
from torch import Tensor

from zloss.layers.gradient import RecordedGradient
from zloss.layers.storage import Scratch, Stamp, Storage, stamp_of
from zloss.layers.update import Factors
from zloss.precision import exact_products, finest_dtype
from zloss.streams import must_not_wait

# How well the factors must fit V: far above rounding and drift, far below the misfit of averaged factors.
_FIT = 1e-3
_ROUNDING = 1e-5  # of a row of W, where rows differ by little more than rounding
_DIRECTIONS = 4


class RowChanges(NamedTuple):
    """The changes of rows of V by a step. Each class occurs once; class 0 may also occur with sums of zero."""

    classes: Tensor  # (N,)
    sums: Tensor  # (N, H)


@dataclass(frozen=True)
class FactoredMatrix:
    """The weight matrix of a factored layer as it is now."""

    rows: Storage  # of V
    factors: Factors
    product_dtype: torch.dtype

    @property
    def pass_dtype(self) -> torch.dtype:
        """The dtype of products in passes over all rows. On a CPU they are rare enough for the finest one."""
        device = self.rows.device
        return finest_dtype(device) if device.type == "cpu" else self.product_dtype

    def stamps(self) -> tuple[Stamp, ...]:
        """Return what changes when torch writes to V or to a factor; the first stamp is that of V."""
        return self.rows.stamp(), *(stamp_of(factor) for factor in self.factors)

    def set_(self, new: Factors) -> None:
        """Copy new factors into the old ones, so that tensors from `state_dict()` keep fitting V."""
        for old, value in zip(self.factors, new, strict=True):
            old.copy_(value)

    def plain_factors(self, pivot: Tensor | None = None) -> Factors:
        """Return the factors with which V alone is W; a `pivot` near the mean row saves one of two passes."""
        with exact_products(self.rows.device.type):
            finest = finest_dtype(self.rows.device)  # sums over all classes, whatever the state has
            moments = centred_moments(self.rows, finest, self.pass_dtype, pivot=pivot)
        wbar, gram = (moment.to(self.factors.U.dtype) for moment in moments)
        identity = torch.eye(len(wbar), dtype=wbar.dtype, device=wbar.device)
        return Factors(identity, identity.clone(), torch.zeros_like(wbar), wbar, gram)

    def refactor_(self) -> Tensor:  # ()
        """Multiply U into V and take all statistics anew; returns as `restart_` does."""
        tracked, pivot = self.factors.gram.clone(), self.factors.wbar.clone()
        self.multiply_(self.factors.U, self.factors.omega)
        return self.restart_(tracked, pivot)

    def multiply_(self, U: Tensor, omega: Tensor) -> None:
        """Compute `V <- V U + 1 omega^T`, and leave the factors to the caller."""
        with exact_products(self.rows.device.type):
            materialise_(self.rows, U, omega, self.pass_dtype)

    def restart_(self, tracked_gram: Tensor, pivot: Tensor) -> Tensor:  # ()
        """Take V as W and all statistics anew. Returns the relative error of the tracked Gram matrix."""
        self.set_(self.plain_factors(pivot))
        gram = self.factors.gram
        size = gram.norm().clamp_min(torch.finfo(gram.dtype).tiny)
        drift: Tensor = (tracked_gram - gram).norm() / size
        return drift

    def materialised(self) -> Tensor:  # (C, H)
        """Return W as a new tensor."""
        own = replace(self, rows=self.rows.copied())
        own.multiply_(self.factors.U, self.factors.omega)
        return own.rows.tensor

    def row_changes(self, grad: RecordedGradient, rows: Tensor, lr: float) -> "RowChanges":
        """Return the changes of V by a step, `-lr g_t row` for every target."""
        return RowChanges(grad.groups[1], -lr * grad.summed_by_class(rows))

    def add_rows_(self, changes: "RowChanges") -> None:
        """Change the rows of the targets."""
        self.rows.add_(changes.classes, changes.sums)

    def rounding_after(self, changes: "RowChanges", new: Factors) -> Tensor:  # ()
        """Return the rounding of W by a step that changes V so, as a multiple of the rounding by a dense step.

        A dense step rounds every entry of W. This one rounds entries of some rows of V. Entry j of a row reaches W
        through row j of the new U.
        """
        is_in_use = changes.sums.any(1)
        rows = (self.rows.gather(changes.classes) + changes.sums) * is_in_use[:, None]
        through = new.U.square().sum(1).to(rows.dtype)
        size = new.gram.trace() + self.rows.num_rows * new.wbar.square().sum()
        return (
            (rows.square() @ through).sum() / size.clamp_min(torch.finfo(size.dtype).tiny)
        ).sqrt()

    def sharpen_(self) -> None:
        """Compute anew what follows from V, U and omega: after a conversion to a finer dtype."""
        f = self.factors
        with exact_products(self.rows.device.type):
            f.U_inv.copy_(torch.linalg.inv(f.U))
            mean, gram = centred_moments(self.rows, f.U.dtype, self.pass_dtype)
            f.wbar.copy_(mean @ f.U + f.omega)
            f.gram.copy_(f.U.T @ gram @ f.U)

    def condition(self) -> float:
        """Return `|U|_F |U^-1|_F / H`: 1 after a refactor, and more after steps."""
        return condition_of(self.factors.U, self.factors.U_inv).item()

    def is_plain(self) -> bool:
        """Return whether V alone is W."""
        U = self.factors.U
        identity = torch.eye(len(U), dtype=U.dtype, device=U.device)
        return not self.factors.omega.any() and torch.equal(U, identity)

    @torch.no_grad()
    def is_consistent(self) -> bool:
        """Return whether V and the factors are finite and fit each other, as far as a few random directions show.

        The mean row, the Gram matrix and the inverse are compared. That is one look and no proof.
        """
        f, num_rows = self.factors, self.rows.num_rows
        directions = _directions(f.U)
        with exact_products(self.rows.device.type):
            offset, products = self._moments_along(directions)
            expected, back = f.gram @ directions, f.U_inv @ (f.U @ directions)
        # Rounding makes the gram of equal rows negative. A gram that is negative beyond that differs from `products`.
        scatter = (directions * expected).sum(0).clamp_min(0)
        spread = (f.gram.trace() / num_rows).clamp_min(0).sqrt()  # of a row of W
        length = directions.norm(dim=0)
        rounding = _ROUNDING * (spread.square() + f.wbar.square().sum()).sqrt()
        # The factors may have been stored in a coarser dtype than they have now.
        inverse_rounding = _ROUNDING * f.U.norm() * f.U_inv.norm()
        # Comparisons with NaN are false.
        fits = offset.abs() / num_rows <= _FIT * (scatter / num_rows).sqrt() + rounding * length
        slack = num_rows * rounding * (spread + rounding) * length
        fits &= (products - expected).norm(dim=0) <= _FIT * expected.norm(dim=0) + slack
        fits &= (back - directions).norm(dim=0) <= (_FIT + inverse_rounding) * length
        return bool(fits.all())

    def _moments_along(self, directions: Tensor) -> tuple[Tensor, Tensor]:  # (H, n) -> (n,), (H, n)
        """Return the sum of the deviations of all rows of W from `wbar`, and `gram`, each times the directions."""
        f = self.factors
        through, shift = f.U @ directions, (f.omega - f.wbar) @ directions

        def moments(block: Tensor) -> Sequence[Tensor]:
            rows = block.to(shift.dtype)
            deviations = rows @ through + shift
            return deviations.sum(0), rows.T @ deviations

        offset, products = torch.zeros_like(shift), torch.zeros_like(directions)
        self.rows.add_up_((offset, products), moments, shift.dtype)
        return offset, f.U.T @ products + torch.outer(f.omega - f.wbar, offset)


class Writes(Enum):
    """A judgement of what others have written to V and its factors."""

    NONE = auto()
    ALL = auto()  # all parts were written to, and they fit: somebody has loaded them
    ROWS = auto()  # V alone was written to while it alone made up W: an initialiser means W
    MISFIT = auto()  # the parts make no matrix any more


class Integrity:
    """The version of the weights, and the stamps of their tensors when the layer last accepted them."""

    def __init__(self, matrix: FactoredMatrix) -> None:
        self.version = 0  # counts changes of the weights, so that a stale backward pass is noticed
        self.stamps = matrix.stamps()
        # Until the first use: writes through `.data` leave no trace.
        self.is_unproven = True
        # Until it has weights of its own: an average is often collected in a copy.
        self._is_copy = False

    def changed(self, matrix: FactoredMatrix) -> bool:
        """Return whether torch has seen a write since the weights were accepted."""
        return matrix.stamps() != self.stamps

    def accept(self, matrix: FactoredMatrix, *, are_own: bool = True) -> None:
        """Take the weights as they are for a new version. `are_own` says that the layer itself has made them."""
        self.stamps = matrix.stamps()
        self.advance()
        self._is_copy &= not are_own

    def advance(self) -> None:
        """Count a change of the weights."""
        self.version += 1

    def judge(self, matrix: FactoredMatrix) -> Writes:
        """Say what others have written. Tensors that make one matrix are accepted here; the version stays."""
        now, looks = matrix.stamps(), self.is_unproven and not must_not_wait()
        if not matrix.rows.has_memory or (now == self.stamps and not looks):
            return Writes.NONE
        self.is_unproven &= not looks
        changed = [new != old for new, old in zip(now, self.stamps, strict=True)]
        if (all(changed) or not any(changed)) and matrix.is_consistent():
            self.stamps = now
            return Writes.ALL if any(changed) else Writes.NONE
        if not any(changed[1:]) and not self._is_copy and matrix.is_plain():
            return Writes.ROWS
        self.is_unproven = True
        return Writes.MISFIT

    def reseal(self, matrix: FactoredMatrix, *, as_copy: bool = False) -> None:
        """Take the stamps anew, of tensors that have moved; a copy is looked at before its first use."""
        self.stamps = matrix.stamps()
        if as_copy:
            self._is_copy = self.is_unproven = True


def materialise_(rows: Storage, U: Tensor, omega: Tensor, product_dtype: torch.dtype) -> None:
    """Compute `V <- V U + 1 omega^T` in place."""
    # V U = s V + V (U - s I) with s I the multiple of the identity nearest to U: near it, only the small second term is
    # subject to the rounding of a product.
    nearest = U.diagonal().mean()
    rest = (U - nearest * torch.eye(len(U), dtype=U.dtype, device=U.device)).to(product_dtype)
    shift, scale = omega.to(product_dtype), nearest.to(product_dtype)
    before, after = Scratch(), Scratch()

    def times_U(block: Tensor) -> Tensor:
        is_ready = block.dtype == product_dtype
        old = block if is_ready else before.copy_of(block, product_dtype)
        new = torch.addmm(shift, old, rest, out=after.like(block, product_dtype))
        return new.addcmul_(old, scale)

    rows.replace_(times_U, U.dtype)


def centred_moments(
    rows: Storage,  # (C, H)
    dtype: torch.dtype,
    product_dtype: torch.dtype,
    *,
    pivot: Tensor | None = None,  # (H,)
) -> tuple[Tensor, Tensor]:  # (H,), (H, H)
    """Return the mean row and the Gram matrix of the rows without their mean, added up in `dtype`.

    A `pivot` that is the mean up to rounding saves one of two passes over the rows.
    """
    pivot = _mean_row(rows, dtype) if pivot is None else pivot.to(dtype)
    total, gram = torch.zeros_like(pivot), pivot.new_zeros(rows.width, rows.width)
    scratch = Scratch()

    def moments(block: Tensor) -> Sequence[Tensor]:
        centred = scratch.copy_of(block, dtype).sub_(pivot)
        products = centred.to(product_dtype)
        return centred.sum(0), products.T @ products

    rows.add_up_((total, gram), moments, dtype)
    off = total / rows.num_rows
    return pivot + off, gram - rows.num_rows * torch.outer(off, off)


def condition_of(U: Tensor, U_inv: Tensor) -> Tensor:  # ()
    """Return `|U|_F |U^-1|_F / H`, which is 1 for a multiple of an orthogonal matrix.

    It is within a factor H of the condition number.
    """
    product: Tensor = U.norm() * U_inv.norm()
    return product / len(U)


def _mean_row(rows: Storage, dtype: torch.dtype) -> Tensor:  # (H,)
    # These are sums of differences from one row, so a mean that dominates all rows is not added up. Equal rows have a
    # Gram matrix of exactly zero.
    first = rows.gather(torch.zeros(1, dtype=torch.long, device=rows.device))
    pivot = first[0].to(dtype)
    total, scratch = torch.zeros_like(pivot), Scratch()

    def deviations(block: Tensor) -> Sequence[Tensor]:
        return [scratch.copy_of(block, dtype).sub_(pivot).sum(0)]

    rows.add_up_((total,), deviations, dtype)
    return pivot + total / rows.num_rows


def _directions(like: Tensor) -> Tensor:  # (H, H) -> (H, n)
    """Return a few random directions, the same every time."""
    generator, shape = torch.Generator().manual_seed(0), (len(like), _DIRECTIONS)
    return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").to(like)
