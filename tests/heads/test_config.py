"""Every head by name: each pair with a loss builds and trains or is refused, options arrive, and mappings are equal."""

import copy
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import zloss
from tests.heads.config_problems import (
    CLASSES,
    COUNTS,
    HIDDEN,
    PAIRS,
    batch,
    build,
    every_head_name,
)
from zloss.heads.config import HEADS, LOSSES


@pytest.mark.parametrize(
    ("head", "loss"), [(h, loss) for h, loss in PAIRS if loss in HEADS[h].losses]
)
def test_a_pair_that_works_takes_a_step(head: str, loss: str, device: torch.device) -> None:
    built = build(device, head=head, loss=loss)
    h, target = batch(device)
    optimizer, scores = built.sgd(0.1), built.topk(h, CLASSES)[0]
    value = built(h, target)
    value.backward()
    optimizer.step()
    assert value.shape == ()
    assert value.isfinite()
    assert not torch.equal(built.topk(h, CLASSES)[0], scores), "it has learnt something"
    assert (built.rank(h, target) == 0).tolist() == [False, False, False, False, True, False]


@pytest.mark.parametrize(
    ("head", "loss"), [(h, loss) for h, loss in PAIRS if loss not in HEADS[h].losses]
)
def test_a_pair_that_cannot_work_is_refused_with_the_reason(head: str, loss: str) -> None:
    with pytest.raises(ValueError, match=f"the {head} head cannot train {loss}: ") as refusal:
        zloss.HeadConfig(head=head, loss=loss)
    message = str(refusal.value)
    assert HEADS[head].why in message
    for trained in HEADS[head].losses:
        assert trained in message
    use = message.partition(f"for {loss} use one of ")[2].split(", ")
    assert use == [name for name, kind in HEADS.items() if loss in kind.losses]
    for able in use:
        assert zloss.HeadConfig(head=able, loss=loss).loss == loss


def test_every_loss_has_a_head() -> None:
    assert set(LOSSES) == {loss for kind in HEADS.values() for loss in kind.losses}


@every_head_name
def test_the_first_loss_is_the_default(name: str) -> None:
    assert zloss.HeadConfig(head=name).loss == HEADS[name].losses[0]
    assert zloss.HeadConfig(head=name) == zloss.HeadConfig(head=name, loss=HEADS[name].losses[0])


def test_the_default_is_the_z_loss_on_factors() -> None:
    head = build()
    assert isinstance(head, zloss.SphericalOutput)
    assert isinstance(head.layer, zloss.FactoredLinear)
    assert isinstance(head.loss, zloss.ZLoss)


TYPES: dict[str, tuple[type, type | None]] = {
    "factored": (zloss.SphericalOutput, zloss.FactoredLinear),
    "gram": (zloss.SphericalOutput, zloss.GramLinear),
    "dense": (zloss.DenseOutput, None),
    "hierarchical": (zloss.HierarchicalSoftmax, None),
    "adaptive": (zloss.AdaptiveSoftmax, None),
    "sampled": (zloss.SampledSoftmax, None),
}


@every_head_name
def test_a_name_stands_for_its_class(name: str) -> None:
    head_type, layer_type = TYPES[name]
    head = build(head=name)
    assert isinstance(head, head_type)
    assert layer_type is None or isinstance(getattr(head, "layer", None), layer_type)


@every_head_name
def test_shape_device_and_dtype(name: str, device: torch.device) -> None:
    config = zloss.HeadConfig(head=name, reduction="sum", ignore_index=-1)
    head = config.build(HIDDEN, CLASSES, device=device, dtype=torch.float64)
    assert (head.in_features, head.num_classes, head.ignore_index) == (HIDDEN, CLASSES, -1)
    assert head.reference_weight.dtype == torch.float64
    assert {parameter.device for parameter in head.parameters()} == {device}


@pytest.mark.parametrize(
    ("head", "loss"), [(h, loss) for h, loss in PAIRS if loss in HEADS[h].losses]
)
def test_reduction_and_ignore_index_reach_the_loss(head: str, loss: str) -> None:
    h, target = batch()
    target = torch.where(target == -100, -1, target)
    values = {}
    for reduction in ("none", "sum", "mean"):
        torch.manual_seed(0)
        built = build(head=head, loss=loss, reduction=reduction, ignore_index=-1)
        torch.manual_seed(1)  # for the draws
        values[reduction] = built(h, target)
    assert values["none"].shape == (6,)
    assert values["none"][4] == 0
    # A sum of five numbers in float32.
    torch.testing.assert_close(values["sum"], values["none"].sum(), rtol=1e-5, atol=0)
    torch.testing.assert_close(values["mean"], values["none"].sum() / 5, rtol=1e-5, atol=0)


# ---- options ---------------------------------------------------------------------------------------------------------


Reader = Callable[[Any], object]
OPTIONS: list[tuple[str, str, str, object, Reader]] = [
    ("factored", "z_loss", "bias", True, lambda head: head.layer.has_bias),
    ("factored", "z_loss", "max_condition", 50.0, lambda head: head.layer.max_condition),
    ("factored", "z_loss", "synchronous", True, lambda head: head.layer.synchronous),
    ("factored", "z_loss", "a", 0.3, lambda head: head.loss.a),
    ("factored", "z_loss", "b", 4.0, lambda head: head.loss.b),
    ("factored", "spherical_softmax", "eps", 0.7, lambda head: head.loss.eps),
    ("factored", "z_loss", "negatives", 7, lambda head: head.negatives.num_samples),
    ("gram", "z_loss", "negatives", 7, lambda head: head.negatives.num_samples),
    ("gram", "z_loss", "bias", True, lambda head: head.layer.linear.bias is not None),
    ("gram", "z_loss", "a", 0.3, lambda head: head.loss.a),
    ("gram", "z_loss", "b", 4.0, lambda head: head.loss.b),
    ("gram", "spherical_softmax", "eps", 0.7, lambda head: head.loss.eps),
    ("dense", "softmax", "bias", True, lambda head: head.linear.bias is not None),
    ("dense", "softmax", "softmax", "logits", lambda head: head.softmax),
    ("dense", "z_softmax", "a", 2.0, lambda head: head.loss.a),
    ("dense", "sigmoid", "b", 9.2, lambda head: head.loss.b),
    ("dense", "z_sigmoid", "a", 2.0, lambda head: head.loss.a),
    ("dense", "z_sigmoid", "b", 9.2, lambda head: head.loss.b),
    ("dense", "z_loss", "a", 0.3, lambda head: head.loss.a),
    ("dense", "z_loss", "b", 4.0, lambda head: head.loss.b),
    ("dense", "spherical_softmax", "eps", 0.7, lambda head: head.loss.eps),
    ("hierarchical", "softmax", "bias", True, lambda head: head.member_bias is not None),
    ("hierarchical", "softmax", "clusters", 5, lambda head: head.blocks.num_blocks),
    ("hierarchical", "softmax", "implementation", "torch", lambda head: head.implementation),
    ("hierarchical", "softmax", "exact_rows", True, lambda head: head.exact_rows),
    ("adaptive", "softmax", "cutoffs", [9], lambda head: head.cutoffs),
    ("adaptive", "softmax", "div_value", 2.0, lambda head: head.softmax.div_value),
    ("adaptive", "softmax", "head_bias", True, lambda head: head.softmax.head.bias is not None),
    ("sampled", "softmax", "bias", True, lambda head: head.linear.bias is not None),
    ("sampled", "softmax", "num_samples", 7, lambda head: head.num_samples),
    (
        "sampled",
        "softmax",
        "remove_accidental_hits",
        False,
        lambda head: head.remove_accidental_hits,
    ),
    ("sampled", "nce", "num_samples", 7, lambda head: head.num_samples),
]


@pytest.mark.parametrize(
    ("head", "loss", "option", "value", "read"),
    OPTIONS,
    ids=[" ".join(option[:3]) for option in OPTIONS],
)
def test_an_option_arrives(head: str, loss: str, option: str, value: Any, read: Reader) -> None:
    built = build(head=head, loss=loss, **{option: value})
    assert read(built) == value
    built(*batch()).backward()


def test_the_sampler_and_its_power_arrive() -> None:
    head = build(head="sampled", sampler="unigram", power=0.5)
    q = COUNTS.double().sqrt() / COUNTS.double().sqrt().sum()
    torch.testing.assert_close(head.sampler.log_prob(torch.arange(CLASSES)).exp(), q)
    assert isinstance(build(head="sampled", sampler="uniform").sampler, zloss.UniformSampler)


def test_every_option_is_tried() -> None:
    tried = {(head, option) for head, _, option, _, _ in OPTIONS} | {
        ("sampled", "sampler"),
        ("sampled", "power"),
    }
    of_heads = {(name, option) for name, kind in HEADS.items() for option in kind.options}
    of_losses = {
        (name, option)
        for name, kind in HEADS.items()
        for loss in kind.losses
        for option in LOSSES[loss].options
    }
    assert (of_heads | of_losses) - tried == set(), "add a line to OPTIONS in this file"


def test_the_nce_of_the_config_is_that_of_the_head() -> None:
    assert build(head="sampled", loss="nce").loss == "nce"
    assert build(head="sampled").loss == "softmax"


@pytest.mark.parametrize("name", [name for name, kind in HEADS.items() if kind.takes_counts])
def test_counts_order_the_classes_where_they_matter(name: str) -> None:
    """The most frequent class comes first: in the first cluster, in the shortlist, or in the order of the sampler."""
    counts = torch.arange(CLASSES)  # class 39 is the most frequent
    head: Any = zloss.HeadConfig(head=name).build(HIDDEN, CLASSES, counts=counts)
    order = head.sampler.order if name == "sampled" else head.order
    assert order.class_at(torch.arange(CLASSES)).tolist() == list(range(CLASSES))[::-1]


@pytest.mark.parametrize("name", [name for name, kind in HEADS.items() if not kind.takes_counts])
def test_counts_change_nothing_elsewhere(name: str) -> None:
    torch.manual_seed(0)
    with_counts = zloss.HeadConfig(head=name).build(HIDDEN, CLASSES, counts=torch.arange(CLASSES))
    torch.manual_seed(0)
    without = zloss.HeadConfig(head=name).build(HIDDEN, CLASSES)
    h, target = batch()
    assert torch.equal(with_counts(h, target), without(h, target))
    assert with_counts.state_dict().keys() == without.state_dict().keys()


@pytest.mark.parametrize(
    ("classes", "softness", "b"),
    [(100, 1.0, 3.33), (10_000, 0.1, 10.0), (200_000, 0.0224, 10.0), (4_000_000, 0.005, 10.0)],
)
def test_the_softness_of_the_z_loss_is_relative_to_the_largest_z(
    classes: int, softness: float, b: float
) -> None:
    config = zloss.HeadConfig(head="factored")
    assert config.loss_options(classes) == {"a": softness, "b": b}
    built = config.build_loss(classes)
    assert (built.a, built.b) == (softness, b)
    given = zloss.HeadConfig(head="factored", options={"a": 0.3}).build(2, classes)
    assert (given.loss.a, given.loss.b) == (0.3, b)  # type: ignore[union-attr]


# ---- mappings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "loss"), [(h, loss) for h, loss in PAIRS if loss in HEADS[h].losses]
)
def test_a_config_comes_back_from_its_mapping(head: str, loss: str) -> None:
    options = LOSSES[loss].starts(CLASSES)
    config = zloss.HeadConfig(
        head=head, loss=loss, options=options, reduction="sum", ignore_index=-1
    )
    values = config.to_dict()
    assert values == {"head": head, "loss": loss, "reduction": "sum", "ignore_index": -1, **options}
    assert zloss.HeadConfig.from_dict(values) == config
    assert zloss.HeadConfig.from_dict(copy.deepcopy(values)).to_dict() == values


def test_a_table_of_a_toml_file() -> None:
    """The config is the example in the docstring of the module."""
    table = tomllib.loads('[head]\nhead = "sampled"\nloss = "nce"\nnum_samples = 256\n')["head"]
    assert table == {"head": "sampled", "loss": "nce", "num_samples": 256}
    head: Any = zloss.HeadConfig.from_dict(table).build(
        64, 10_000, counts=torch.arange(10_000, 0, -1)
    )
    assert (head.loss, head.num_samples, head.num_classes) == ("nce", 256, 10_000)


def test_a_config_does_not_change() -> None:
    config = zloss.HeadConfig()
    with pytest.raises(AttributeError, match="cannot assign to field 'head'"):
        config.head = "dense"  # type: ignore[misc]


def test_a_config_builds_as_often_as_asked() -> None:
    config = zloss.HeadConfig(head="gram", options={"a": 0.3})
    first, second = config.build(HIDDEN, CLASSES), config.build(HIDDEN, CLASSES)
    h, target = batch()
    assert not torch.equal(first(h, target), second(h, target)), "each has weights of its own"
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(h, target), second(h, target))


def test_none_leaves_an_option_to_its_default() -> None:
    config = zloss.HeadConfig.from_dict({"a": "none", "b": 3})
    assert (
        config
        == zloss.HeadConfig(options={"a": None, "b": 3})
        == zloss.HeadConfig(options={"b": 3})
    )
    assert config.loss_options(10_000) == {"a": 0.1, "b": 3}


def test_the_documentation_has_all_options() -> None:
    text = (Path(__file__).parents[2] / "docs" / "guides" / "heads.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (`\w+` \(.*\)) \|$", text, re.MULTILINE)
    documented = {name: re.findall(r"`(\w+)` \(", cell) for name, cell in rows}
    of_heads = {name: list(kind.options) for name, kind in HEADS.items()}
    of_losses = {name: list(kind.options) for name, kind in LOSSES.items() if kind.options}
    assert documented == of_heads | of_losses
