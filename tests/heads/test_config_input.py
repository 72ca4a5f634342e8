"""Unknown names and bad values in the config of a head."""

from typing import Any

import pytest
import torch

import zloss
from tests.heads.config_problems import CLASSES, HIDDEN, build, every_head_name
from zloss.heads.config import HEADS


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"head": "factord"},
            "unknown head: 'factord'; did you mean 'factored'? known: factored, gram, dense, ",
        ),
        ({"head": "hierarchial"}, "did you mean 'hierarchical'?"),
        ({"head": "transformer"}, "unknown head: 'transformer'; known: factored, gram"),
        ({"head": None}, "unknown head: None; known: "),
        ({"head": 3}, "unknown head: 3; known: "),
        ({"loss": "zloss"}, "unknown loss: 'zloss'; did you mean 'z_loss'? known: z_loss, "),
        ({"loss": "hinge"}, "unknown loss: 'hinge'; known: z_loss, "),
        (
            {"head": "sampled", "num_sample": 5},
            "unknown option of head 'sampled' with loss 'softmax': 'num_sample'; did you mean 'num_samples'?",
        ),
        (
            {"eps": 0.1},
            "unknown option of head 'factored' with loss 'z_loss': 'eps'; known: bias, max_condition, ",
        ),
        (
            {"loss": "taylor_softmax", "a": 0.1},
            "unknown option of head 'factored' with loss 'taylor_softmax': 'a'; ",
        ),
        ({"head": "adaptive", "bias": True}, "unknown option .* 'bias'; did you mean 'head_bias'?"),
        ({"lr": 0.1}, "unknown option of head 'factored' with loss 'z_loss': 'lr'"),
        (
            {"options": {"a": 0.1}},
            "unknown option of head 'factored' with loss 'z_loss': 'options'",
        ),
        ({"reduction": "avg"}, "reduction must be one of none, mean, sum, got 'avg'"),
    ],
)
def test_a_name_that_does_not_exist_is_refused_with_the_nearest(
    values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        zloss.HeadConfig.from_dict(values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"a": 0.0}, "a must be a finite number > 0, got 0.0"),
        (
            {"head": "dense", "loss": "z_softmax", "a": -1.0},
            "a must be a finite number > 0, got -1.0",
        ),
        (
            {"head": "hierarchical", "clusters": 41},
            "expected between 1 and 40 clusters, one per class, got 41",
        ),
        (
            {"head": "hierarchical", "clusters": 2.5},
            "option clusters must be a whole number, got 2.5",
        ),
        ({"head": "adaptive", "cutoffs": [50]}, "cutoffs must be one or more integers"),
        (
            {"head": "sampled", "num_samples": 0},
            "num_samples must be a whole number of at least 1 that fits into memory, got 0",
        ),
        (
            {"head": "sampled", "sampler": "zipf"},
            "sampler must be one of log_uniform, unigram, uniform",
        ),
        ({"head": "dense", "softmax": "fast"}, "softmax must be one of logits, "),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_whom_it_concerns(
    values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build(**values)


@pytest.mark.parametrize("head", ["factored", "gram", "dense"])
@pytest.mark.parametrize("classes", [0, -3])
def test_no_classes_are_refused_in_words(head: str, classes: int) -> None:
    with pytest.raises(ValueError, match=r"num_classes|out_features|classes"):
        zloss.HeadConfig(head=head, loss="z_loss").build(4, classes)


def test_a_loss_that_is_part_of_its_head_does_not_exist_on_its_own() -> None:
    with pytest.raises(
        ValueError, match="nce does not exist on its own: it is part of the sampled head"
    ):
        zloss.HeadConfig(head="sampled", loss="nce").build_loss(CLASSES)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"head": "dense", "bias": "False"}, "option bias must be true or false, got 'False'"),
        ({"a": "x"}, "option a must be a number, got 'x'"),
        ({"a": True}, "option a must be a number, got True"),
        (
            {"head": "sampled", "num_samples": 1.5},
            "option num_samples must be a whole number, got 1.5",
        ),
        ({"head": "adaptive", "cutoffs": 3}, "option cutoffs must be a list, got 3"),
        ({"ignore_index": "none"}, "ignore_index must be a whole number, got 'none'"),
    ],
)
def test_values_of_the_wrong_kind_are_refused(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        zloss.HeadConfig.from_dict(table)


@every_head_name
def test_bad_counts_are_refused_where_they_matter(name: str) -> None:
    for counts, message in (
        (torch.ones(CLASSES - 1), "one number per class"),
        (-torch.ones(CLASSES), ">= 0"),
    ):
        if HEADS[name].takes_counts:
            with pytest.raises(ValueError, match=message):
                zloss.HeadConfig(head=name).build(HIDDEN, CLASSES, counts=counts)
        else:
            assert (
                zloss.HeadConfig(head=name).build(HIDDEN, CLASSES, counts=counts).num_classes
                == CLASSES
            )
