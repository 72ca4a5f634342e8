"""The Triton kernels of `block_linear` against its definition in float64, also at the edges of tiles.

On a machine without a GPU they run in Triton's interpreter.
"""

from types import ModuleType

import pytest
import torch
from torch import Tensor

from tests.gpu import no_synchronisation
from tests.heads.block_problems import SHAPES, Problem, leaf, problem
from zloss import kernels
from zloss.heads.block_linear import block_linear
from zloss.heads.blocks import RowBlocks

if not kernels.available():
    pytest.skip("triton is not installed", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("poisoned")

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture
def device(kernel_device: torch.device) -> torch.device:
    return kernel_device


@pytest.fixture
def plans() -> ModuleType:
    return kernels.load("block_plan")


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose tiles so small that a small problem has many edges."""
    products, row_gradient = kernels.load("block_linear"), kernels.load("block_row_gradient")
    tile = kernels.load("tiles").Tile(elements=64, columns=8, warps=1)
    for module, name in ((products, "SCORES"), (products, "GRAD_H"), (row_gradient, "GRAD_ROWS")):
        monkeypatch.setattr(module, name, tile)
    monkeypatch.setattr(products, "SCORES_AT_ONCE", 2)
    monkeypatch.setattr(row_gradient, "FILL_ROWS", 4)


def everything(p: Problem, scores: Tensor, upstream: Tensor) -> list[Tensor]:
    """Return the scores and all gradients in float64."""
    grads = p.gradients(scores, upstream.to(scores.dtype))
    return [x.detach().double() for x in (scores, *grads)]


def error(got: Tensor, expected: Tensor) -> float:
    """Return the largest error relative to the largest entry. Infinities must be equal."""
    finite = expected.isfinite()
    assert torch.equal(got.isfinite(), finite)
    assert torch.equal(got[~finite], expected[~finite])
    if not finite.any():
        return 0.0
    return float(
        (got[finite] - expected[finite]).abs().max() / expected[finite].abs().max().clamp_min(1e-30)
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_no_less_exact_than_plain_pytorch(
    shape: str, dtype: torch.dtype, device: torch.device
) -> None:
    assert_exact(shape, dtype, device)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("shape", SHAPES)
def test_in_small_tiles(shape: str, device: torch.device) -> None:
    assert_exact(shape, torch.float32, device)


@pytest.mark.parametrize("shape", SHAPES)
def test_with_a_plan_by_sorting(
    shape: str, device: torch.device, plans: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "PLAN_BY_PAIRS", 0)
    assert_exact(shape, torch.float32, device)


def assert_exact(shape: str, dtype: torch.dtype, device: torch.device) -> None:
    p = problem(*SHAPES[shape], device=device).to(dtype)
    upstream = torch.randn(len(p.block), p.blocks.largest, dtype=torch.float64, device=device).to(
        dtype
    )
    exact = p.to(torch.float64)
    expected = everything(exact, exact.definition(), upstream)
    plain = everything(p, p.definition(), upstream)
    got = everything(p, p.scores("triton"), upstream)
    for x, y, z in zip(got, plain, expected, strict=True):
        # Sums of up to some hundred products in another order: a few units of the last place of the largest entry.
        assert error(x, z) <= error(y, z) + 8 * torch.finfo(dtype).eps


@pytest.mark.parametrize("h_dtype", DTYPES)
@pytest.mark.parametrize("weight_dtype", DTYPES)
def test_dtypes_mix(h_dtype: torch.dtype, weight_dtype: torch.dtype, device: torch.device) -> None:
    p = problem(*SHAPES["ragged"], device=device)
    assert p.bias is not None
    h, weight, bias = (
        leaf(p.h.to(h_dtype)),
        leaf(p.weight.to(weight_dtype)),
        leaf(p.bias.to(weight_dtype)),
    )
    mixed = Problem(h, weight, bias, p.block, p.blocks)
    upstream = torch.randn(p.scores("torch").shape, dtype=torch.float64, device=device)
    for got, plain in zip(
        everything(mixed, mixed.scores("triton"), upstream),
        everything(mixed, mixed.scores("torch"), upstream),
        strict=True,
    ):
        # Both round their results to the coarser dtype, and may round differently.
        assert error(got, plain) <= 4 * max(torch.finfo(h_dtype).eps, torch.finfo(weight_dtype).eps)


def test_without_bias(device: torch.device) -> None:
    p = problem(*SHAPES["ragged"], bias=False, device=device)
    upstream = torch.randn(p.scores("torch").shape, dtype=torch.float64, device=device)
    expected = everything(p, p.definition(), upstream)
    for got, wanted in zip(everything(p, p.scores("triton"), upstream), expected, strict=True):
        assert error(got, wanted) <= 1e-14


def test_padding_may_come_back_as_nan(device: torch.device) -> None:
    p = problem(*SHAPES["ragged"], device=device)
    upstream = torch.randn(p.scores("torch").shape, dtype=torch.float64, device=device)
    poisoned = torch.where(p.definition().isfinite(), upstream, torch.nan)
    expected = everything(p, p.definition(), upstream)
    for got, wanted in zip(everything(p, p.scores("triton"), poisoned), expected, strict=True):
        assert error(got, wanted) <= 1e-14


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (1, 2)])
def test_each_gradient_alone(wanted: tuple[int, ...], device: torch.device) -> None:
    p = problem(*SHAPES["ragged"], device=device)
    upstream = torch.randn(p.scores("torch").shape, dtype=torch.float64, device=device)
    expected = p.gradients(p.definition(), upstream)
    for index, x in enumerate(p.inputs):
        x.requires_grad_(index in wanted)
    p.scores("triton").backward(upstream)
    for index, x in enumerate(p.inputs):
        assert (x.grad is not None) == (index in wanted)
        if x.grad is not None:
            assert error(x.grad.to_dense(), expected[index]) <= 1e-14


def test_strided_input(device: torch.device) -> None:
    p = problem(*SHAPES["ragged"], device=device)
    wide = torch.randn(len(p.weight), 20, dtype=torch.float64, device=device)
    weight = wide[:, :13].detach().requires_grad_()
    strided = Problem(leaf(p.h.T.contiguous()).T, weight, p.bias, p.block, p.blocks)
    upstream = torch.randn(p.blocks.largest, len(p.block), dtype=torch.float64, device=device).T
    expected = everything(strided, strided.definition(), upstream)
    for got, wanted in zip(
        everything(strided, strided.scores("triton"), upstream), expected, strict=True
    ):
        assert error(got, wanted) <= 1e-14


def test_rows_of_weight_must_be_contiguous(device: torch.device) -> None:
    p = problem(*SHAPES["ragged"], device=device)
    with pytest.raises(ValueError, match="rows of weight must be contiguous"):
        block_linear(
            p.h, p.weight.T.contiguous().T, None, p.block, p.blocks, implementation="triton"
        )


# ---- the plan --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num", [1, 2, 31, 32, 33, 200])
@pytest.mark.parametrize("most", [1, 5, 300])
def test_pairs_and_sorting_lead_to_one_plan(
    num: int, most: int, plans: ModuleType, device: torch.device
) -> None:
    blocks = RowBlocks(torch.randint(1, 9, (most,)).tolist(), device=device)
    block = torch.randint(most, (num,), device=device)
    for num_rows in (0, blocks.most_rows(num), blocks.num_rows):
        expected = plans._plan_by_sorting(block, blocks.offsets, num_rows)
        assert torch.equal(plans.plan(block, blocks.offsets, num_rows), expected)


# ---- rows of the gradient --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exact_rows", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_of_the_gradient(shape: str, exact_rows: bool, device: torch.device) -> None:
    p = problem(*SHAPES[shape], device=device)
    p.scores("triton", exact_rows=exact_rows).backward(
        torch.ones(len(p.block), p.blocks.largest, device=device)
    )
    present = p.block.unique()
    block_of_row = torch.arange(p.blocks.num_blocks, device=device).repeat_interleave(
        p.blocks.sizes
    )
    for parameter in (p.weight, p.bias):
        assert parameter is not None
        assert parameter.grad is not None
        assert parameter.grad.is_coalesced()
        rows = parameter.grad.indices()[0]
        assert (rows.diff() > 0).all(), "ascending, and so unique"
        taking_part = torch.isin(block_of_row[rows], present)
        assert int(taking_part.sum()) == int(p.blocks.sizes[present].sum()), "whole blocks"
        assert not parameter.grad.values()[~taking_part].any(), "the others are zero"
        assert len(rows) == (taking_part.sum() if exact_rows else p.blocks.most_rows(len(p.block)))


# ---- on a GPU --------------------------------------------------------------------------------------------------------


def test_the_host_never_waits(cuda: torch.device) -> None:
    p = problem([20] * 29 + [3], [0] * 50, 64, dtype=torch.float32, device=cuda)
    optimizer = torch.optim.SGD(p.inputs[1:], lr=0.1)

    def train() -> None:
        torch.logsumexp(p.scores("triton"), 1).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    train()
    with no_synchronisation():
        train()


def test_a_graph_can_hold_it(cuda: torch.device) -> None:
    blocks = RowBlocks([20] * 29 + [3], device=cuda)
    p = problem([20] * 29 + [3], [0] * 50, 64, dtype=torch.float32, device=cuda)
    optimizer = torch.optim.SGD(p.inputs[1:], lr=0.1)

    def train() -> None:
        optimizer.zero_grad()
        torch.logsumexp(p.scores("triton"), 1).sum().backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        train()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        train()
    twin = p.to(torch.float64)
    reference = torch.optim.SGD(twin.inputs[1:], lr=0.1)
    for _ in range(3):
        p.block.copy_(torch.randint(blocks.num_blocks, (50,), device=cuda))
        graph.replay()
        reference.zero_grad()
        torch.logsumexp(twin.definition(), 1).sum().backward()
        reference.step()
        for x, y in zip(p.inputs[1:], twin.inputs[1:], strict=True):
            torch.testing.assert_close(x.double(), y, rtol=1e-5, atol=1e-5)


def test_more_numbers_than_32_bits_can_count(cuda: torch.device) -> None:
    """The test uses the last rows of a weight matrix of 2^31 + 2^20 numbers."""
    width, size = 1024, 1024
    blocks = RowBlocks([size] * (2**11 + 1), device=cuda)
    weight = torch.zeros(blocks.num_rows, width, dtype=torch.bfloat16, device=cuda).requires_grad_()
    h = torch.randn(3, width, device=cuda)
    last = blocks.num_blocks - 1
    with torch.no_grad():
        weight[-size:] = torch.randn(size, width, device=cuda)
    block = torch.tensor([last, 0, last], device=cuda)
    scores = block_linear(h, weight, None, block, blocks)
    torch.testing.assert_close(
        scores[[0, 2]], h[[0, 2]] @ weight[-size:].float().T, rtol=1e-4, atol=1e-3
    )
    scores.sum().backward()
    assert weight.grad is not None
    assert weight.grad.values()[-size:].any(1).all()
