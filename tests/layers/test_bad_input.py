"""Bad input: one clear ValueError, and the layer afterwards is bit for bit what it was before."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import zloss
from tests.layers.twins import k1_of

HIDDEN, CLASSES = 5, 30
LOSS = zloss.ZLoss(a=0.2, b=8.0)


def make_layer(device: torch.device | str = "cpu", **options: Any) -> zloss.FactoredLinear:
    """A trained layer with a recorded gradient, so that there is a state to damage."""
    torch.manual_seed(0)
    layer = zloss.FactoredLinear(HIDDEN, CLASSES, device=device, synchronous=True, **options)
    for _ in range(3):
        layer.step_(20.0)
        LOSS(layer(*good_batch(layer))).backward()
    return layer


def good_batch(layer: zloss.FactoredLinear) -> tuple[Tensor, Tensor]:
    h = torch.randn(4, HIDDEN, dtype=layer.V.dtype, device=layer.V.device)
    return h, torch.randint(CLASSES, (4,), device=layer.V.device)


@contextmanager
def refuses(layer: zloss.FactoredLinear, message: str) -> Iterator[None]:
    state = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    gradient = layer.recorded_gradient()
    with pytest.raises(ValueError, match=message):
        yield
    for name, tensor in layer.state_dict().items():
        assert torch.equal(tensor, state[name]), name
    assert layer.recorded_gradient() is gradient


def with_value(tensor: Tensor, value: float) -> Tensor:
    tensor = tensor.clone()
    tensor.view(-1)[-1] = value
    return tensor


BAD_BATCHES: dict[str, tuple[Callable[[Tensor, Tensor], tuple[Any, Any]], str]] = {
    "target too large": (
        lambda h, t: (h, with_value(t, CLASSES)),
        "target 30 is out of range: expected 0 <= t",
    ),
    "target negative": (lambda h, t: (h, with_value(t, -1)), "target -1 is out of range"),
    "target float": (
        lambda h, t: (h, t.float()),
        r"integer class indices, got dtype torch\.float32",
    ),
    "target bool": (lambda h, t: (h, t > 3), r"integer class indices, got dtype torch\.bool$"),
    "target multi-hot": (
        lambda h, t: (h, F.one_hot(t, CLASSES).float()),
        r"got dtype torch\.float32; of a multi-hot",
    ),
    "target a list": (lambda h, t: (h, t.tolist()), "must be a tensor of class indices, got list"),
    "target too short": (lambda h, t: (h, t[:-1]), r"shape \(4,\) or \(4, K\).*got \(3,\)"),
    "target without columns": (lambda h, t: (h, t[:, None][:, :0]), "no columns"),
    "target three-dimensional": (lambda h, t: (h, t[:, None, None]), r"got \(4, 1, 1\)"),
    "h NaN": (lambda h, t: (with_value(h, float("nan")), t), "h has a NaN or an infinity"),
    "h infinite": (lambda h, t: (with_value(h, float("-inf")), t), "h has a NaN or an infinity"),
    "h overflowing": (lambda h, t: (1e25 * h, t), "activations that overflow"),
    "h integer": (
        lambda h, t: (h.long(), t),
        r"floating-point tensor of shape \(B, 5\), got dtype torch\.int64",
    ),
    "h an array": (lambda h, t: (h.tolist(), t), "floating-point tensor.*got list"),
    "h too narrow": (lambda h, t: (h[:, :-1], t), r"shape \(B, 5\), got \(4, 4\)$"),
    "h a vector": (lambda h, t: (h[0], t), r"shape \(B, 5\), got \(5,\)$"),
    "h three-dimensional": (
        lambda h, t: (h[None], t),
        r"got \(1, 4, 5\); flatten leading dimensions",
    ),
    "h wider than the layer": (
        lambda h, t: (h.double(), t),
        r"h has dtype torch\.float64 but the layer",
    ),
}


@pytest.mark.parametrize(("spoil", "message"), BAD_BATCHES.values(), ids=BAD_BATCHES.keys())
def test_bad_batches(
    spoil: Callable[[Tensor, Tensor], tuple[Any, Any]], message: str, device: torch.device
) -> None:
    layer = make_layer(device)
    batch = spoil(*good_batch(layer))
    with refuses(layer, message):
        layer(*batch)
    if "overflow" not in message:  # of sums that ranks do without
        with refuses(layer, message):
            layer.rank(*batch)
    layer(*good_batch(layer))  # and it goes on


@given(
    rows=st.integers(1, 6),
    columns=st.integers(1, 3),
    value=st.one_of(st.integers(CLASSES, 2**62), st.integers(-(2**62), -1)).filter(
        lambda v: v != -100
    ),
    dtype=st.sampled_from([torch.int64, torch.int32, torch.int16, torch.int8]),
    data=st.data(),
)
@settings(deadline=None, max_examples=100)
def test_any_target_that_is_no_class(
    rows: int, columns: int, value: int, dtype: torch.dtype, data: st.DataObject
) -> None:
    limits = torch.iinfo(dtype)
    value = max(limits.min, min(limits.max, value))
    if 0 <= value < CLASSES or value == -100:
        value = CLASSES
    layer = make_layer()
    target = torch.randint(CLASSES, (rows, columns)).to(dtype)
    target[data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))] = value
    with refuses(layer, f"target {value} is out of range"):
        layer(torch.randn(rows, HIDDEN), target)


@given(
    shape=st.lists(st.integers(0, 4), min_size=0, max_size=4).filter(
        lambda s: len(s) != 2 or s[1] != HIDDEN
    ),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
)
@settings(deadline=None, max_examples=100)
def test_any_wrong_shape_of_h(shape: list[int], dtype: torch.dtype) -> None:
    layer = make_layer()
    with refuses(layer, r"h must have shape \(B, 5\)"):
        layer(torch.zeros(shape, dtype=dtype), torch.zeros(shape[:1] or [1], dtype=torch.long))


@given(st.integers(0, 19), st.sampled_from([float("nan"), float("inf"), float("-inf")]))
@settings(deadline=None, max_examples=30)
def test_non_finite_h_anywhere(position: int, value: float) -> None:
    layer = make_layer()
    h, target = good_batch(layer)
    h.view(-1)[position] = value
    with refuses(layer, "h has a NaN or an infinity"):
        layer(h, target)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_upstream_gradient_is_refused(value: float, device: torch.device) -> None:
    layer = make_layer(device)
    (layer(*good_batch(layer)).scatter.sum() * value).backward()
    with refuses(
        layer,
        "the gradient has a NaN or an infinity, .*; lower the learning rate, clip .*, or drop it",
    ):
        layer.step_(1.0)
    layer.zero_grad()
    LOSS(layer(*good_batch(layer))).backward()
    layer.step_(1.0)


def test_step_that_would_overflow_is_refused_with_a_safe_rate(device: torch.device) -> None:
    layer = make_layer(device)
    for lr in (1e60, 1e300):
        with refuses(layer, "would overflow the weights; lower the learning rate"):
            layer.step_(lr)
    with pytest.raises(zloss.RefusedStepError) as refusal:
        layer.step_(1e60)
    assert 0 < refusal.value.safe_lr < 1e6
    layer.step_(refusal.value.safe_lr)
    assert layer.condition() < 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"in_features": 0}, "in_features >= 1 and num_classes >= 2, got 0 and 30"),
        ({"num_classes": 1}, "got 5 and 1"),
        ({"num_classes": 1e6}, "expected whole numbers .* got 5 and 1000000.0"),
        (
            {"dtype": torch.bfloat16},
            r"dtype must be torch\.float32 or torch\.float64, got torch\.bfloat16",
        ),
        ({"state_dtype": torch.float16}, r"state_dtype must be .* got torch\.float16"),
        ({"dtype": torch.float64, "state_dtype": torch.float32}, "coarser"),
        ({"max_condition": 1.0}, "max_condition must be greater than 1"),
    ],
)
def test_bad_constructions(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        zloss.FactoredLinear(**{"in_features": HIDDEN, "num_classes": CLASSES} | arguments)


def test_device_mismatch(cuda: torch.device) -> None:
    layer = make_layer(cuda)
    h, target = good_batch(layer)
    with refuses(layer, "h is on cpu but the layer is on cuda"):
        layer(h.cpu(), target)
    with refuses(layer, "one device"):
        layer(h, target.cpu())


def test_integer_targets_of_any_width(device: torch.device) -> None:
    layer = make_layer(device)
    h, target = good_batch(layer)
    expected = layer(h, target).target
    for dtype in (torch.int32, torch.int16, torch.int8, torch.uint8):
        assert torch.equal(layer(h, target.to(dtype)).target, expected)


@pytest.mark.parametrize("rows", [3, 20])
def test_safe_rate_is_safe_and_not_timid(rows: int, device: torch.device) -> None:
    """At the rate that a refusal names P is well conditioned; it is within sqrt(H) of the largest such rate."""
    layer = make_layer(device)
    layer.zero_grad()
    h, target = (
        torch.randn(rows, HIDDEN, device=device),
        torch.randint(CLASSES, (rows,), device=device),
    )
    zloss.SquaredError()(layer(h, target)).backward()
    largest = torch.linalg.eigvalsh(k1_of(layer)).abs().max()
    with pytest.raises(zloss.RefusedStepError) as refusal:
        layer.step_(1e60)
    assert 0.5 / HIDDEN**0.5 <= refusal.value.safe_lr * largest.item() <= 0.5 + 1e-6


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["lr", "weight_decay"])
def test_a_rate_that_is_no_rate_is_refused(name: str, bad: float, device: torch.device) -> None:
    layer = make_layer(device)
    with refuses(layer, f"{name} must be a finite number >= 0, got {bad}"):
        rates: Any = {"lr": 1.0, name: bad}
        layer.step_(**rates)
