"""The adaptive softmax against torch's own module, and what torch's module does not do against plain definitions."""

import copy
import io
import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import zloss
from tests.gpu import pretend_gpu
from zloss import kernels
from zloss.heads.adaptive import AdaptiveSoftmax
from zloss.heads.cutoffs import default_cutoffs
from zloss.heads.stretches import Stretches

HIDDEN, CLASSES, CUTOFFS = 16, 60, [5, 12, 30]
IGNORED = -100
assert_close_in_float32 = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5)
# float64, sums of some dozens of terms of size 1: rounding is about 1e-15, and any slip in a formula far above 1e-12.
assert_close = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)


def make_head(
    device: torch.device | str = "cpu", dtype: torch.dtype = torch.float64, **options: Any
) -> AdaptiveSoftmax:
    """Weights large enough that probabilities differ, with three clusters of widths 8, 4, 2."""
    head = AdaptiveSoftmax(HIDDEN, CLASSES, **{"cutoffs": CUTOFFS, "div_value": 2.0, **options}).to(
        device, dtype
    )
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.mul_(3)
    return head


def clusters(head: AdaptiveSoftmax) -> list[Any]:
    """The pairs of layers of the clusters."""
    return list(head.softmax.tail)


def shuffled_counts() -> Tensor:
    """Counts under which no class keeps its place for sure; some of them are equal."""
    return torch.randint(40, (CLASSES,), generator=torch.Generator().manual_seed(1))


def batch(head: AdaptiveSoftmax, rows: int, *columns: int) -> tuple[Tensor, Tensor]:
    weight = head.reference_weight
    h = torch.randn(rows, HIDDEN, dtype=weight.dtype, device=weight.device, requires_grad=True)
    return h, torch.randint(CLASSES, (rows, *columns), device=weight.device)


def log_prob_of_torch(head: AdaptiveSoftmax, h: Tensor) -> Tensor:  # (B, C)
    """The full matrix of torch's module, by class."""
    log_prob: Tensor = head.softmax.log_prob(h)
    return log_prob if head.order is None else log_prob[:, head.order.positions]


def gradients(value: Tensor, head: AdaptiveSoftmax, h: Tensor) -> list[Tensor | None]:
    return list(
        torch.autograd.grad(value, [h, *head.parameters()], allow_unused=True, retain_graph=True)
    )


def assert_same_gradients(
    value: Tensor, expected: Tensor, head: AdaptiveSoftmax, h: Tensor
) -> None:
    for ours, theirs in zip(gradients(value, head, h), gradients(expected, head, h), strict=True):
        zero = torch.zeros(
            (), dtype=h.dtype, device=h.device
        )  # torch's full matrix touches what the batch does not
        assert_close(
            *torch.broadcast_tensors(
                zero if ours is None else ours, zero if theirs is None else theirs
            )
        )


with_and_without_counts = pytest.mark.parametrize(
    "counts", [None, shuffled_counts()], ids=["by number", "by counts"]
)


# ---- training --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head_bias", [False, True])
def test_loss_and_gradients_are_those_of_torch(head_bias: bool, device: torch.device) -> None:
    head = make_head(device, head_bias=head_bias)
    h, target = batch(head, 40)
    assert_close(make_like(head, reduction="none")(h, target), -head.softmax(h, target).output)
    expected = head.softmax(h, target).loss
    assert_close(head(h, target), expected)
    assert_same_gradients(head(h, target), expected, head, h)


def make_like(head: AdaptiveSoftmax, **options: Any) -> AdaptiveSoftmax:
    """The same weights under another reduction."""
    twin = copy.deepcopy(head)
    twin.softmax, twin.reduction = head.softmax, options["reduction"]
    return twin


@pytest.mark.parametrize("stretch", range(4))
def test_targets_of_one_stretch_touch_no_other(stretch: int) -> None:
    """The others have no gradient, as in torch's module; nor have they a cost."""
    head = make_head()
    h, _ = batch(head, 6)
    low = [0, *CUTOFFS][stretch]
    target = torch.full((6,), low)
    assert_close(head(h, target), head.softmax(h, target).loss)
    head(h, target).backward()
    touched = [tail[1].weight.grad is not None for tail in clusters(head)]
    assert touched == [cluster == stretch for cluster in (1, 2, 3)]


@with_and_without_counts
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("captured", [False, True])
def test_several_targets_weights_and_ignored_ones(
    counts: Tensor | None,
    reduction: Any,
    captured: bool,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a step computes it that waits for the device, and as one does that cannot wait."""
    monkeypatch.setattr("zloss.heads.adaptive.must_not_wait", lambda: captured)
    head = make_head(device, counts=counts, reduction=reduction)
    h, target = batch(head, 20, 5)
    target[torch.rand(target.shape, device=device) < 0.4] = IGNORED
    target[3] = target[8] = IGNORED
    weight = torch.randn(20, dtype=h.dtype, device=device)

    valid = target != IGNORED
    nll = torch.where(valid, -log_prob_of_torch(head, h).gather(1, target.clamp_min(0)), 0)
    rows = weight * nll.sum(1) / valid.sum(1).clamp_min(1)
    expected = {"none": rows, "sum": rows.sum(), "mean": rows.sum() / valid.any(1).sum()}[reduction]

    value = head(h, target, weight=weight)
    assert_close(value, expected)
    upstream = torch.randn_like(value)  # not the same for all rows
    assert_same_gradients((value * upstream).sum(), (expected * upstream).sum(), head, h)
    assert gradients(value.sum(), head, h)[0][[3, 8]].count_nonzero() == 0  # type: ignore[index]


def test_gradcheck() -> None:
    head = make_head(head_bias=True, counts=shuffled_counts())
    h, target = batch(head, 3, 2)
    target[0, 1] = IGNORED
    parameters = dict(head.named_parameters())

    def loss(h: Tensor, *values: Tensor) -> Tensor:
        named = dict(zip(parameters, values, strict=True))
        result: Tensor = torch.func.functional_call(head, named, (h, target))
        return result

    assert torch.autograd.gradcheck(loss, (h, *parameters.values()), fast_mode=True)


@pytest.mark.parametrize("shape", [(4,), (4, 3), (0,), (0, 2)])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_a_batch_without_targets_is_zero(
    shape: tuple[int, ...], reduction: Any, device: torch.device
) -> None:
    # The class that ignored targets point at, 0, is made the rarest, so that it is in the last cluster.
    counts = torch.arange(CLASSES)
    head = make_head(device, counts=counts, reduction=reduction)
    h = torch.randn(shape[0], HIDDEN, dtype=torch.float64, device=device, requires_grad=True)
    value = head(h, torch.full(shape, IGNORED, device=device))
    assert value.count_nonzero() == 0
    value.sum().backward()
    assert h.grad is not None
    assert h.grad.count_nonzero() == 0
    assert head.reference_weight.grad is not None
    assert head.reference_weight.grad.count_nonzero() == 0
    assert all(parameter.grad is None for parameter in head.softmax.tail.parameters())


def test_a_row_with_several_targets_in_a_cluster_goes_through_it_once() -> None:
    head = make_head()
    seen = []
    head.softmax.tail[1].register_forward_hook(
        lambda _module, inputs, _output: seen.append(len(inputs[0]))
    )
    h, _ = batch(head, 3)
    head(h, torch.tensor([[12, 13, 14], [29, 0, 59], [0, 6, 59]]))
    assert seen == [2]


def test_sgd_trains_it(device: torch.device) -> None:
    # Made on the CPU: the same weights everywhere, for a test that asks how far they get.
    head = make_head(torch.device("cpu"), dtype=torch.float32, counts=shuffled_counts())
    h, target = batch(head, 30)
    head, h, target = head.to(device), h.detach().to(device), target.to(device)
    optimizer = head.sgd(0.3)
    before = head.perplexity(h, target)
    for _ in range(200):
        optimizer.zero_grad()
        head(h, target).backward()
        optimizer.step()
    assert head.perplexity(h, target) < min(
        2.0, before / 10
    )  # from about 100; each row has a target to memorise


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("hidden_dtype", [None, torch.float32])
def test_autocast(
    dtype: torch.dtype, hidden_dtype: torch.dtype | None, device: torch.device
) -> None:
    """Products in half precision, their normalisers and the loss in float32."""
    head = make_head(device, dtype=torch.float32, head_bias=True)
    h, target = batch(head, 50, 2)
    expected, full = head(h, target), gradients(head(h, target), head, h)
    half = h.detach().to(hidden_dtype or dtype).requires_grad_()
    with torch.autocast(device.type, dtype=dtype):
        loss = head(half, target)
    loss.backward()
    assert loss.dtype == torch.float32
    # bfloat16 has 8 bits: logits of size 4 err by up to 2^-6, so the loss, about 8, by less than 1%; its gradients,
    # which are proportional to probabilities, by some times 2^-7 (seen: 0.9%).
    torch.testing.assert_close(loss, expected, rtol=0.01, atol=0)
    assert half.grad is not None
    assert half.grad.dtype == half.dtype
    for parameter, exact in zip(head.parameters(), full[1:], strict=True):
        assert exact is not None
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32
        assert (parameter.grad - exact).norm() <= 0.05 * exact.norm()


def test_evaluation_is_exact_under_autocast(device: torch.device) -> None:
    head = make_head(device, dtype=torch.float32)
    h, target = batch(head, 9)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        values = head.log_prob(h), head.target_log_prob(h, target), head.rank(h, target)
    expected = head.log_prob(h), head.target_log_prob(h, target), head.rank(h, target)
    assert all(map(torch.equal, values, expected))


# ---- evaluation ------------------------------------------------------------------------------------------------------


@with_and_without_counts
@pytest.mark.parametrize("head_bias", [False, True])
def test_log_prob_is_that_of_torch(
    counts: Tensor | None, head_bias: bool, device: torch.device
) -> None:
    head = make_head(device, counts=counts, head_bias=head_bias)
    h, _ = batch(head, 13)
    log_prob = head.log_prob(h)
    assert_close(log_prob, log_prob_of_torch(head, h).detach())
    assert_close(log_prob.exp().sum(1), torch.ones(13, dtype=torch.float64, device=device))


@with_and_without_counts
@pytest.mark.parametrize("columns", [(), (4,)])
def test_target_log_prob_and_perplexity(
    counts: Tensor | None, columns: tuple[int, ...], device: torch.device
) -> None:
    head = make_head(device, counts=counts, head_bias=True)
    h, target = batch(head, 25, *columns)
    target[::7] = IGNORED
    shaped = target.reshape(25, -1)
    expected = (
        head.log_prob(h)
        .gather(1, shaped.clamp_min(0))
        .masked_fill(shaped == IGNORED, 0)
        .reshape(target.shape)
    )
    assert_close(head.target_log_prob(h, target), expected)
    mean = expected.sum().item() / (target != IGNORED).sum().item()
    assert head.perplexity(h, target) == pytest.approx(math.exp(-mean), rel=1e-12)


def test_target_log_prob_makes_no_pass_over_clusters_without_targets() -> None:
    head = make_head()
    for tail in clusters(head):
        tail.register_forward_pre_hook(lambda *_: pytest.fail("a cluster was evaluated"))
        tail[0].register_forward_pre_hook(lambda *_: pytest.fail("a cluster was evaluated"))
    h, target = batch(head, 5)
    head.target_log_prob(h, target % CUTOFFS[0])


@with_and_without_counts
@pytest.mark.parametrize("block_size", [None, 1, 7, CLASSES, 1000])
@pytest.mark.parametrize("k", [1, 10, CLASSES])
def test_topk_is_that_of_the_log_probabilities(
    counts: Tensor | None, block_size: int | None, k: int, device: torch.device
) -> None:
    head = make_head(device, counts=counts)
    h, _ = batch(head, 13)
    values, classes = head.topk(h, k, block_size=block_size)
    for log_prob in (head.log_prob(h), log_prob_of_torch(head, h)):
        expected = log_prob.topk(k)
        assert torch.equal(classes, expected.indices)
        assert_close(values, expected.values.detach())


@with_and_without_counts
@pytest.mark.parametrize("block_size", [None, 1, 7, CLASSES])
@pytest.mark.parametrize("columns", [1, 3])
def test_rank_counts_strictly_higher_log_probabilities(
    counts: Tensor | None, block_size: int | None, columns: int, device: torch.device
) -> None:
    head = make_head(device, counts=counts, head_bias=True)
    h, target = batch(head, 13, columns)
    target[3, 0] = IGNORED
    for log_prob in (head.log_prob(h), log_prob_of_torch(head, h)):
        own = log_prob.gather(1, target.clamp_min(0))
        expected = 1 + (log_prob[:, None] > own[..., None]).sum(-1)
        expected[target == IGNORED] = 0
        assert torch.equal(head.rank(h, target, block_size=block_size), expected)
        assert torch.equal(head.rank(h, target[:, 0], block_size=block_size), expected[:, 0])


def test_ties_share_the_better_rank(device: torch.device) -> None:
    """Without weights the classes of a stretch are equally likely, and those of larger clusters less so."""
    head = make_head(device, dtype=torch.float32)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.zero_()
    h = torch.randn(CLASSES, HIDDEN, device=device)
    expected = [1] * 5 + [6] * 7 + [13] * 18 + [31] * 30
    for block_size in (None, 1, 8):
        assert (
            head.rank(h, torch.arange(CLASSES, device=device), block_size=block_size).tolist()
            == expected
        )


@pytest.mark.parametrize("stretch", range(3))
def test_classes_with_equal_weights_tie(stretch: int, device: torch.device) -> None:
    """Every class of a likely stretch twice: where the best two score equally to the last bit, both have rank 1."""
    head = AdaptiveSoftmax(256, 700, cutoffs=[100, 300], head_bias=True, device=device)
    shortlist = slice(0, 100)
    rows = clusters(head)[stretch - 1][1].weight if stretch else head.softmax.head.weight[shortlist]
    first, twins = [0, 100, 300][stretch], len(rows) // 2
    with torch.no_grad():
        rows[twins:] = rows[:twins]
        head.softmax.head.bias.zero_()
        head.softmax.head.bias[99 + stretch if stretch else shortlist] = 20
    h = torch.randn(500, 256, device=device)
    log_prob = head.log_prob(h)
    best = first + (log_prob.argmax(1) - first) % twins
    pair = torch.stack([best, best + twins], 1)
    values = log_prob.gather(1, pair)
    same = values[:, 0] == values[:, 1]
    assert same.sum() > 400
    assert (head.rank(h, pair)[same] == 1).all()


def test_the_best_class_has_rank_one(device: torch.device) -> None:
    """In float32 a score may differ in the last bit between two products; no class may outrank itself for it."""
    head = AdaptiveSoftmax(300, 1000, counts=torch.randint(100, (1000,)), device=device)
    h = torch.randn(400, 300, device=device)
    assert (head.rank(h, head.topk(h, 1)[1]) == 1).all()


def test_many_rows_are_evaluated_in_parts(device: torch.device) -> None:
    head = make_head(device, counts=shuffled_counts())
    h, target = batch(head, 5000)
    log_prob = log_prob_of_torch(head, h).detach()
    own = log_prob.gather(1, target[:, None])
    assert torch.equal(head.rank(h, target), 1 + (log_prob > own).sum(1))
    assert torch.equal(head.topk(h, 3)[1], log_prob.topk(3).indices)
    assert_close(head.target_log_prob(h, target), own[:, 0])


@given(
    rows=st.integers(0, 5),
    classes=st.integers(2, 40),
    in_features=st.integers(1, 9),
    data=st.data(),
)
@settings(deadline=None, max_examples=50)
def test_any_shape_and_any_cutoffs(
    rows: int, classes: int, in_features: int, data: st.DataObject
) -> None:
    cuts = data.draw(st.none() | st.sets(st.integers(1, classes - 1), min_size=1, max_size=4))
    cutoffs, div_value = (
        (None, None) if cuts is None else (sorted(cuts), 1.2 if in_features > 2 else 1.0)
    )
    head = AdaptiveSoftmax(
        in_features,
        classes,
        cutoffs=cutoffs,
        div_value=div_value,
        counts=torch.rand(classes),
        dtype=torch.float64,
    )
    h, target = torch.randn(rows, in_features, dtype=torch.float64), torch.randint(classes, (rows,))
    log_prob = log_prob_of_torch(head, h).detach()
    own = log_prob.gather(1, target[:, None])[:, 0]
    assert_close(head(h, target), -own.sum() / max(rows, 1))
    assert_close(head.target_log_prob(h, target), own)
    block_size = data.draw(st.integers(1, 50))
    assert_close(
        head.topk(h, classes, block_size=block_size)[0], log_prob.sort(1, descending=True).values
    )
    ranks = head.rank(h, target, block_size=block_size)
    # A cluster of one class can have the probability of a class in the shortlist up to rounding: see only clear cases.
    assert (ranks >= 1 + (log_prob > own[:, None] + 1e-12).sum(1)).all()
    assert (ranks <= 1 + (log_prob > own[:, None] - 1e-12).sum(1)).all()


# ---- construction ----------------------------------------------------------------------------------------------------


def test_counts_put_the_frequent_classes_first() -> None:
    head = make_head(counts=torch.arange(CLASSES))
    assert head.position_of(torch.tensor([0, CLASSES - 1])).tolist() == [CLASSES - 1, 0]
    assert head.class_at(torch.tensor([0, CLASSES - 1])).tolist() == [CLASSES - 1, 0]
    h, _ = batch(head, 4)
    head(h, torch.full((4,), CLASSES - 1)).backward()
    assert all(parameter.grad is None for parameter in head.softmax.tail.parameters())


def test_a_checkpoint_is_complete() -> None:
    """The order of the classes is in it; the head that loads it may have been built from other counts."""
    head = AdaptiveSoftmax(32, 500, counts=torch.randint(100, (500,)))
    file = io.BytesIO()
    torch.save(head.state_dict(), file)
    file.seek(0)
    other = AdaptiveSoftmax(32, 500, counts=torch.ones(500))
    other.load_state_dict(torch.load(file))
    h = torch.randn(3, 32)
    assert torch.equal(other.log_prob(h), head.log_prob(h))
    assert torch.equal(copy.deepcopy(head).log_prob(h), head.log_prob(h))


def test_weights_of_torch_load() -> None:
    theirs = nn.AdaptiveLogSoftmaxWithLoss(HIDDEN, CLASSES, CUTOFFS, div_value=2.0, head_bias=True)
    head = make_head(dtype=torch.float32, head_bias=True)
    head.softmax.load_state_dict(theirs.state_dict())
    h, target = batch(head, 8)
    torch.testing.assert_close(head(h, target), theirs(h, target).loss)
    assert set(head.state_dict()) == {f"softmax.{name}" for name in theirs.state_dict()}


def test_reference_weight() -> None:
    assert make_head(counts=shuffled_counts()).reference_weight.shape == (CUTOFFS[0] + 3, HIDDEN)


@pytest.mark.parametrize(
    "num_classes", [2, 3, 4, 10, 17, 100, 999, 10_000, 267_735, 793_471, 10_000_000]
)
@pytest.mark.parametrize("in_features", [1, 2, 3, 4, 16, 64, 512, 4096])
def test_defaults_fit_any_size(in_features: int, num_classes: int) -> None:
    head = AdaptiveSoftmax(in_features, num_classes, device="meta")
    assert 1 <= len(head.cutoffs) <= 3
    assert head.cutoffs[0] <= max(1, num_classes // 4)
    assert head.softmax.cutoffs == sorted({*head.cutoffs, num_classes})
    assert all(tail[1].in_features >= 1 for tail in clusters(head))


def test_default_cutoffs() -> None:
    assert default_cutoffs(512, 793_471, 4.0) == [3563, 21597, 130906]
    assert default_cutoffs(512, 10_000_000, 4.0) == [12649, 116960, 1081481]
    assert default_cutoffs(512, 10_000, 4.0) == [400, 2000]
    assert default_cutoffs(64, 10_000, 4.0) == [
        400
    ]  # a second cluster would have vectors of 4 numbers
    assert default_cutoffs(8, 2, 4.0) == [1]


@pytest.mark.parametrize(("num_classes", "saving"), [(10_000, 15), (1_000_000, 100)])
def test_default_cutoffs_save_what_their_docstring_says(num_classes: int, saving: float) -> None:
    width, cutoffs = 512, default_cutoffs(512, num_classes, 4.0)
    zipf = 1 / torch.arange(1, num_classes + 1, dtype=torch.float64)
    share = [part.sum() / zipf.sum() for part in zipf.tensor_split(cutoffs)]
    sizes = [high - low for low, high in zip(cutoffs, [*cutoffs[1:], num_classes], strict=True)]
    step = width * (cutoffs[0] + len(cutoffs)) + sum(
        share[i] * (width // 4**i) * (width + size) for i, size in enumerate(sizes, start=1)
    )
    assert width * num_classes / step > saving


@pytest.mark.parametrize("cutoffs", [(5, 12), np.array([5, 12]), range(5, 13, 7)])
def test_cutoffs_may_be_any_integers(cutoffs: Sequence[int]) -> None:
    assert AdaptiveSoftmax(HIDDEN, CLASSES, cutoffs=cutoffs).cutoffs == [5, 12]


def test_its_text_tells_the_cutoffs() -> None:
    assert "16, 60, cutoffs=[5, 12, 30], div_value=2" in repr(make_head())


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"cutoffs": []},
            r"one or more integers in increasing order, each between 1 and .* = 59, got \[\]",
        ),
        ({"cutoffs": [12, 5]}, r"increasing order.*got \[12, 5\]"),
        ({"cutoffs": [5, 5]}, r"increasing order.*got \[5, 5\]"),
        ({"cutoffs": [0, 5]}, r"between 1 and .*got \[0, 5\]"),
        ({"cutoffs": [5, CLASSES]}, r"between 1 and .*got \[5, 60\]"),
        ({"cutoffs": [5.5]}, r"integers.*got \[5\.5\]"),
        ({"div_value": 0.5}, r"div_value must be a finite number >= 1, got 0\.5"),
        ({"div_value": math.nan}, "div_value must be a finite number >= 1, got nan"),
        (
            {"cutoffs": CUTOFFS, "div_value": 4.0},
            r"last of 3 clusters.*width 0: in_features // div_value\*\*3 with in_features=16, div_value=4; "
            r"set div_value to 2\.51 or less, or use fewer cutoffs",
        ),
        ({"cutoffs": [5], "div_value": 17}, "set div_value to 16 or less$"),
        ({"counts": torch.ones(3)}, r"one number per class, shape \(60,\), got \(3,\)"),
        ({"counts": [1] * CLASSES}, "counts must be a tensor .* got list"),
        ({"counts": torch.full((CLASSES,), math.nan)}, "finite numbers >= 0"),
        ({"reduction": "average"}, "reduction must be one of none, mean, sum, got 'average'"),
        ({"num_classes": 1}, "num_classes >= 2, got 16 and 1"),
        ({"in_features": 0}, "in_features >= 1 and num_classes >= 2, got 0 and 60"),
    ],
)
def test_bad_constructions(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AdaptiveSoftmax(**{"in_features": HIDDEN, "num_classes": CLASSES} | options)


def test_the_advice_on_div_value_is_good() -> None:
    assert clusters(make_head(div_value=2.51))[2][1].in_features == 1


BAD_BATCHES: dict[str, tuple[Callable[[Tensor, Tensor], tuple[Any, Any]], str]] = {
    "target too large": (lambda h, t: (h, t + CLASSES), "out of range: expected 0 <= target < 60"),
    "target negative": (lambda h, t: (h, t - CLASSES), "out of range: expected 0 <= target < 60"),
    "target float": (
        lambda h, t: (h, t.float()),
        r"integer class indices, got dtype torch\.float32",
    ),
    "target too short": (lambda h, t: (h, t[:-1]), r"shape \(4,\) or \(4, K\).*got \(3,\)"),
    "h NaN": (lambda h, t: (h * math.nan, t), "h has a NaN or an infinity"),
    "h too narrow": (lambda h, t: (h[:, :-1], t), r"shape \(B, 16\), got \(4, 15\)"),
    "h three-dimensional": (lambda h, t: (h[None], t), "flatten leading dimensions"),
    "h wider than the layer": (
        lambda h, t: (h.double(), t),
        r"h has dtype torch\.float64 but the layer",
    ),
}


@pytest.mark.parametrize(("spoil", "message"), BAD_BATCHES.values(), ids=BAD_BATCHES.keys())
def test_bad_batches(spoil: Callable[[Tensor, Tensor], tuple[Any, Any]], message: str) -> None:
    head = make_head(dtype=torch.float32, counts=shuffled_counts())
    before = copy.deepcopy(head.state_dict())
    h, target = spoil(*batch(head, 4))
    for use in (head, head.rank, head.target_log_prob, head.perplexity):
        with pytest.raises(ValueError, match=message):
            use(h, target)
    assert all(torch.equal(value, before[name]) for name, value in head.state_dict().items())
    assert all(parameter.grad is None for parameter in head.parameters())


@pytest.mark.parametrize("weight", [torch.ones(3), torch.ones(4, 1)])
def test_bad_weights(weight: Tensor) -> None:
    head = make_head()
    with pytest.raises(ValueError, match=r"one entry per example, \(4,\), got"):
        head(*batch(head, 4), weight=weight)


# ---- what is particular to a GPU -------------------------------------------------------------------------------------


def test_a_bad_batch_on_a_gpu_moves_nothing_and_is_reported(cuda: torch.device) -> None:
    head = make_head(cuda)
    h, target = batch(head, 4)
    loss = head(h, target + CLASSES)
    loss.backward()
    assert loss.isnan()
    assert all(p.grad is None or p.grad.count_nonzero() == 0 for p in (h, *head.parameters()))
    with pytest.raises(ValueError, match="a target is out of range"):
        head.rank(h, target)


@pytest.mark.parametrize("stretch", range(4))
def test_a_step_that_cannot_wait_computes_all_clusters(
    stretch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a captured one is right for whatever targets it is replayed with."""
    head = make_head()
    h, _ = batch(head, 6)
    target = torch.full((6,), [0, *CUTOFFS][stretch])
    head(h, target).backward()
    expected = [
        torch.zeros_like(weight) if weight.grad is None else weight.grad
        for weight in head.parameters()
    ]
    head.zero_grad()
    monkeypatch.setattr("zloss.heads.adaptive.must_not_wait", lambda: True)
    monkeypatch.setattr(
        Stretches, "rows_by_cluster", lambda *_: pytest.fail("this waits for the device")
    )
    head(h, target).backward()
    for weight, gradient in zip(head.parameters(), expected, strict=True):
        assert_close(weight.grad, gradient)


def check_captured_steps(
    device: torch.device,
    stretches: Sequence[int],
    dtype: torch.dtype = torch.float64,
    tolerance: float = 1e-12,
) -> None:
    """By a `CapturedStep` or without, steps with all targets in one stretch lead to the same losses and weights."""
    assert_close = partial(torch.testing.assert_close, rtol=tolerance, atol=tolerance)
    heads = [make_head(device, dtype)]
    heads.append(copy.deepcopy(heads[0]))
    optimizers = [head.sgd(lr=0.1) for head in heads]

    def step(number: int, h: Tensor, target: Tensor) -> Tensor:
        loss: Tensor = heads[number](h, target)
        loss.backward()
        optimizers[number].step()
        optimizers[number].zero_grad()
        return loss.detach()

    captured = zloss.CapturedStep(partial(step, 1), optimizers=[optimizers[1]])
    for stretch in stretches:
        h, _ = batch(heads[0], 6)
        target = torch.full((6,), [0, *CUTOFFS][stretch], device=device)
        assert_close(captured(h.detach(), target), step(0, h.detach(), target))
        for plain, replayed in zip(heads[0].parameters(), heads[1].parameters(), strict=True):
            assert_close(replayed, plain)


@pytest.mark.parametrize("stretch", range(4))
def test_before_its_capture_a_step_is_rehearsed_without_waiting(
    stretch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_gpu(monkeypatch)
    check_captured_steps(torch.device("cpu"), [0, 3, stretch])


# In float32 the clusters come from kernels: another order of sums, and eight steps that hand it on.
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
def test_a_captured_step_is_one_that_is_not(
    dtype: torch.dtype, tolerance: float, cuda: torch.device
) -> None:
    """Replayed with targets of other clusters than it was captured with."""
    check_captured_steps(cuda, (0, 1, 2, 3, 0, 3, 1, 2), dtype, tolerance)


@pytest.mark.skipif(not kernels.available(), reason="triton is not installed")
@pytest.mark.parametrize("autocast", [False, True])
@with_and_without_counts
def test_in_float32_kernels_skip_what_no_example_wants(
    counts: Tensor | None,
    autocast: bool,
    kernel_device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("zloss.heads.adaptive.must_not_wait", lambda: True)
    monkeypatch.setattr("zloss.heads.cluster_log_prob._has_kernel", lambda p, weight: True)
    head = make_head(kernel_device, torch.float32, counts=counts)
    h, target = batch(head, 20, 3)
    target[torch.rand(target.shape, device=kernel_device) < 0.5] = IGNORED
    with torch.autocast(kernel_device.type, torch.bfloat16, enabled=autocast):
        value = head(h, target)
    exact = copy.deepcopy(head).double()
    monkeypatch.setattr("zloss.heads.cluster_log_prob._has_kernel", lambda p, weight: False)
    wide = h.detach().double().requires_grad_()
    expected = exact(wide, target)
    # bfloat16 has 8 bits, and scores are around 10 here.
    close = (
        partial(torch.testing.assert_close, rtol=0.05, atol=0.05)
        if autocast
        else assert_close_in_float32
    )
    close(value.double(), expected)
    for ours, theirs in zip(
        gradients(value, head, h), gradients(expected, exact, wide), strict=True
    ):
        assert ours is not None
        close(ours.double(), theirs)


def test_a_step_waits_for_the_gpu_once(cuda: torch.device) -> None:
    head = make_head(cuda)
    h, target = batch(head, 40)
    head(h, target).backward()
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            head(h, target).backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert sum("synchronizing CUDA operation" in str(warning.message) for warning in caught) == 1
