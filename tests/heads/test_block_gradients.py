"""The row-sparse gradient of `block_linear`: its rows, its memory, and steps of the optimizers of torch."""

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from tests.heads.block_problems import SHAPES, Problem, problem
from zloss.heads.block_linear import block_linear
from zloss.heads.blocks import RowBlocks

# Sums of at most some hundred products of size one, in float64.
assert_close = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)


@pytest.fixture(params=SHAPES)
def shape(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def squares(scores: Tensor) -> Tensor:
    return torch.where(scores.isfinite(), scores, 0).square().sum()


def backward(p: Problem) -> None:
    squares(p.scores("auto")).backward()


def assert_honestly_coalesced(grad: Tensor | None) -> None:
    assert grad is not None
    assert grad.is_sparse
    assert grad.is_coalesced()
    assert grad.sparse_dim() == 1
    assert (grad.indices()[0].diff() > 0).all(), "ascending, and so unique"


def test_gradients_are_coalesced(shape: str, device: torch.device) -> None:
    p = problem(*SHAPES[shape], device=device)
    assert p.bias is not None
    backward(p)
    for parameter in (p.weight, p.bias):
        assert_honestly_coalesced(parameter.grad)
        assert parameter.grad is not None
        assert parameter.grad.dense_dim() == parameter.dim() - 1
    assert p.weight.grad is not None
    assert p.weight.grad._nnz() <= p.blocks.most_rows(len(p.block))


def test_the_gradient_has_the_rows_of_the_blocks_and_no_others() -> None:
    p = problem([3, 1, 2], [2, 0, 2], 4)
    backward(p)
    assert p.weight.grad is not None
    assert p.weight.grad.indices().tolist() == [[0, 1, 2, 4, 5]]


def test_gradients_add_up(device: torch.device) -> None:
    """Gradients add up over two passes and over two uses in one pass. The sum must not keep the mark of the first."""
    p = problem(*SHAPES["ragged"], device=device)
    twice, at_once = copy.deepcopy(p), copy.deepcopy(p)
    backward(p)
    backward(twice)
    backward(twice)
    (squares(at_once.scores("auto")) + squares(at_once.scores("auto"))).backward()
    for x, y, z in zip(p.inputs, twice.inputs, at_once.inputs, strict=True):
        grads = [parameter.grad.to_dense() for parameter in (x, y, z) if parameter.grad is not None]
        assert_close(grads[1], 2 * grads[0])
        assert_close(grads[2], 2 * grads[0])


def sgd(parameters: list[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def adagrad(parameters: list[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(parameters, lr=0.1)


@pytest.mark.parametrize("optimizer", [sgd, adagrad])
def test_optimizers_step_as_on_the_dense_gradient(
    optimizer: Callable[[list[Tensor]], torch.optim.Optimizer], device: torch.device
) -> None:
    p = problem(*SHAPES["ragged"], device=device)
    twin = copy.deepcopy(p)
    step, twin_step = optimizer(p.inputs), optimizer(twin.inputs)
    for _ in range(3):
        backward(p)
        squares(twin.definition()).backward()
        step.step()
        twin_step.step()
        step.zero_grad()
        twin_step.zero_grad()
        for x, y in zip(p.inputs, twin.inputs, strict=True):
            assert_close(x, y)


def test_sparse_adam_moves_only_the_rows_that_took_part(device: torch.device) -> None:
    p = problem([3, 2, 4, 2], [1, 1], 4, device=device)
    optimizer = torch.optim.SparseAdam([p.weight], lr=0.1)
    p.scores("auto", exact_rows=True)[:, :2].square().sum().backward()
    before = p.weight.detach().clone()
    optimizer.step()
    assert (p.weight != before).any(1).nonzero().flatten().tolist() == [3, 4]


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")
def test_memory_is_that_of_the_rows_that_took_part() -> None:
    """Neither the forward nor the backward pass makes a tensor as large as the weights."""
    rows, width = 100_000, 64
    weight = torch.randn(rows, width, requires_grad=True)
    blocks = RowBlocks([100] * (rows // 100))
    h, block = torch.randn(10, width, requires_grad=True), torch.randint(blocks.num_blocks, (10,))
    with torch.profiler.profile(profile_memory=True) as profile:
        block_linear(h, weight, None, block, blocks).logsumexp(1).sum().backward()
    largest_bytes = max(event.self_cpu_memory_usage for event in profile.key_averages())
    assert 10 * 100 * width * 4 <= largest_bytes <= 3 * 10 * 100 * width * 4


def test_memory_on_a_gpu(cuda: torch.device) -> None:
    rows, width = 1_000_000, 64
    weight = torch.randn(rows, width, requires_grad=True, device=cuda)
    blocks = RowBlocks([1000] * 1000, device=cuda)
    h, block = (
        torch.randn(10, width, device=cuda, requires_grad=True),
        torch.randint(1000, (10,), device=cuda),
    )
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    block_linear(h, weight, None, block, blocks).logsumexp(1).sum().backward()
    torch.optim.SGD([weight], lr=0.1).step()
    assert torch.cuda.max_memory_allocated() - before <= 1.5 * 10 * 1000 * width * 4 + 2**20
