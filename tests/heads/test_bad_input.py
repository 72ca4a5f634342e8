"""Bad input to any head: it raises one clear ValueError and leaves every bit of the head as it was."""

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zloss
from tests.heads.batches import (
    ROWS,
    good_batch,
    has_gradient,
    step,
    trained,
    with_value,
)
from tests.heads.registry import CLASSES, HIDDEN, HeadCase, every_head, every_head_of_ours


@contextmanager
def refuses(head: zloss.Head, message: str) -> Iterator[None]:
    """Expect a ValueError with this message, and a head without a gradient whose bits have not changed."""
    state = {name: tensor.clone() for name, tensor in head.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        yield
    assert all(torch.equal(tensor, state[name]) for name, tensor in head.state_dict().items())
    assert not has_gradient(head)


BAD_HIDDEN: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "NaN": (lambda h: with_value(h, math.nan), "h has a NaN or an infinity"),
    "infinite": (lambda h: with_value(h, -math.inf), "h has a NaN or an infinity"),
    "integers": (
        lambda h: h.long(),
        r"floating-point tensor of shape \(B, 8\), got dtype torch\.int64",
    ),
    "complex": (
        lambda h: h.to(torch.complex64),
        r"floating-point tensor.*got dtype torch\.complex64",
    ),
    "a list": (lambda h: h.tolist(), r"floating-point tensor of shape \(B, 8\), got list"),
    "None": (lambda h: None, "floating-point tensor.*got NoneType"),
    "too narrow": (lambda h: h[:, 1:], r"h must have shape \(B, 8\), got \(12, 7\)"),
    "too wide": (lambda h: torch.cat([h, h], 1), r"h must have shape \(B, 8\), got \(12, 16\)"),
    "a vector": (lambda h: h[0], r"h must have shape \(B, 8\), got \(8,\)"),
    "three-dimensional": (lambda h: h[None], r"got \(1, 12, 8\); flatten leading dimensions first"),
    "finer than the head": (
        lambda h: h.double(),
        r"h has dtype torch\.float64 but the layer holds torch\.float32",
    ),
    "elsewhere": (lambda h: h.to("meta"), "h is on meta but the layer is on"),
}
BAD_TARGETS: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "too large": (
        lambda t: with_value(t, CLASSES),
        "target 53 is out of range: expected 0 <= target < 53, or the ign",
    ),
    "negative": (
        lambda t: with_value(t, -1),
        "target -1 is out of range: expected 0 <= target < 53",
    ),
    "one of several too large": (
        lambda t: with_value(torch.stack([t, t], 1), 10**9),
        "target 1000000000 is out of",
    ),
    "wrapping": (lambda t: with_value(t, 2**63 - 1), "target 9223372036854775807 is out of range"),
    "narrow and negative": (
        lambda t: with_value(t, -7).to(torch.int8),
        "target -7 is out of range",
    ),
    "float": (
        lambda t: t.float(),
        r"target must hold integer class indices, got dtype torch\.float32",
    ),
    "bool": (lambda t: t > 3, r"target must hold integer class indices, got dtype torch\.bool"),
    "a list": (lambda t: t.tolist(), "target must be a tensor of class indices, got list"),
    "None": (lambda t: None, "target must be a tensor of class indices, got NoneType"),
    "too short": (lambda t: t[1:], r"target must have shape \(12,\) or \(12, K\).*got \(11,\)"),
    "one number": (lambda t: t[0], r"target must have shape \(12,\) or \(12, K\).*got \(\)"),
    "three-dimensional": (lambda t: t[:, None, None], r"got \(12, 1, 1\)"),
    "without columns": (lambda t: t[:, None][:, :0], "target has no columns"),
    "elsewhere": (lambda t: t.to("meta"), "h and target must be on one device, got .* and meta"),
}
VALUES = [
    "NaN",
    "infinite",
    "too large",
    "negative",
    "one of several too large",
    "wrapping",
    "narrow and negative",
]


def narrow_head(case: HeadCase, device: torch.device) -> zloss.Head:
    return trained(case, device, dtype=torch.float32)


def readers(head: zloss.Head) -> list[Callable[[Any, Any], object]]:
    """Return the methods that evaluate a batch with targets."""
    return [head.rank, head.target_log_prob, head.perplexity] if head.is_likelihood else [head.rank]


@every_head
def test_bad_hidden_batches(case: HeadCase, device: torch.device) -> None:
    head = narrow_head(case, device)
    h, target = good_batch(head)
    for name, (spoil, message) in BAD_HIDDEN.items():
        bad = spoil(h.detach())
        if device.type == "cpu" or name not in VALUES:
            with refuses(head, message):
                head(bad, target)
        for read in readers(head):
            with refuses(head, message):
                read(bad, target)
        for look in [lambda h: head.topk(h, 3), *([head.log_prob] if head.is_likelihood else [])]:
            with refuses(head, message):
                look(bad)
    assert step(head, h, target).isfinite()


@every_head
def test_bad_targets(case: HeadCase, device: torch.device) -> None:
    head = narrow_head(case, device)
    h, target = good_batch(head)
    for name, (spoil, message) in BAD_TARGETS.items():
        bad = spoil(target)
        if device.type == "cpu" or name not in VALUES:
            with refuses(head, message):
                head(h, bad)
        for read in readers(head):
            with refuses(head, message):
                read(h, bad)
    assert h.grad is None
    assert step(head, h, target).isfinite()


@every_head_of_ours
def test_bad_weights(case: HeadCase, device: torch.device) -> None:
    head = narrow_head(case, device)
    h, target = good_batch(head)
    for shape in ((ROWS - 1,), (1,), (ROWS, 1), ()):
        with refuses(
            head, re.escape(f"weight must have one entry per example, (12,), got {shape}")
        ):
            head(h, target, weight=torch.ones(shape, device=device))
    with refuses(head, "weight must be a tensor of real numbers, got list"):
        head(h, target, weight=[1.0] * ROWS)
    assert step(head, h, target).isfinite()


@every_head
def test_bad_ways_to_evaluate(case: HeadCase, device: torch.device) -> None:
    head = narrow_head(case, device)
    h, target = good_batch(head)
    for k in (0, -1, CLASSES + 1):
        with refuses(head, f"k must be between 1 and the number of classes, 53, got {k}"):
            head.topk(h, k)
    for block_size in (0, -3):
        with refuses(head, f"block_size must be at least 1 class, got {block_size}"):
            head.topk(h, 3, block_size=block_size)
        with refuses(head, f"block_size must be at least 1 class, got {block_size}"):
            head.rank(h, target, block_size=block_size)


BAD_CONSTRUCTIONS: dict[str, tuple[Callable[[], object], str]] = {
    "no features": (
        lambda: zloss.DenseOutput(0, 9),
        "in_features >= 1 and num_classes >= 2, got 0 and 9",
    ),
    "one class": (
        lambda: zloss.HierarchicalSoftmax(4, 1),
        "in_features >= 1 and num_classes >= 2, got 4 and 1",
    ),
    "a dense loss on statistics": (
        lambda: zloss.SphericalOutput(zloss.GramLinear(4, 9), zloss.SigmoidCrossEntropy()),  # type: ignore[arg-type]
        "SigmoidCrossEntropy is not a spherical loss, so it needs every logit: .* DenseOutput for any loss",
    ),
    "a foreign layer": (
        lambda: zloss.SphericalOutput(nn.Linear(4, 9), zloss.SquaredError()),  # type: ignore[arg-type]
        "layer must be a FactoredLinear, GramLinear or DenseLinear, got Linear",
    ),
    "a softmax that does not exist": (
        lambda: zloss.DenseOutput(4, 9, softmax="fastest"),  # type: ignore[arg-type]
        "softmax must be one of logits, linear_cross_entropy, .* got 'fastest'",
    ),
    "a softmax of another loss": (
        lambda: zloss.DenseOutput(4, 9, loss=zloss.SquaredError(), softmax="linear_cross_entropy"),
        "softmax='linear_cross_entropy' (computes SoftmaxCrossEntropy, not SquaredError|cannot run here)",
    ),
}


@pytest.mark.parametrize("name", BAD_CONSTRUCTIONS)
def test_bad_constructions(name: str) -> None:
    build, message = BAD_CONSTRUCTIONS[name]
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    "name", [name for name, reason in zloss.softmax_implementations("cpu").items() if reason]
)
def test_a_softmax_that_cannot_run_here_is_refused_with_the_reason(name: Any) -> None:
    """The head refuses it at its first use at the latest. Before that, it may still move to another device."""
    reason = zloss.softmax_implementations("cpu")[name]
    assert reason
    with pytest.raises(ValueError, match=f"softmax='{name}' cannot run here: .*these can: logits"):
        zloss.DenseOutput(HIDDEN, CLASSES, softmax=name)(
            torch.randn(2, HIDDEN), torch.tensor([1, 2])
        )


@every_head_of_ours
def test_a_reduction_that_does_not_exist(case: HeadCase) -> None:
    with pytest.raises(ValueError, match="reduction must be one of none, mean, sum, got 'avg'"):
        case.made(reduction="avg")
