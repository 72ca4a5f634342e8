"""One step on random factors, against the formulas of docs/mathematics.md on the whole matrix, in float64.

The tests of training look at hundreds of steps through the whole layer. These look at the functions below it, with
every argument drawn at random, so that no factor is 1 and no term is 0 by chance.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from tests.layers.dense_problems import NUM_CLASSES, Problem, assert_exact
from zloss.layers.gradient import concatenate
from zloss.layers.gradient_norm import norm_of
from zloss.layers.update import exact_step

# B below, at and above H: both regimes, and the border between them. Then the same with rows below the batch.
SIZES = [(1, 4, 0), (3, 4, 0), (4, 4, 0), (5, 4, 0), (9, 4, 0), (2, 1, 0), (1, 1, 0)]
SIZES += [(1, 4, 1), (1, 4, 7), (3, 4, 2), (4, 4, 1), (5, 4, 3)]


@pytest.mark.parametrize("knows_hu", [True, False])
@pytest.mark.parametrize(("batch", "width", "below"), SIZES)
@pytest.mark.parametrize(("lr", "decay"), [(0.07, 0.3), (0.3, 0.0)])
def test_a_step_on_the_factors_is_the_dense_step(
    batch: int, width: int, below: int, lr: float, decay: float, knows_hu: bool
) -> None:
    problem = Problem(batch, width, below)
    record = problem.record if knows_hu else replace(problem.record, hu=None)
    before = [factor.clone() for factor in problem.factors]
    step = exact_step(problem.factors, record, lr, decay, NUM_CLASSES)
    assert all(map(torch.equal, problem.factors, before))  # nothing in place
    new = step.factors
    W = (1 - lr * decay) * problem.W - lr * problem.gradient
    V = problem.V - lr * problem.Y.T @ step.rows
    assert_exact(V @ new.U + new.omega, W)
    assert_exact(new.wbar, W.mean(0))
    assert_exact(new.gram, (W - W.mean(0)).T @ (W - W.mean(0)))
    torch.testing.assert_close(
        new.U @ new.U_inv, torch.eye(width, dtype=torch.float64), rtol=0, atol=1e-7
    )
    torch.testing.assert_close(step.rows, problem.h @ new.U_inv, rtol=1e-7, atol=1e-7)
    assert_exact(step.k1_norm, problem.K1.norm())


@pytest.mark.parametrize("knows_hu", [True, False])
@pytest.mark.parametrize(("batch", "width", "below"), SIZES)
def test_products_may_be_coarser_than_the_state(
    batch: int, width: int, below: int, knows_hu: bool
) -> None:
    """The factors keep their dtype, and what a product does not touch keeps its digits."""
    problem = Problem(batch, width, below)
    hu = problem.record.hu
    assert hu is not None
    coarse = replace(
        problem.record, hg=problem.record.hg.float(), hu=hu.float() if knows_hu else None
    )
    lr = 1e-3  # a step of this size is well conditioned
    fine = exact_step(problem.factors, problem.record, lr, 0.5, NUM_CLASSES)
    step = exact_step(problem.factors, coarse, lr, 0.5, NUM_CLASSES)
    assert step.rows.dtype == step.k1_norm.dtype == torch.float32
    for one, other in zip(step.factors, fine.factors, strict=True):
        assert one.dtype == torch.float64
        # The error of a product in float32, of a change that is a thousandth of the factor.
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-7)
    for name in ("omega", "wbar"):
        assert torch.equal(getattr(step.factors, name), getattr(fine.factors, name))


@pytest.mark.parametrize("batch", [2, 6])
def test_a_singular_step_has_infinite_factors_and_raises_nothing(batch: int) -> None:
    problem = Problem(batch, 4)
    record = problem.record.scaled(0.0)
    step = exact_step(problem.factors, record, 0.5, 2.0, NUM_CLASSES)  # 1 - lr decay is zero
    assert not step.factors.U_inv.isfinite().all()
    for factor in (step.factors.U, step.factors.omega, step.factors.wbar, step.factors.gram):
        assert_exact(factor, torch.zeros_like(factor))


@pytest.mark.parametrize(("batch", "width", "below"), SIZES)
def test_the_norm_is_that_of_the_dense_gradient(batch: int, width: int, below: int) -> None:
    problem = Problem(batch, width, below)
    norm = norm_of(problem.record, problem.factors.wbar, NUM_CLASSES)
    assert_exact(norm, problem.gradient.norm())


def test_the_norm_of_nothing_is_zero_and_never_nan() -> None:
    """Rounding can make the square negative: here the terms differ in their last digits only."""
    problem = Problem(3, 4)
    zero = norm_of(problem.record.scaled(0.0), problem.factors.wbar, NUM_CLASSES)
    assert zero == 0
    negative = replace(
        problem.record, hg=-1e3 * problem.record.hg, curvature=torch.ones(3).double()
    )
    assert norm_of(negative, problem.factors.wbar, NUM_CLASSES) == 0


@pytest.mark.parametrize(("batch", "width", "below"), SIZES)
def test_repeated_targets_share_their_rows(batch: int, width: int, below: int) -> None:
    problem = Problem(batch, width, below)
    expected = problem.Y @ problem.Y.T @ problem.h
    assert_exact(problem.record.repeated_targets(), expected)


def test_without_targets_there_are_no_repeated_ones() -> None:
    problem = Problem(3, 4)
    nothing = replace(problem.record, target_grad=torch.zeros_like(problem.target_grad))
    assert torch.equal(nothing.repeated_targets(), torch.zeros_like(problem.h))
    none = replace(
        problem.record, index=problem.index[:, :0], target_grad=problem.target_grad[:, :0]
    )
    assert torch.equal(none.repeated_targets(), torch.zeros_like(problem.h))


def test_entries_are_the_nonzero_elements() -> None:
    problem = Problem(6, 4)
    rows, classes, grads = problem.record.entries
    assert (grads != 0).all()
    assert len(grads) == int((problem.target_grad != 0).sum()) < problem.target_grad.numel()
    Y = torch.zeros_like(problem.Y).index_put_((rows, classes), grads, accumulate=True)
    assert torch.equal(Y, problem.Y)


def test_a_scaled_record_is_that_of_a_scaled_gradient() -> None:
    problem = Problem(5, 4)
    norm = norm_of(problem.record, problem.factors.wbar, NUM_CLASSES)
    scaled = problem.record.scaled(-0.3)
    assert_exact(norm_of(scaled, problem.factors.wbar, NUM_CLASSES), 0.3 * norm)
    step = exact_step(problem.factors, scaled, -1.0, 0.0, NUM_CLASSES).factors
    same = exact_step(problem.factors, problem.record, 0.3, 0.0, NUM_CLASSES).factors
    for one, other in zip(step, same, strict=True):
        assert_exact(one, other)


def test_a_record_in_another_precision() -> None:
    record = Problem(3, 4).record
    fine = replace(record, hg=record.hg.float()).in_precision(torch.float64)
    assert (fine.hg.dtype, fine.hu) == (torch.float64, None)
    assert record.after_refactor().hu is None
    assert record.after_refactor().hg is record.hg


@pytest.mark.parametrize("name", ["curvature", "mean_grad", "target_grad"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_record_with_one_bad_number_is_not_finite(name: str, value: float) -> None:
    record = Problem(3, 4).record
    assert record.is_finite()
    bad = getattr(record, name).clone()
    bad.view(-1)[1] = value
    assert not replace(record, **{name: bad}).is_finite()


@pytest.mark.parametrize("below", [0, 3])
@pytest.mark.parametrize(("batch", "width"), [(2, 9), (2, 4), (6, 4)])
def test_records_add_up(batch: int, width: int, below: int) -> None:
    """Two records of one matrix, one of them with fewer targets, are the record of the sum."""
    one = Problem(batch, width, below)
    second = Problem(batch, width, below + 1, targets=1, seed=1)
    # The same matrix, with another batch.
    h = second.batch
    rows = (second.target_grad[..., None] * one.W[second.index]).sum(1)
    record = replace(
        second.record,
        hg=h @ one.factors.gram,
        hu=h @ one.factors.U.T,
        mean=h @ one.factors.wbar,
        target_rows=rows,
    )
    second.W, second.factors = one.W, one.factors
    gradient = one.gradient + second.gradient
    for records in ([one.record, record], [record, one.record]):
        together = concatenate(records)
        assert (len(together.batch), len(together.h)) == (2 * batch, 2 * batch + 2 * below + 1)
        norm = norm_of(together, one.factors.wbar, NUM_CLASSES)
        assert_exact(norm, gradient.norm())
        assert together.index.shape[1] == 3  # the wider of the two
        assert together.hu is not None
        assert_exact(together.hu, together.batch @ one.factors.U.T)
        new = exact_step(one.factors, together, 0.1, 0.0, NUM_CLASSES).factors
        assert_exact(new.wbar, (one.W - 0.1 * gradient).mean(0))
    assert concatenate([one.record]) is one.record
    for records in ([one.record, replace(record, hu=None)], [replace(one.record, hu=None), record]):
        assert concatenate(records).hu is None


@pytest.mark.parametrize(("batch", "width", "solved"), [(3, 4, 3), (5, 4, 4), (1, 4, 1)])
def test_the_smaller_of_two_systems_is_solved(
    batch: int, width: int, solved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B x B below the width of the layer, H x H from there on: the results are equal, the costs are not."""
    sizes = list[int]()
    solve = torch.linalg.solve_ex

    def watched(system: Tensor, right: Tensor) -> Any:
        sizes.append(len(system))
        return solve(system, right)

    monkeypatch.setattr(torch.linalg, "solve_ex", watched)
    problem = Problem(batch, width)
    exact_step(problem.factors, problem.record, 0.1, 0.0, NUM_CLASSES)
    assert sizes == [solved]


def test_the_norm_of_a_curvature_that_cancels_is_a_number() -> None:
    """Rounding can make the square of the norm of K1 negative: here two rows cancel almost, in many ways."""
    squares = []
    for seed in range(30):
        problem = Problem(2, 4, seed=seed)
        h = torch.stack([problem.h[0], problem.h[0] * (1 + 1e-9)])
        curvature = torch.tensor([1.0, -1.0]).double()
        record = replace(problem.record, h=h, curvature=curvature)
        step = exact_step(problem.factors, record, 1e-3, 0.0, NUM_CLASSES)
        assert 0 <= step.k1_norm < 1e-6
        hha = (h @ h.T) * curvature
        squares.append((hha * hha.T).sum().item())
    assert min(squares) < 0  # the case is among them


@pytest.mark.parametrize(("batch", "width"), [(2, 40), (40, 2)])
def test_the_norm_takes_the_cheaper_way(batch: int, width: int) -> None:
    """Through B x B matrices, or through H x H matrices: whichever are smaller."""
    problem = Problem(batch, width)
    with FlopCounterMode(display=False) as counted:
        norm_of(problem.record, problem.factors.wbar, NUM_CLASSES)
    # Two such products, and some of a matrix with a vector; the other way would take twenty times as much.
    assert counted.get_total_flops() < 4 * (2 * batch * width * min(batch, width))


@pytest.mark.parametrize("batch", [2, 6])
def test_a_row_of_zeros_changes_nothing(batch: int) -> None:
    """As a dead layer below would send it: it has no length to divide by."""
    problem = Problem(batch, 4)
    zeros = {name: getattr(problem.record, name).clone() for name in ("h", "hg", "hu", "mean")}
    for part in zeros.values():
        part[0] = 0
    step = exact_step(problem.factors, replace(problem.record, **zeros), 0.1, 0.0, NUM_CLASSES)
    assert all(factor.isfinite().all() for factor in step.factors)
    assert torch.equal(step.rows[0], torch.zeros(4).double())


@pytest.mark.parametrize("batch", [2, 6])
def test_the_batch_may_be_coarser_than_the_gradients(batch: int) -> None:
    """Kernels record it in the dtype of products."""
    problem = Problem(batch, 4)
    exact = replace(problem.record, h=problem.h.float().double())
    coarse = replace(problem.record, h=problem.h.float())
    wbar = problem.factors.wbar
    assert coarse.repeated_targets().dtype == torch.float64
    assert_exact(coarse.repeated_targets(), exact.repeated_targets(), 1e-5)
    assert_exact(norm_of(coarse, wbar, NUM_CLASSES), norm_of(exact, wbar, NUM_CLASSES), 1e-5)
    rows = problem.h.float()
    assert problem.record.summed_by_class(rows).dtype == torch.float32
