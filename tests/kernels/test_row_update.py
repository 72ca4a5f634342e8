"""The addition to rows of a matrix, compared with `index_add_`, and the optimizer that uses it."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

import zloss
from tests.gpu import no_synchronisation
from zloss import kernels

pytestmark = pytest.mark.skipif(not kernels.available(), reason="triton is not installed")

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("rows", "width"), [(8, 512), (13, 512), (1, 1), (9, 33), (0, 7), (5, 700)]
)
def test_rows_are_added_where_they_belong(
    rows: int, width: int, dtype: torch.dtype, kernel_device: torch.device
) -> None:
    matrix = torch.randn(40, width, device=kernel_device).to(dtype)
    place = torch.randperm(40, device=kernel_device)[:rows]
    values = torch.randn(rows, width, device=kernel_device).to(dtype)
    expected = matrix.double().index_add(0, place, values.double(), alpha=-0.25)
    kernels.load("row_update").add_rows_(matrix, place, values, -0.25)
    # A product with a power of two is exact. So the sum is rounded once, and again to a shorter format. A GPU rounds
    # by half a unit. Triton's interpreter cuts off digits instead, up to a unit.
    tolerance = torch.finfo(dtype).eps + torch.finfo(torch.float32).eps
    assert ((matrix.double() - expected).abs() <= tolerance * expected.abs()).all()


@pytest.mark.parametrize(("rows", "width"), [(64, 8), (13, 512), (1, 1), (9, 33), (0, 7), (5, 700)])
def test_repeated_rows_add_up(rows: int, width: int, kernel_device: torch.device) -> None:
    matrix = torch.randn(6, width, device=kernel_device)
    place = torch.randint(3, (2 * rows,), device=kernel_device)[::2]  # not contiguous
    values = torch.randn(rows, width, device=kernel_device)
    expected = matrix.double().index_add(0, place, values.double(), alpha=-0.25)
    sizes = matrix.double().abs().index_add(0, place, values.double().abs(), alpha=0.25)
    untouched = matrix[3:].clone()
    kernels.load("row_update").add_rows_(matrix, place, values, -0.25, repeated=True)
    # The products are exact. A sum of 1 + n numbers takes n additions. Each of them rounds a number by half a unit, or
    # cuts off up to a unit. Up to earlier roundings, this number is no larger than the sum of all sizes.
    tolerance = 1.01 * rows * torch.finfo(torch.float32).eps
    assert ((matrix.double() - expected).abs() <= tolerance * sizes).all()
    assert torch.equal(matrix[3:], untouched)


def test_repeated_rows_are_for_float32(kernel_device: torch.device) -> None:
    matrix = torch.zeros(4, 8, dtype=torch.bfloat16, device=kernel_device)
    with pytest.raises(ValueError, match=r"added to a float32 matrix only, got torch\.bfloat16"):
        kernels.load("row_update").add_rows_(
            matrix, torch.tensor([0]), matrix[:1], 1.0, repeated=True
        )


def test_rows_of_a_view_are_refused(kernel_device: torch.device) -> None:
    matrix = torch.zeros(4, 8, device=kernel_device)[:, :4]
    with pytest.raises(ValueError, match="must be contiguous"):
        kernels.load("row_update").add_rows_(matrix, torch.tensor([0]), torch.ones(1, 4), 1.0)


@pytest.mark.parametrize("coalesced", [True, False])
def test_the_optimizer_takes_the_steps_of_torch(coalesced: bool, device: torch.device) -> None:
    start = torch.randn(10, 3, dtype=torch.float64, device=device)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    dense = nn.Parameter(torch.ones(2, device=device))
    optimizer, expected = zloss.RowSGD([ours, dense], lr=0.5), torch.optim.SGD([theirs], lr=0.5)
    index = torch.tensor([[1, 4, 7]] if coalesced else [[4, 4, 1]], device=device)
    for _ in range(3):
        values = torch.randn(3, 3, dtype=torch.float64, device=device)
        for parameter in (ours, theirs):
            parameter.grad = torch.sparse_coo_tensor(
                index, values, (10, 3), is_coalesced=coalesced, check_invariants=False
            )
        dense.grad = torch.ones_like(dense)
        optimizer.step()
        expected.step()
    assert torch.allclose(ours, theirs, rtol=1e-15, atol=1e-15)
    assert dense.tolist() == [-0.5, -0.5]


@pytest.mark.parametrize("deterministic", [False, True])
def test_words_that_are_repeated_add_up_on_a_gpu(deterministic: bool, cuda: torch.device) -> None:
    words = torch.tensor([[1, 4, 4], [4, 0, 1]], device=cuda)
    embedding = nn.Embedding(6, 5, sparse=True, device=cuda)
    start, change = embedding.weight.detach().clone(), torch.randn(2, 3, 5, device=cuda)
    optimizer = zloss.RowSGD(embedding.parameters(), lr=0.5)
    kernels.load("row_update").add_rows_(
        start.clone(), words[0], change[0], 0.0, repeated=True
    )  # compiles it
    torch.use_deterministic_algorithms(deterministic)
    try:
        with nullcontext() if deterministic else no_synchronisation():
            embedding(words).backward(change)
            optimizer.step()
    finally:
        torch.use_deterministic_algorithms(False)
    expected = start.index_add(0, words.flatten(), change.flatten(0, 1), alpha=-0.5)
    torch.testing.assert_close(embedding.weight.detach(), expected)


def test_the_optimizer_is_one_of_torch(device: torch.device) -> None:
    parameter = nn.Parameter(torch.ones(2, device=device))
    optimizer = zloss.RowSGD([{"params": [parameter], "lr": 0.25}], lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    assert optimizer.step(lambda: _backward(parameter)) == 2.0
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.125
    assert parameter.tolist() == [0.75, 0.75]
    optimizer.load_state_dict(optimizer.state_dict())
    with pytest.raises(ValueError, match="lr must be a finite number >= 0, got -1"):
        zloss.RowSGD([parameter], lr=-1)


def _backward(parameter: nn.Parameter) -> float:
    loss = parameter.sum()
    loss.backward()
    return loss.item()
