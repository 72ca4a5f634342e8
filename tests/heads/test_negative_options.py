"""Explicit negatives as part of a head: ranks, reductions, options, checkpoints and bad input."""

import copy
import re
from typing import Any

import pytest
import torch

import zloss
from tests.heads.negative_problems import (
    CLASSES,
    HIDDEN,
    IGNORED,
    LOSS,
    make_head,
)
from tests.layers.test_exactness import EXACT
from tests.layers.twins import relative_error
from zloss.layers.supervisor import Supervisor


def test_ranks_and_best_classes_are_those_of_the_layer(device: torch.device) -> None:
    head = make_head("uniform", device)
    plain = zloss.SphericalOutput(head.layer, head.loss)
    h = torch.randn(5, HIDDEN, dtype=torch.float64, device=device)
    target = torch.tensor([0, 5, 60, 7, IGNORED], device=device)
    assert torch.equal(head.rank(h, target), plain.rank(h, target))
    assert torch.equal(head.topk(h, 3)[1], plain.topk(h, 3)[1])


def test_reductions(device: torch.device) -> None:
    h = torch.randn(4, HIDDEN, dtype=torch.float64, device=device)
    target, values = torch.tensor([0, 5, IGNORED, 7], device=device), {}
    head = make_head("batch", device)
    for reduction in ("none", "sum", "mean"):
        head.loss = zloss.ZLoss(**LOSS, reduction=reduction)
        values[reduction] = head(h, target)
    assert values["none"].shape == (4,)
    assert values["none"][2] == 0
    assert relative_error(values["sum"], values["none"].sum()) <= EXACT
    assert relative_error(values["mean"], values["none"].sum() / 3) <= EXACT


def test_a_new_strength_makes_a_captured_step_capture_again() -> None:
    negatives = zloss.SharedNegatives(CLASSES)
    before = negatives.captured_constants()
    negatives.strength = 0.25
    assert 0.25 in negatives.captured_constants()
    assert 1.0 in before
    assert all(value is not negatives.log_scale for value in before), "the graph trains it"


def test_autocast_does_not_reach_the_scores(device: torch.device) -> None:
    head = make_head("batch", device)
    h, target = torch.randn(4, HIDDEN, device=device), torch.tensor([1, 2, 3, 3], device=device)
    expected = head(h, target)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        assert torch.equal(head(h, target), expected)


def test_a_checkpoint_has_the_number_c(device: torch.device) -> None:
    head, other = make_head("unigram", device, scale=4.0), make_head("unigram", device)
    other.load_state_dict(head.state_dict())
    assert other.negatives is not None
    assert other.negatives.log_scale.exp().item() == pytest.approx(4.0, rel=1e-6)
    copy.deepcopy(other)(torch.randn(2, HIDDEN, device=device), torch.tensor([1, 2], device=device))


def test_the_layers_below_do_not_learn_from_a_batch_that_a_device_refuses(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Supervisor, "waits_for", lambda *_: False)
    monkeypatch.setattr(Supervisor, "send", lambda *_: None)
    layer = zloss.FactoredLinear(HIDDEN, CLASSES, device=device, implementation="torch")
    negatives = zloss.SharedNegatives(CLASSES, device=device)
    head = zloss.SphericalOutput(layer, zloss.ZLoss(**LOSS), negatives)
    h = torch.randn(2, HIDDEN, device=device, requires_grad=True)
    head(h, torch.tensor([1, CLASSES], device=device)).backward()
    assert h.grad is not None
    assert not h.grad.any()
    with pytest.raises(ValueError, match="a target is out of range"):
        layer.raise_faults()


def test_a_config_takes_the_object_or_a_number(device: torch.device) -> None:
    own = zloss.SharedNegatives(CLASSES, sampler="batch", device=device)
    for given in (own, 30):
        config = zloss.HeadConfig(options={"negatives": given, "a": 1.0})
        head = config.build(HIDDEN, CLASSES, device=device)
        assert isinstance(head, zloss.SphericalOutput)
        assert head.negatives is own or (given == 30 and head.negatives.num_samples == 30)  # type: ignore[union-attr]
        assert {parameter.device.type for parameter in head.parameters()} == {device.type}
        head(torch.randn(4, HIDDEN, device=device), torch.tensor([1, 2, 3, 4], device=device))
    with pytest.raises(ValueError, match="option negatives must be a whole number, got 'many'"):
        zloss.HeadConfig(options={"negatives": "many"})


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_targets_that_the_counts_do_not_know_are_corrected_like_the_rarest_class() -> None:
    counts = torch.tensor([0, 2, 6, 0])
    sampler = zloss.SharedNegatives(4, sampler="batch", counts=counts).sampler
    assert sampler is not None
    expected = torch.tensor([2, 2, 6, 2]).double() / 12
    torch.testing.assert_close(sampler.log_prob(torch.arange(4)).exp(), expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_samples": 0}, "num_samples must be a whole number of at least 1"),
        ({"strength": -1.0}, "strength must be a finite number >= 0, got -1.0"),
        ({"scale": 0.0}, "scale must be a finite number > 0, got 0.0"),
        ({"scored_by": "rank"}, "scored_by must be one of z, logits, got 'rank'"),
        ({"sampler": "hard"}, "sampler must be one of"),
        ({"sampler": "unigram"}, 'sampler "unigram" needs counts='),
        ({"sampler": "batch", "counts": torch.ones(3)}, "shape (61,), got (3,)"),
        ({"sampler": "batch", "counts": torch.zeros(CLASSES)}, "counts are all zero"),
        ({"sampler": zloss.UniformSampler(5)}, "the sampler draws from 5 classes"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        zloss.SharedNegatives(CLASSES, **options)


def test_negatives_of_another_kind_or_size_are_refused() -> None:
    layer, loss = zloss.FactoredLinear(HIDDEN, CLASSES), zloss.ZLoss(**LOSS)
    with pytest.raises(ValueError, match="negatives must be SharedNegatives or None, got 256"):
        zloss.SphericalOutput(layer, loss, 256)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="drawn from 7 classes, but the layer has 61"):
        zloss.SphericalOutput(layer, loss, zloss.SharedNegatives(7))


def test_other_processes_would_draw_other_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zloss.heads.negatives.has_other_processes", lambda _: True)
    h, target = torch.randn(2, HIDDEN), torch.tensor([1, 2])
    with pytest.raises(ValueError, match='use sampler="batch", or train in one process'):
        make_head("uniform", torch.device("cpu"))(h, target)
    make_head("batch", torch.device("cpu"))(h, target)
