"""The parts of a factored matrix, each compared with the dense matrix that they make."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.layers.dense_problems import (
    NUM_CLASSES,
    PARTS,
    WIDTH,
    Problem,
    assert_exact,
    matrix_of,
    plain_matrix,
)
from zloss.layers.matrix import FactoredMatrix, centred_moments, condition_of
from zloss.layers.storage import InMemory
from zloss.layers.update import Factors, exact_step


def moments(W: Tensor) -> tuple[Tensor, Tensor]:
    return W.mean(0), (W - W.mean(0)).T @ (W - W.mean(0))


def test_the_parts_make_the_dense_matrix() -> None:
    problem = Problem(3, WIDTH)
    matrix = matrix_of(problem)
    assert_exact(matrix.materialised(), problem.W)
    assert torch.equal(matrix.rows.tensor, problem.V)  # a new tensor
    U, U_inv = problem.factors.U, problem.factors.U_inv
    condition = (U.norm() * U_inv.norm()).item() / WIDTH
    assert matrix.condition() == pytest.approx(condition, rel=1e-12)
    assert condition_of(2 * torch.eye(5), torch.eye(5) / 2) == pytest.approx(1.0)


def test_a_step_is_applied_to_all_parts() -> None:
    problem = Problem(5, WIDTH)
    matrix = matrix_of(problem)
    old = matrix.factors
    step = exact_step(old, problem.record, 0.1, 0.2, NUM_CLASSES)
    matrix.set_(step.factors)
    matrix.add_rows_(matrix.row_changes(problem.record, step.rows, 0.1))
    W = (1 - 0.1 * 0.2) * problem.W - 0.1 * problem.gradient
    assert_exact(matrix.materialised(), W)
    assert all(one is other for one, other in zip(matrix.factors, old, strict=True))
    assert matrix.is_consistent()


@pytest.mark.parametrize("product_dtype", [torch.float32, torch.float64])
def test_a_refactor_keeps_the_matrix(product_dtype: torch.dtype) -> None:
    problem = Problem(3, WIDTH)
    matrix = matrix_of(problem, product_dtype)
    assert not matrix.is_plain()
    drift = matrix.refactor_()
    tolerance = 1e-9 if product_dtype == torch.float64 else 1e-5
    assert_exact(matrix.rows.tensor, problem.W, tolerance)
    assert matrix.is_plain()
    assert torch.equal(matrix.factors.U_inv, torch.eye(WIDTH, dtype=torch.float64))
    assert matrix.factors.U_inv.data_ptr() != matrix.factors.U.data_ptr()
    mean, gram = moments(matrix.rows.tensor)
    assert_exact(matrix.factors.wbar, mean)
    assert_exact(matrix.factors.gram, gram, tolerance)
    assert drift < 1e-4 if product_dtype == torch.float32 else drift < 1e-12


def test_the_drift_is_relative() -> None:
    problem = Problem(3, WIDTH)
    matrix = matrix_of(problem)
    matrix.multiply_(problem.factors.U, problem.factors.omega)
    gram = problem.factors.gram
    assert matrix.restart_(1.25 * gram, problem.factors.wbar).item() == pytest.approx(0.25)
    zeros = torch.zeros(NUM_CLASSES, WIDTH, dtype=torch.float64)
    empty = replace(matrix, rows=InMemory(zeros))
    assert empty.restart_(torch.zeros_like(gram), zeros[0]).item() == 0


@pytest.mark.parametrize("knows_pivot", [True, False])
def test_moments_of_rows_far_from_zero(knows_pivot: bool) -> None:
    """The mean is a million times the spread: sums of squares would have lost it."""
    rows = Problem(3, WIDTH).V
    far = rows + 1e6
    pivot = far.mean(0) + 1e-9 if knows_pivot else None
    mean, gram = centred_moments(InMemory(far), torch.float64, torch.float64, pivot=pivot)
    torch.testing.assert_close(mean, far.mean(0), rtol=1e-14, atol=0)
    torch.testing.assert_close(gram, moments(rows)[1], rtol=1e-8, atol=1e-8)


def test_a_rough_pivot_is_corrected() -> None:
    rows = Problem(3, WIDTH).V
    pivot = torch.full((WIDTH,), 0.7, dtype=torch.float64)
    mean, gram = centred_moments(InMemory(rows), torch.float64, torch.float64, pivot=pivot)
    assert_exact(mean, moments(rows)[0])
    assert_exact(gram, moments(rows)[1])


def test_changes_of_rows_name_each_class_once() -> None:
    problem = Problem(5, WIDTH)
    matrix = matrix_of(problem)
    rows = problem.h
    changes = matrix.row_changes(problem.record, rows, 0.5)
    dense = torch.zeros_like(problem.V).index_add_(0, changes.classes, changes.sums)
    assert_exact(dense, -0.5 * problem.Y.T @ rows)
    used = changes.classes[changes.sums.any(1)]
    assert len(set(used.tolist())) == len(used)


def test_the_rounding_of_a_step_beside_that_of_a_dense_one() -> None:
    problem = Problem(5, WIDTH)
    matrix = matrix_of(problem)
    step = exact_step(problem.factors, problem.record, 0.1, 0.0, NUM_CLASSES)
    changes = matrix.row_changes(problem.record, step.rows, 0.1)
    W = problem.W - 0.1 * problem.gradient
    V = problem.V - 0.1 * problem.Y.T @ step.rows
    is_target = problem.Y.any(0)
    factored = V[is_target].square() @ step.factors.U.square().sum(1)
    expected = (factored.sum() / W.square().sum()).sqrt()
    assert_exact(matrix.rounding_after(changes, step.factors), expected)
    empty = Factors(*(torch.zeros_like(factor) for factor in step.factors))
    nothing = changes._replace(sums=torch.zeros_like(changes.sums))
    assert matrix.rounding_after(nothing, empty) == 0


def test_passes_over_all_rows_are_exact_on_a_cpu() -> None:
    assert matrix_of(Problem(3, WIDTH), torch.float32).pass_dtype == torch.float64


def test_moments_are_added_up_in_the_finer_dtype() -> None:
    rows = Problem(3, WIDTH).V
    mean, gram = centred_moments(InMemory(rows.float()), torch.float64, torch.float32)
    assert mean.dtype == gram.dtype == torch.float64
    torch.testing.assert_close(mean, rows.float().double().mean(0), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gram, moments(rows)[1], rtol=1e-5, atol=1e-5)


def test_products_have_their_own_dtype() -> None:
    """Sums are in the finer dtype, and products are as coarse and as fast as asked for."""
    rows = Problem(3, WIDTH).V
    pivot = torch.zeros(WIDTH, dtype=torch.float64)
    _, gram = centred_moments(InMemory(rows), torch.float64, torch.float32, pivot=pivot)
    products = (rows.float().T @ rows.float()).double()
    mean = rows.mean(0)
    torch.testing.assert_close(
        gram, products - len(rows) * torch.outer(mean, mean), rtol=1e-12, atol=1e-12
    )


def test_a_first_row_unlike_all_others_costs_no_digits() -> None:
    rows = torch.randn(20_000, WIDTH)
    rows[0] += 1e3
    mean, gram = centred_moments(InMemory(rows), torch.float32, torch.float32)
    exact_mean, exact_gram = moments(rows.double())
    torch.testing.assert_close(mean.double(), exact_mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gram.double(), exact_gram, rtol=1e-4, atol=100)  # of a million


def test_sharpening_repairs_what_follows_from_the_rest() -> None:
    problem = Problem(3, WIDTH)
    matrix = matrix_of(problem)
    for part in ("U_inv", "wbar", "gram"):
        getattr(matrix.factors, part).mul_(1 + 1e-4).add_(1e-4)
    matrix.sharpen_()
    for one, other in zip(matrix.factors, problem.factors, strict=True):
        assert_exact(one, other)
    assert torch.equal(matrix.rows.tensor, problem.V)


@pytest.mark.parametrize("part", [*PARTS, "V"])
@pytest.mark.parametrize("change", [1e-2, -1e-2, float("nan"), float("inf")])
def test_a_part_that_does_not_fit_is_seen(part: str, change: float) -> None:
    problem = Problem(3, WIDTH)
    matrix = matrix_of(problem)
    assert matrix.is_consistent()
    tensor = matrix.rows.tensor if part == "V" else getattr(matrix.factors, part)
    # By a hundredth of its size in each direction: an error that training would carry on.
    tensor.add_(change * problem.W.std() if part in ("omega", "wbar") else change * tensor)
    assert not matrix.is_consistent()


@pytest.mark.parametrize("part", PARTS)
def test_rounding_in_a_part_is_accepted(part: str) -> None:
    matrix = matrix_of(Problem(3, WIDTH))
    factor = getattr(matrix.factors, part)
    factor.copy_(factor.float().double())
    assert matrix.is_consistent()


def test_a_matrix_is_plain_with_the_identity_and_no_shift() -> None:
    assert plain_matrix().is_plain()
    for part, place in (("omega", (1,)), ("U", (0, 1))):
        matrix = plain_matrix()
        getattr(matrix.factors, part)[place] = 1e-9
        assert not matrix.is_plain()


def test_plain_factors_share_no_memory() -> None:
    factors = matrix_of(Problem(3, WIDTH)).plain_factors()
    assert factors.U.data_ptr() != factors.U_inv.data_ptr()
    assert {factor.dtype for factor in factors} == {torch.float64}


def test_a_refactor_finds_the_drift_of_what_was_tracked() -> None:
    matrix = matrix_of(Problem(3, WIDTH))
    matrix.factors.gram.mul_(1.25)
    assert matrix.refactor_().item() == pytest.approx(0.25)


def scaled_matrix(scale: float, spread: float, U: Tensor | None = None) -> FactoredMatrix:
    """A matrix whose rows differ from their mean by this share of it, all of it times a scale."""
    problem = Problem(3, WIDTH)
    shift = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    U = problem.factors.U if U is None else U
    V, omega = scale * spread * problem.V, scale * shift
    mean, gram = moments(V @ U + omega)
    # From V alone: sums over rows that are near each other would lose the digits of their spread.
    gram = U.T @ moments(V)[1] @ U
    factors = Factors(U.clone(), torch.linalg.inv(U), omega, mean, gram)
    return FactoredMatrix(InMemory(V), factors, torch.float64)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize(
    ("part", "spread", "accepted", "refused"),
    [
        # The tolerance of a part is a thousandth of what varies, and more where rounding is larger.
        ("wbar", 1.0, 1e-4, 1e-2),
        ("wbar", 1e-8, 9e-6, 1.9e-5),
        ("omega", 1.0, 1e-4, 1e-2),
        ("omega", 1e-8, 9e-6, 1.9e-5),
        ("gram", 1.0, 9e-4, 1e-2),
        ("gram", 1e-8, 0.5, 1e11),
        ("U_inv", 1.0, 9e-4, 1.9e-3),
        ("V", 1.0, 1e-5, 1e-2),
    ],
)
def test_the_tolerance_grows_with_the_matrix(
    part: str, spread: float, accepted: float, refused: float, scale: float
) -> None:
    for share, fits in ((0.0, True), (accepted, True), (refused, False)):
        for sign in (1, -1):
            matrix = scaled_matrix(scale, spread)
            tensor = matrix.rows.tensor if part == "V" else getattr(matrix.factors, part)
            tensor.mul_(1 + sign * share)
            assert matrix.is_consistent() == fits, f"{share} of {part}"


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_gram_of_rows_near_each_other_may_be_rounding(scale: float) -> None:
    """The rounding of a product of two rows is the square of that of a row, in every direction."""
    matrix = scaled_matrix(scale, 1e-8)
    row = 1e-5 * matrix.factors.wbar.norm()
    change = NUM_CLASSES * row.square() * torch.eye(WIDTH, dtype=torch.float64)
    matrix.factors.gram.add_(0.9 * change)
    assert matrix.is_consistent()
    matrix.factors.gram.add_(100 * change)
    assert not matrix.is_consistent()


def test_the_mean_may_be_in_the_rows() -> None:
    """Rounding of the mean row is accepted wherever the mean is: in V, or in omega."""
    problem = Problem(3, WIDTH)
    V = 1e-3 * problem.V + torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    identity, zero = torch.eye(WIDTH, dtype=torch.float64), torch.zeros(WIDTH, dtype=torch.float64)
    mean, gram = moments(V)
    factors = Factors(identity, identity.clone(), zero, mean * (1 + 9e-6), gram)
    assert FactoredMatrix(InMemory(V), factors, torch.float64).is_consistent()


def test_factors_may_be_in_float32() -> None:
    matrix = plain_matrix()
    coarse = Factors(*(factor.float() for factor in matrix.factors))
    rows = InMemory(matrix.rows.tensor.float())
    assert FactoredMatrix(rows, coarse, torch.float32).is_consistent()


def test_rounding_may_make_the_gram_of_equal_rows_negative() -> None:
    matrix = scaled_matrix(1.0, 0.0)
    matrix.factors.gram.sub_(1e-12 * torch.eye(WIDTH, dtype=torch.float64))
    assert matrix.is_consistent()


def test_a_pivot_may_be_coarser() -> None:
    rows = Problem(3, WIDTH).V
    pivot = rows.mean(0).float()
    mean, gram = centred_moments(InMemory(rows), torch.float64, torch.float64, pivot=pivot)
    assert_exact(mean, moments(rows)[0])
    assert_exact(gram, moments(rows)[1])


@pytest.mark.parametrize("smallest", [1.0, 1e-3])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_the_inverse_of_an_uneven_matrix_may_be_rougher(smallest: float, scale: float) -> None:
    U = scale * torch.diag(torch.tensor([1.0, 1.0, 1.0, smallest], dtype=torch.float64))
    rough = 2e-3 / smallest / 400  # 5e-6, and 5e-3 where U is uneven
    for share, fits in ((rough, True), (0.1, False)):
        matrix = scaled_matrix(1.0, 1.0, U)
        matrix.factors.U_inv.mul_(1 + share)
        assert matrix.is_consistent() == fits
