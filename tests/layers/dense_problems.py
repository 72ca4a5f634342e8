"""Random factors and a random record of a gradient, with the dense matrices that they stand for, in float64."""

import torch
from torch import Tensor

from zloss.layers.gradient import RecordedGradient
from zloss.layers.matrix import FactoredMatrix
from zloss.layers.storage import InMemory
from zloss.layers.update import Factors

NUM_CLASSES = 11
WIDTH = 4
PARTS = ("U", "U_inv", "omega", "wbar", "gram")  # of the factors


class Problem:
    """A matrix in factors, a record of a gradient, and the same two as dense matrices.

    Args:
        batch: B.
        width: H.
        below: the number of rows below the batch, which have gradients of looked-up rows of W.
        targets: K.
    """

    def __init__(
        self, batch: int, width: int, below: int = 0, *, targets: int = 3, seed: int = 0
    ) -> None:
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        self.V, U, omega = draw(NUM_CLASSES, width), draw(width, width), draw(width)
        self.W = self.V @ U + omega
        wbar = self.W.mean(0)
        gram = (self.W - wbar).T @ (self.W - wbar)
        self.factors = Factors(U, torch.linalg.inv(U), omega, wbar, gram)
        self.h, self.curvature, self.mean_grad = (
            draw(batch + below, width),
            draw(batch),
            draw(batch),
        )
        # Few classes, so that targets repeat, in a row and between rows. A zero is an ignored target.
        self.index = torch.randint(4, (batch + below, targets), generator=generator)
        self.target_grad = draw(batch + below, targets) * (draw(batch + below, targets) > -1)
        rows = (self.target_grad[..., None] * self.W[self.index]).sum(1)
        self.record = RecordedGradient(
            h=self.h,
            hg=self.batch @ gram,
            hu=self.batch @ U.T,
            mean=self.batch @ wbar,
            curvature=self.curvature,
            mean_grad=self.mean_grad,
            index=self.index,
            target_grad=self.target_grad,
            target_rows=rows,
        )

    @property
    def batch(self) -> Tensor:  # (B, H)
        return self.h[: len(self.curvature)]

    @property
    def Y(self) -> Tensor:  # (M, C)
        scattered = torch.zeros(len(self.h), NUM_CLASSES, dtype=torch.float64)
        return scattered.scatter_add_(1, self.index, self.target_grad)

    @property
    def K1(self) -> Tensor:
        return self.batch.T @ torch.diag(self.curvature) @ self.batch

    @property
    def gradient(self) -> Tensor:  # (C, H)
        """The definition: `W K1 + 1 (H^T g_s)^T + Y^T H`, of which the last product has all rows."""
        sum_grad = self.mean_grad - self.curvature * (self.batch @ self.factors.wbar)
        return self.W @ self.K1 + self.batch.T @ sum_grad + self.Y.T @ self.h


def assert_exact(found: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    """Compare two tensors; by default, with the error of sums of some tens of products in float64."""
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def matrix_of(problem: Problem, dtype: torch.dtype = torch.float64) -> FactoredMatrix:
    """The matrix of a problem, in memory of its own."""
    copies = type(problem.factors)(*(factor.clone() for factor in problem.factors))
    return FactoredMatrix(InMemory(problem.V.clone()), copies, dtype)


def plain_matrix() -> FactoredMatrix:
    """A matrix of which V alone is W."""
    matrix = matrix_of(Problem(3, WIDTH))
    matrix.refactor_()
    return matrix
