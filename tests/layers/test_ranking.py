"""Scores, top-k and ranks over all classes against sorting the dense logits."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import zloss
from zloss.precision import tf32_parts

Layer = zloss.FactoredLinear | zloss.DenseLinear


def make_layer(kind: type[Layer], device: torch.device, bias: bool = True) -> Layer:
    linear = nn.Linear(6, 101, bias=bias, dtype=torch.float64, device=device)
    layer = kind.from_linear(linear)
    if isinstance(layer, zloss.FactoredLinear):
        layer.synchronous = True
        for _ in range(5):
            h = torch.randn(9, 6, dtype=torch.float64, device=device)
            zloss.ZLoss(a=0.2, b=8.0)(layer(h, torch.randint(101, (9,), device=device))).backward()
            layer.step_(20.0)
    return layer


KINDS = pytest.mark.parametrize("kind", [zloss.FactoredLinear, zloss.DenseLinear])


@KINDS
@pytest.mark.parametrize("block_size", [None, 1, 7, 101, 1000])
@pytest.mark.parametrize("k", [1, 10, 101])
def test_topk_is_that_of_the_logits(
    kind: type[Layer], block_size: int | None, k: int, device: torch.device
) -> None:
    layer = make_layer(kind, device)
    h = torch.randn(13, 6, dtype=torch.float64, device=device)
    values, classes = layer.topk(h, k, block_size=block_size)
    expected = layer.to_linear()(h).topk(k)
    assert torch.equal(classes, expected.indices)
    assert torch.allclose(values, expected.values, atol=1e-12)


@KINDS
@pytest.mark.parametrize("block_size", [None, 1, 7, 101])
@pytest.mark.parametrize("targets", [1, 3, 60])
def test_rank_counts_strictly_higher_scores(
    kind: type[Layer], block_size: int | None, targets: int, device: torch.device
) -> None:
    layer = make_layer(kind, device)
    h = torch.randn(13, 6, dtype=torch.float64, device=device)
    target = torch.randint(101, (13, targets), device=device)
    target[3, 0] = -100
    logits = layer.logits(h)
    own = logits.gather(1, target.clamp_min(0))
    expected = 1 + (logits[:, None] > own[..., None]).sum(-1)
    expected[target == -100] = 0
    assert torch.equal(layer.rank(h, target, block_size=block_size), expected)
    assert torch.equal(layer.rank(h, target[:, 0], block_size=block_size), expected[:, 0])


@KINDS
def test_ties_share_the_better_rank(kind: type[Layer], device: torch.device) -> None:
    """Small integers: scores are exact, so ties are true ties."""
    linear = nn.Linear(2, 6, bias=False, device=device)
    linear.weight.data.copy_(torch.tensor([[3, 0], [2, 0], [2, 0], [2, 0], [1, 0], [0, 0]]))
    layer = kind.from_linear(linear)
    h = torch.ones(6, 2, device=device)
    assert layer.rank(h, torch.arange(6, device=device)).tolist() == [1, 2, 2, 2, 5, 6]
    assert layer.rank(torch.zeros_like(h), torch.arange(6, device=device)).tolist() == [1] * 6
    assert layer.rank(h[:1], torch.arange(6, device=device).repeat(1, 5)).tolist() == [
        [1, 2, 2, 2, 5, 6] * 5
    ]


@KINDS
@pytest.mark.parametrize("rows", [1, 7, 500])
@pytest.mark.parametrize("block_size", [None, 1, 10, 100])
def test_classes_with_equal_weights_tie(
    kind: type[Layer], rows: int, block_size: int | None, device: torch.device
) -> None:
    """Twice the same 500 rows: their ranks are equal, however narrow the products that they come from."""
    linear = nn.Linear(128, 1000, bias=False, device=device)
    linear.weight.data[500:] = linear.weight.data[:500]
    layer = kind.from_linear(linear)
    h = torch.randn(rows, 128, device=device)
    logits = layer.logits(h)
    assert torch.equal(logits[:, :500], logits[:, 500:])
    best = logits.argmax(1) % 500
    assert (layer.rank(h, torch.stack([best, best + 500], 1), block_size=block_size) == 1).all()


@KINDS
def test_a_target_never_outranks_itself(kind: type[Layer], device: torch.device) -> None:
    """In float32 the target's own score differs in the last bit between summation orders; its rank must not."""
    linear = nn.Linear(300, 50, bias=False, device=device)
    layer = kind.from_linear(linear)
    h = torch.randn(400, 300, device=device)
    best = layer.logits(h).argmax(1)
    assert (layer.rank(h, best) == 1).all()


@given(
    rows=st.integers(0, 5),
    classes=st.integers(2, 40),
    block_size=st.integers(1, 50),
    data=st.data(),
)
@settings(deadline=None, max_examples=50)
def test_any_shape(rows: int, classes: int, block_size: int, data: st.DataObject) -> None:
    layer = zloss.FactoredLinear(3, classes, dtype=torch.float64)
    h = torch.randn(rows, 3, dtype=torch.float64)
    k = data.draw(st.integers(1, classes))
    assert torch.equal(layer.topk(h, k, block_size=block_size)[1], layer.logits(h).topk(k).indices)
    target = torch.randint(classes, (rows,))
    ranks = layer.rank(h, target, block_size=block_size)
    assert ranks.shape == (rows,)
    assert torch.equal(
        layer.logits(h).sort(1, descending=True).indices.eq(target[:, None]).nonzero()[:, 1] + 1,
        ranks,
    )


@KINDS
def test_wrong_arguments(kind: type[Layer], device: torch.device) -> None:
    layer = make_layer(kind, device)
    h = torch.randn(2, 6, dtype=torch.float64, device=device)
    for k in (0, 102):
        with pytest.raises(
            ValueError, match=f"k must be between 1 and the number of classes, 101, got {k}"
        ):
            layer.topk(h, k)
    with pytest.raises(ValueError, match="block_size must be at least 1 class, got 0"):
        layer.topk(h, 1, block_size=0)
    with pytest.raises(ValueError, match="target 101 is out of range"):
        layer.rank(h, torch.tensor([0, 101], device=device))


@KINDS
def test_half_precision_does_not_reach_the_scores(kind: type[Layer], device: torch.device) -> None:
    """With eight bits there would be ties, which share the better rank."""
    layer, h = make_layer(kind, device).float(), torch.randn(9, 6, device=device).bfloat16()
    target = torch.randint(101, (9,), device=device)
    expected = layer.logits(h.float()), *layer.topk(h.float(), 5), layer.rank(h.float(), target)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        assert all(
            map(torch.equal, (layer.logits(h), *layer.topk(h, 5), layer.rank(h, target)), expected)
        )


@KINDS
def test_ranks_need_an_h_that_fits(kind: type[Layer], device: torch.device) -> None:
    layer, target = make_layer(kind, device), torch.zeros(2, dtype=torch.long, device=device)
    with pytest.raises(ValueError, match=r"h must have shape \(B, 6\), got \(2, 5\)"):
        layer.rank(torch.randn(2, 5, dtype=torch.float64, device=device), target)


@KINDS
def test_ranks_need_targets_on_the_same_device(kind: type[Layer], device: torch.device) -> None:
    layer = make_layer(kind, device)
    with pytest.raises(ValueError, match=r"h and target must be on one device, got .* and meta"):
        layer.rank(
            torch.randn(2, 6, dtype=torch.float64, device=device),
            torch.zeros(2, dtype=torch.long, device="meta"),
        )


def test_weights_that_have_diverged_do_not_rank_first(device: torch.device) -> None:
    layer = zloss.DenseLinear(6, 101, device=device)
    layer.linear.weight.data.fill_(torch.nan)
    with pytest.raises(ValueError, match="the score of a target is NaN, which has no rank"):
        layer.rank(torch.randn(2, 6, device=device), torch.tensor([0, 1], device=device))


@pytest.mark.parametrize("targets", [1, 40])
@pytest.mark.parametrize("block_size", [None, 7])
def test_a_class_that_has_diverged_is_higher_than_others(
    block_size: int | None, targets: int, device: torch.device
) -> None:
    """As for `topk`: weights of which some are NaN must not make the targets look better."""
    layer = zloss.DenseLinear(6, 101, device=device)
    h, target = torch.randn(5, 6, device=device), torch.randint(61, (5, targets), device=device)
    before = layer.rank(h, target, block_size=block_size)
    finite = layer.logits(h)[:, :61]
    layer.linear.weight.data[61:] = torch.nan
    after = layer.rank(h, target, block_size=block_size)
    assert torch.equal(after, 41 + (finite[:, None] > finite.gather(1, target)[..., None]).sum(-1))
    assert (after >= before).all()
    assert (layer.topk(h, 40, block_size=block_size)[1] >= 61).all()


def test_many_rows_are_ranked_in_parts(device: torch.device) -> None:
    layer = make_layer(zloss.FactoredLinear, device)
    h = torch.randn(5000, 6, dtype=torch.float64, device=device)
    target = torch.randint(101, (5000,), device=device)
    logits = layer.logits(h)
    expected = 1 + (logits > logits.gather(1, target[:, None])).sum(1)
    assert torch.equal(layer.rank(h, target), expected)
    assert torch.equal(layer.topk(h, 3)[1], logits.topk(3).indices)


# ---- products in parts -----------------------------------------------------------------------------------------------


def in_tf32(x: torch.Tensor) -> torch.Tensor:
    """What tensor cores see of a float32: its leading 11 bits."""
    return (x.view(torch.int32) & ~(2**13 - 1)).view(torch.float32)


def test_parts_add_up_and_fit_into_tf32() -> None:
    x = torch.randn(1000) * 10.0 ** torch.randint(-20, 20, (1000,))
    high, low = tf32_parts(x)
    assert torch.equal(in_tf32(high), high)
    assert torch.equal(high + low, x)
    assert ((low - in_tf32(low)).abs() <= 2.0**-20 * x.abs()).all()


def test_a_product_of_parts_has_the_precision_of_float32() -> None:
    """Coarser than 2^-20 of |q| |k| it may not be, a few units of float32; in TF32 as it is, it would be 2^-10."""
    queries, keys = torch.randn(50, 256), torch.randn(300, 256)
    (q_high, q_low), (k_high, k_low) = tf32_parts(queries), tf32_parts(keys)
    left, right = torch.cat([q_high, q_high, q_low], 1), torch.cat([k_high, k_low, k_high], 1)
    product = in_tf32(left).double() @ in_tf32(right).double().T
    bound = queries.double().norm(dim=1)[:, None] * keys.double().norm(dim=1)
    error = (product - queries.double() @ keys.double().T).abs() / bound
    assert error.max() <= 2.0**-20
    coarse = in_tf32(queries).double() @ in_tf32(keys).double().T
    assert ((coarse - queries.double() @ keys.double().T).abs() / bound).max() > 10 * error.max()


@KINDS
@pytest.mark.parametrize("block_size", [None, 7])
def test_ranks_by_products_of_parts(
    kind: type[Layer], block_size: int | None, monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    monkeypatch.setattr("zloss.layers.ranking.splits_pay", lambda _: True)
    linear = nn.Linear(64, 300, device=device)
    linear.weight.data[200:] = linear.weight.data[:100]
    linear.bias.data[200:] = linear.bias.data[:100]
    layer, h = kind.from_linear(linear), torch.randn(40, 64, device=device)
    target = torch.randint(300, (40,), device=device)
    logits = linear(h).detach().double()
    own = logits.gather(1, target[:, None])
    tolerance = 1e-5  # of float32 products of 64 numbers near 1
    ranks = layer.rank(h, target, block_size=block_size)
    assert (1 + (logits > own + tolerance).sum(1) <= ranks).all()
    assert (ranks <= (logits > own - tolerance).sum(1)).all()
    twins = torch.where(
        target < 100, target + 200, torch.where(target >= 200, target - 200, target)
    )
    assert torch.equal(ranks, layer.rank(h, twins, block_size=block_size)), "equal weights tie"
