"""Passes over all rows with coarse products, as a GPU takes them: the definition, on any device."""

import torch

from tests.layers.dense_problems import WIDTH, Problem, assert_exact
from zloss.layers.matrix import materialise_
from zloss.layers.storage import InMemory


def test_a_pass_takes_products_in_their_own_dtype() -> None:
    problem = Problem(3, WIDTH)
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-5)):
        rows = InMemory(problem.V.to(dtype, copy=True))
        materialise_(rows, problem.factors.U, problem.factors.omega, dtype)
        assert rows.tensor.dtype == dtype
        assert_exact(rows.tensor.double(), problem.W, tolerance)


def test_a_pass_near_the_identity_keeps_the_digits_of_the_rows() -> None:
    """Only the small difference from a multiple of the identity is subject to the rounding of a product."""
    V = Problem(3, WIDTH).V
    U = 3 * torch.eye(WIDTH, dtype=torch.float64) + 1e-6 * Problem(3, WIDTH, seed=1).factors.U
    omega = torch.zeros(WIDTH, dtype=torch.float64)
    rows = InMemory(V.float().double())
    materialise_(rows, U, omega, torch.float32)
    expected = V.float().double() @ U
    assert_exact(rows.tensor, expected, 1e-6)
