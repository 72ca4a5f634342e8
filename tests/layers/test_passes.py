"""The forward and the backward pass of the definition, called directly on a matrix in factors."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.layers.dense_problems import NUM_CLASSES, WIDTH, Problem, assert_exact
from zloss.layers.backend import Forward, Passed, Upstream
from zloss.layers.gradient_norm import norm_of
from zloss.layers.matrix import FactoredMatrix
from zloss.layers.storage import InMemory
from zloss.layers.supervisor import Conditioning, Health, Supervisor
from zloss.layers.torch_backend import TorchBackend
from zloss.layers.update import Factors
from zloss.precision import finest_dtype

IGNORED = -100


def backend_of(problem: Problem, dtype: torch.dtype) -> tuple[TorchBackend, FactoredMatrix]:
    """The definition on a matrix with V and products in a dtype, and factors in float64."""
    matrix = FactoredMatrix(InMemory(problem.V.to(dtype)), problem.factors, dtype)
    return TorchBackend(Supervisor(NUM_CLASSES), Conditioning(None), matrix), matrix


def targets_of(problem: Problem) -> Tensor:
    """The targets of the problem; of each row the second one is ignored."""
    target = problem.index.clone()
    target[:, 1] = IGNORED
    return target


def forward(problem: Problem, dtype: torch.dtype, h: Tensor | None = None) -> Forward:
    backend, matrix = backend_of(problem, dtype)
    h = problem.h.to(dtype) if h is None else h
    return backend.forward(matrix, h, targets_of(problem), IGNORED, has_backward=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_statistics_are_those_of_the_dense_matrix(dtype: torch.dtype) -> None:
    problem = Problem(5, WIDTH)
    passed = forward(problem, dtype)
    activations = problem.h @ problem.W.T
    expected = activations.gather(1, problem.index)
    expected[:, 1] = 0
    mean = activations.mean(1)
    scatter = (activations - mean[:, None]).square().sum(1)
    tolerance = 1e-9 if dtype == torch.float64 else 1e-5
    for found, right in ((passed.scores, expected), (passed.mean, mean), (passed.scatter, scatter)):
        assert found.dtype == dtype
        assert_exact(found.double(), right, tolerance)
    assert torch.equal(passed.valid, targets_of(problem) != IGNORED)
    assert (passed.saved.hg.dtype, passed.saved.hu.dtype) == (dtype, dtype)
    assert passed.saved.h.dtype == torch.float64


def test_a_report_of_nothing_is_sound() -> None:
    backend, _ = backend_of(Problem(5, WIDTH), torch.float32)
    assert backend.report.dtype == finest_dtype(backend.report.device)
    assert Health.read(backend.report, WIDTH) == Health(0, 0.0, 0.0, 0.0)


def test_the_batch_is_copied() -> None:
    """The caller may use its memory for the next batch before the step."""
    problem = Problem(5, WIDTH)
    h = problem.h.clone()
    saved = forward(problem, torch.float64, h).saved
    h.zero_()
    assert torch.equal(saved.h, problem.h)


def test_a_scatter_is_never_negative() -> None:
    """Rounding makes the Gram matrix of equal rows negative."""
    problem = Problem(5, WIDTH)
    gram = -1e-9 * torch.eye(WIDTH, dtype=torch.float64)
    problem.factors = problem.factors._replace(gram=gram)
    assert torch.equal(forward(problem, torch.float64).scatter, torch.zeros(5).double())


def test_activations_of_targets_are_added_up_in_the_finer_dtype() -> None:
    """In float32 the sum of these products would be 0."""
    V = torch.tensor([[2.0**30, 1.0, -(2.0**30)], [0.0, 0.0, 0.0]])
    identity = torch.eye(3, dtype=torch.float64)
    zero = torch.zeros(3, dtype=torch.float64)
    factors = Factors(identity, identity.clone(), zero, zero.clone(), torch.zeros_like(identity))
    matrix = FactoredMatrix(InMemory(V), factors, torch.float32)
    backend = TorchBackend(Supervisor(2), Conditioning(None), matrix)
    passed = backend.forward(
        matrix, torch.ones(1, 3), torch.tensor([0]), IGNORED, has_backward=False
    )
    assert passed.scores.item() == 1


def backward(
    problem: Problem, upstream: Upstream, *, is_refused: bool = False
) -> tuple[Tensor, Any]:
    backend, matrix = backend_of(problem, torch.float64)
    passed = backend.forward(matrix, problem.h, targets_of(problem), IGNORED, has_backward=True)
    saved = passed.saved._replace(refused=torch.tensor(is_refused))
    return backend.backward(matrix, Passed(saved, None, problem.h.shape, torch.float64), upstream)


def test_gradients_are_those_of_autograd() -> None:
    problem = Problem(5, WIDTH)
    h, W = problem.h.clone().requires_grad_(), problem.W.clone().requires_grad_()
    activations = h @ W.T
    mean = activations.mean(1)
    scatter = (activations - mean[:, None]).square().sum(1)
    valid = targets_of(problem) != IGNORED
    own = torch.where(valid, activations.gather(1, problem.index), 0)
    arriving = problem.target_grad + 1
    total = (own * arriving).sum() + (mean * problem.mean_grad).sum()
    (total + (scatter * problem.curvature).sum()).backward()
    upstream = Upstream(arriving, problem.mean_grad, problem.curvature)
    grad_h, record = backward(problem, upstream)
    assert h.grad is not None
    assert W.grad is not None
    assert_exact(grad_h, h.grad)
    norm = norm_of(record, problem.factors.wbar, NUM_CLASSES)
    assert_exact(norm, W.grad.norm())
    # A gradient that arrives at an ignored target goes nowhere.
    assert torch.equal(record.target_grad != 0, valid & (arriving != 0))


@pytest.mark.parametrize("missing", ["scores", "mean", "scatter"])
def test_a_missing_derivative_is_zero(missing: str) -> None:
    problem = Problem(5, WIDTH)
    upstream = Upstream(problem.target_grad, problem.mean_grad, problem.curvature)
    zeros = torch.zeros_like(getattr(upstream, missing))
    found, record = backward(problem, upstream._replace(**{missing: None}))
    expected, other = backward(problem, upstream._replace(**{missing: zeros}))
    assert torch.equal(found, expected)
    for name in ("curvature", "mean_grad", "target_grad", "target_rows"):
        assert torch.equal(getattr(record, name), getattr(other, name))


def test_layers_below_learn_nothing_from_a_refused_batch() -> None:
    problem = Problem(5, WIDTH)
    upstream = Upstream(problem.target_grad, problem.mean_grad, problem.curvature)
    grad_h, _ = backward(problem, upstream, is_refused=True)
    assert torch.equal(grad_h, torch.zeros_like(problem.h))


def test_the_gradient_has_the_dtype_of_the_batch() -> None:
    problem = Problem(5, WIDTH)
    backend, matrix = backend_of(problem, torch.float32)
    passed = backend.forward(
        matrix, problem.h.half(), targets_of(problem), IGNORED, has_backward=True
    )
    upstream = Upstream(problem.target_grad, problem.mean_grad, problem.curvature)
    arguments = Passed(passed.saved, None, problem.h.shape, torch.float16)
    grad_h, _ = backend.backward(matrix, arguments, upstream)
    assert grad_h.dtype == torch.float16
