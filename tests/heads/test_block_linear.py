"""`block_linear` and its blocks of rows, against the slow code that defines it in float64, and bad input."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.heads.block_problems import SHAPES, Problem, problem
from zloss import kernels
from zloss.heads.block_linear import block_linear
from zloss.heads.blocks import RowBlocks

# Sums of at most some hundred products of size one, in float64.
assert_close = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)


@pytest.fixture(params=SHAPES)
def shape(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def assert_equals_definition(p: Problem, implementation: str = "torch") -> None:
    scores, expected = p.scores(implementation), p.definition()
    assert_close(scores, expected)
    upstream = torch.randn_like(expected)
    grads, expected_grads = p.gradients(scores, upstream), p.gradients(expected, upstream)
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        assert_close(grad, expected_grad)


@pytest.mark.parametrize("bias", [True, False])
def test_it_is_what_the_slow_code_says(shape: str, bias: bool, device: torch.device) -> None:
    assert_equals_definition(problem(*SHAPES[shape], bias=bias, device=device))


@given(st.data())
def test_any_blocks(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    block = data.draw(st.lists(st.integers(0, len(sizes) - 1), max_size=8))
    assert_equals_definition(
        problem(sizes, block, data.draw(st.integers(1, 5)), bias=data.draw(st.booleans()))
    )


@pytest.mark.parametrize("bias", [True, False])
def test_numerical_derivatives(bias: bool) -> None:
    p = problem([3, 1, 4], [2, 0, 2, 1], 3, bias=bias)
    finite = p.definition().isfinite()

    def scores(h: Tensor, *weights: Tensor) -> Tensor:
        # gradcheck compares dense gradients.
        weight, *rest = map(with_dense_gradient, weights)
        return block_linear(h, weight, rest[0] if rest else None, p.block, p.blocks)[finite]

    assert torch.autograd.gradcheck(scores, p.inputs)


class _DenseGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        return grad.to_dense()


def with_dense_gradient(x: Tensor) -> Tensor:
    y: Tensor = _DenseGradient.apply(x)  # type: ignore[no-untyped-call]
    return y


def test_what_comes_back_for_padding_is_ignored(device: torch.device) -> None:
    p = problem(*SHAPES["ragged"], device=device)
    scores, expected = p.scores("auto"), p.definition()
    upstream = torch.randn_like(expected)
    poisoned = torch.where(expected.isfinite(), upstream, torch.nan)
    for grad, expected_grad in zip(
        p.gradients(scores, poisoned), p.gradients(expected, upstream), strict=True
    ):
        assert_close(grad, expected_grad)


def test_softmax_over_blocks_of_different_sizes_has_finite_gradients(device: torch.device) -> None:
    p = problem(*SHAPES["ragged"], device=device)
    loss = torch.nn.functional.cross_entropy(p.scores("auto"), torch.zeros_like(p.block))
    assert all(grad.isfinite().all() for grad in p.gradients(loss, torch.ones_like(loss)))


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_each_gradient_alone(wanted: tuple[int, ...], device: torch.device) -> None:
    p = problem(*SHAPES["ragged"], device=device)
    expected = p.gradients(
        p.definition().clamp_min(-1e9), torch.ones(7, 30, dtype=torch.float64, device=device)
    )
    for index, x in enumerate(p.inputs):
        x.requires_grad_(index in wanted)
    p.scores("auto").backward(torch.ones(7, 30, dtype=torch.float64, device=device))
    for index, x in enumerate(p.inputs):
        assert (x.grad is not None) == (index in wanted)
        if x.grad is not None:
            assert_close(x.grad.to_dense(), expected[index])


def test_gradients_of_an_expanded_upstream(device: torch.device) -> None:
    p = problem(*SHAPES["aligned"], device=device)
    scores, expected = p.scores("auto"), p.definition()
    one = torch.ones((), dtype=torch.float64, device=device).expand_as(scores)
    for grad, expected_grad in zip(
        p.gradients(scores, one), p.gradients(expected, one), strict=True
    ):
        assert_close(grad, expected_grad)


# ---- dtypes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("h_dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("weight_dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_dtypes_mix(h_dtype: torch.dtype, weight_dtype: torch.dtype, device: torch.device) -> None:
    p = problem(*SHAPES["ragged"], device=device)
    h, weight, bias = (x.detach() for x in p.inputs)
    h, weight, bias = h.to(h_dtype), weight.to(weight_dtype), bias.to(weight_dtype)
    for x in (h, weight, bias):
        x.requires_grad_()
    scores = block_linear(h, weight, bias, p.block, p.blocks)
    assert scores.dtype == torch.promote_types(h_dtype, weight_dtype)
    scores.backward(torch.ones_like(scores))
    assert h.grad is not None
    assert weight.grad is not None
    assert bias.grad is not None
    assert (h.grad.dtype, weight.grad.dtype, bias.grad.dtype) == (
        h_dtype,
        weight_dtype,
        weight_dtype,
    )
    # Inputs rounded to the coarsest dtype, 8 bits: sums of 13 products of size one.
    torch.testing.assert_close(scores.double(), p.definition(), rtol=0.1, atol=0.15)


def test_autocast_changes_nothing(device: torch.device) -> None:
    p = problem(*SHAPES["ragged"], device=device).to(torch.float32)
    plain = p.scores("auto")
    upstream = torch.randn_like(plain)
    expected = p.gradients(plain, upstream)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        scores = p.scores("auto")
        grads = p.gradients(scores, upstream)
    assert torch.equal(scores, plain)
    assert all(map(torch.equal, grads, expected))


# ---- arguments -------------------------------------------------------------------------------------------------------


def test_row_blocks() -> None:
    blocks = RowBlocks([3, 1, 2])
    assert [blocks.most_rows(n) for n in range(5)] == [0, 3, 5, 6, 6]
    assert blocks.sizes.tolist() == [3, 1, 2]
    assert list(blocks.state_dict()) == ["offsets"]
    assert "6 rows in 3 blocks of at most 3" in repr(blocks)


@pytest.mark.parametrize("sizes", [[], [3, 0], [-1]])
def test_blocks_need_rows(sizes: list[int]) -> None:
    with pytest.raises(ValueError, match="at least one row"):
        RowBlocks(sizes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"h": torch.zeros(2, 5)}, r"h must have shape \(N, 4\), got \(2, 5\)"),
        ({"h": torch.zeros(2, 4, dtype=torch.long)}, "floating-point"),
        ({"weight": torch.zeros(7, 4)}, r"weight must have shape \(6, H\), got \(7, 4\)"),
        ({"bias": torch.zeros(5)}, r"bias must have shape \(6,\), got \(5,\)"),
        ({"block": torch.zeros(3, dtype=torch.long)}, r"block must be int64 of shape \(2,\)"),
        ({"block": torch.zeros(2)}, "got torch.float32"),
        ({"block": torch.tensor([0, 3])}, r"block must lie in \[0, 3\), got values from 0 to 3"),
        ({"block": torch.tensor([-1, 0])}, "got values from -1 to 0"),
        ({"weight": torch.zeros(6, 4, device="meta")}, "one device, got cpu, meta"),
        (
            {"implementation": "cuda"},
            "implementation must be one of auto, torch, triton, got 'cuda'",
        ),
    ],
)
def test_bad_input(change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {
        "h": torch.zeros(2, 4),
        "weight": torch.zeros(6, 4),
        "bias": None,
        "block": torch.tensor([0, 2]),
        "blocks": RowBlocks([3, 1, 2]),
    }
    with pytest.raises(ValueError, match=message):
        block_linear(**(arguments | change))  # type: ignore[arg-type]


def test_without_triton(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    monkeypatch.setattr(kernels, "available", lambda: False)
    kernels.load.cache_clear()
    p = problem(*SHAPES["ragged"], device=device)
    assert_equals_definition(p, "auto")
    with pytest.raises(ImportError, match=r'pip install triton.*implementation="torch"'):
        p.scores("triton")
