"""Options of sampled heads, and the input that they refuse."""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

import zloss
from tests.heads.sampled_problems import (
    CLASSES,
    COUNTS,
    HIDDEN,
    ONE_TARGET,
    SEED,
    every_loss,
    make_batch,
    make_head,
)
from zloss.heads.sampled import SampledSoftmax
from zloss.heads.samplers import UniformSampler, UnigramSampler


def test_number_of_samples_by_default() -> None:
    for classes in (2, 10_000, 10_000_000):
        assert SampledSoftmax(4, classes, device="meta").num_samples == 512


def test_only_nce_has_a_bias_by_default() -> None:
    for loss, bias, expected in (
        ("softmax", None, False),
        ("nce", None, True),
        ("softmax", True, True),
        ("nce", False, False),
    ):
        options = {} if bias is None else {"bias": bias}
        for head in (
            SampledSoftmax(4, 9, loss=loss, **options),  # type: ignore[arg-type]
            zloss.HeadConfig(head="sampled", loss=loss, options=options).build(4, 9),
        ):
            assert isinstance(head, SampledSoftmax)
            assert (head.linear.bias is not None) == expected


def test_draws_come_from_the_global_generator_unless_one_is_given() -> None:
    head = make_head(generator=None)
    h, target = make_batch(ONE_TARGET)
    torch.manual_seed(5)
    first, second = head(h, target), head(h, target)
    torch.manual_seed(5)
    assert torch.equal(head(h, target), first)
    assert not torch.equal(first, second)


def test_the_state_dict_brings_the_sampler_along() -> None:
    head = make_head(sampler="unigram", counts=COUNTS)
    other = make_head(
        sampler="unigram", counts=torch.ones(CLASSES), generator=Generator().manual_seed(SEED)
    )
    other.load_state_dict(head.state_dict())
    h, target = make_batch(ONE_TARGET)
    twin = copy.deepcopy(head)
    assert head(h, target) == other(h, target) == twin(h, target)


def test_evaluation_is_that_of_the_full_softmax(device: torch.device) -> None:
    head = make_head(device, bias=True)
    h, _ = make_batch(ONE_TARGET, device)
    logits = head.linear(h)
    torch.testing.assert_close(head.log_prob(h), logits.log_softmax(1).detach(), rtol=0, atol=1e-13)
    assert torch.equal(head.topk(h, 3)[1], logits.topk(3)[1])
    assert head.is_likelihood


BAD_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "no samples": (
        {"num_samples": 0},
        "num_samples must be a whole number of at least 1 that fits into memory, got 0",
    ),
    "unknown sampler": (
        {"sampler": "zipf"},
        "one of log_uniform, unigram, uniform or a Sampler, got 'zipf'",
    ),
    "unknown loss": ({"loss": "hinge"}, "loss must be one of softmax, nce, got 'hinge'"),
    "unknown reduction": (
        {"reduction": "average"},
        "reduction must be one of none, mean, sum, got 'average'",
    ),
    "counts missing": ({"sampler": "unigram"}, '"unigram" needs counts='),
    "counts too many": (
        {"sampler": "unigram", "counts": torch.ones(13)},
        r"shape \(12,\), got \(13,\)",
    ),
    "counts negative": ({"counts": -torch.ones(CLASSES)}, "finite numbers >= 0"),
    "counts all zero": (
        {"sampler": "unigram", "counts": torch.zeros(CLASSES)},
        "counts are all zero",
    ),
    "sampler of other classes": (
        {"sampler": UniformSampler(5)},
        "draws from 5 classes, but the head has 12",
    ),
    "counts for a sampler": (
        {"sampler": UnigramSampler(COUNTS), "counts": COUNTS},
        "build this one with them",
    ),
    "noise that is not everywhere": (
        {"loss": "nce", "sampler": "unigram", "counts": torch.arange(CLASSES) // 2},
        "never draws 2 of 12 classes, such as class 0; add one to the counts",
    ),
}


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS.values(), ids=BAD_OPTIONS.keys())
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SampledSoftmax(HIDDEN, CLASSES, **options)


@contextmanager
def refuses(head: SampledSoftmax, message: str) -> Iterator[None]:
    state = {name: tensor.clone() for name, tensor in head.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        yield
    for name, tensor in head.state_dict().items():
        assert torch.equal(tensor, state[name]), name
    assert all(parameter.grad is None for parameter in head.parameters())


BAD_BATCHES: dict[str, tuple[Callable[[Tensor, Tensor], tuple[Any, Any]], str]] = {
    "target too large": (
        lambda h, t: (h, t + 1),
        "target 12 is out of range: expected 0 <= target < 12",
    ),
    "target negative": (lambda h, t: (h, t - 1), "target -1 is out of range"),
    "target float": (
        lambda h, t: (h, t.float()),
        r"integer class indices, got dtype torch\.float32",
    ),
    "target too short": (lambda h, t: (h, t[1:]), r"shape \(3,\) or \(3, K\).*got \(2,\)"),
    "h NaN": (lambda h, t: (h * math.nan, t), "h has a NaN or an infinity"),
    "h too narrow": (lambda h, t: (h[:, 1:], t), r"shape \(B, 5\), got \(3, 4\)"),
    "h wider than the layer": (
        lambda h, t: (h.double(), t),
        r"h has dtype torch\.float64 but the layer holds",
    ),
}


@every_loss
@pytest.mark.parametrize(("spoil", "message"), BAD_BATCHES.values(), ids=BAD_BATCHES.keys())
def test_bad_batches(
    spoil: Callable[[Tensor, Tensor], tuple[Any, Any]], message: str, loss: str
) -> None:
    head = make_head(loss=loss, dtype=torch.float32)
    batch = torch.randn(3, HIDDEN), torch.tensor([0, 5, 11])
    with refuses(head, message):
        head(*spoil(*batch))
    head(*batch)  # the next batch is accepted


def test_bad_row_weights() -> None:
    head = make_head()
    h, target = make_batch(ONE_TARGET)
    with refuses(head, r"one entry per example, \(7,\), got \(6,\)"):
        head(h, target, weight=torch.ones(6))


def test_weight_decay_is_refused() -> None:
    with pytest.raises(ValueError, match=r"weight_decay=0\.1 would change every row"):
        make_head().sgd(0.1, weight_decay=0.1)
