"""Products of the forward pass whose terms cancel: they are taken anew in the dtype of the state."""

import pytest
import torch

from tests.layers.dense_problems import Problem
from tests.layers.test_passes import IGNORED, backend_of
from zloss.layers.torch_backend import _sharpen_cancelled


def test_statistics_keep_their_digits_where_products_cancel() -> None:
    """The columns of W are nearly equal, so a batch whose rows add up to 0 has a small scatter."""
    problem = Problem(3, 4)
    V = problem.V[:, :1] + 1e-3 * problem.V
    U = torch.eye(4, dtype=torch.float64)
    zero = torch.zeros(4, dtype=torch.float64)
    gram = (V - V.mean(0)).T @ (V - V.mean(0))
    problem.V = V.float().double()
    problem.factors = type(problem.factors)(U, U.clone(), zero, V.mean(0), gram)
    h = torch.tensor([[1.0, -1.0, 1.0, -1.0], [1.0, 1.0, 1.0, 1.0], [3.0, -1.0, -1.0, -1.0]])
    backend, matrix = backend_of(problem, torch.float32)
    target = torch.zeros(3, dtype=torch.long)
    passed = backend.forward(matrix, h, target, IGNORED, has_backward=True)
    exact = h.double() @ gram
    scatter = (h.double() * exact).sum(1)
    # Float32 products would have errors of 1e-7 x |h|^2 |gram|, which is a tenth of the scatter.
    # Each product is rounded to float32 once more, beside terms a thousand times as large as the sum.
    torch.testing.assert_close(passed.scatter.double(), scatter, rtol=1e-4, atol=0)
    torch.testing.assert_close(passed.saved.hg[[0, 2]], exact[[0, 2]].float(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("width", [4, 9])
def test_only_rows_that_cancel_are_taken_anew(width: int) -> None:
    """The limit: sqrt(H) times the scatter is less than half of the sum of its terms."""
    h = torch.zeros(6, width, dtype=torch.float64)
    h[:, 0] = torch.tensor([1.0, 1.0, 1.0, 1.0, 2.0, 2.0])
    gram = torch.eye(width, dtype=torch.float64)
    edge = 1 / (2 * width**0.5)
    hg = torch.zeros(6, width, dtype=torch.float32)
    hg[:, 0] = torch.tensor([edge * 1.001, edge * 0.999, 0.0, -1.0, 2.0, 2 * edge * 0.999])
    before = hg.clone()
    _sharpen_cancelled(hg, h, gram)
    assert torch.equal(hg[[0, 4]], before[[0, 4]])
    assert torch.equal(hg[[1, 2, 3, 5]], h[[1, 2, 3, 5]].float())
