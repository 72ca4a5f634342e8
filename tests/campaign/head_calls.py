"""A valid call of every public name of the heads, from which attacks with bad input start."""

import random
from typing import Any

import torch

import zloss
from tests.campaign import calls as c
from tests.campaign.bad_values import Kind
from tests.campaign.calls import (
    BATCH,
    CLASSES,
    EVALUATION,
    LISTS,
    MANNERS,
    PLACE,
    RANKING,
    SIZES,
    SPHERICAL,
    Given,
    Maker,
    given,
    head,
    new,
    on,
)


def labels(_: random.Random) -> Given:
    return Given(torch.randint(5, (CLASSES,)), Kind.COUNTS)


def some_layer(rng: random.Random) -> Any:
    return rng.choice([c.factored, c.dense, c.gram])(rng)


def values(_: random.Random) -> dict[str, Any]:
    return {"head": "sampled", "loss": "nce", "num_samples": 5, "reduction": "sum"}


def config(rng: random.Random) -> zloss.HeadConfig:
    return zloss.HeadConfig(head=rng.choice(c.HEADS))


def counting(rng: random.Random) -> zloss.HeadConfig:
    return zloss.HeadConfig(head=rng.choice(["hierarchical", "adaptive", "sampled"]))


def dense_config(rng: random.Random) -> zloss.HeadConfig:
    return zloss.HeadConfig(head="dense", loss=rng.choice(SPHERICAL))


def generator(_: random.Random) -> torch.Generator:
    return torch.Generator()


HEAD_CALLS: dict[str, Maker] = {
    "AdaptiveSoftmax": new(
        zloss.AdaptiveSoftmax,
        **SIZES,
        cutoffs=given([3, 7], "set", *LISTS),
        div_value=2.0,
        head_bias=True,
        counts=c.counts,
        **MANNERS,
        class_weight=c.class_weight,
        **PLACE,
    ),
    "AdaptiveSoftmax.forward": on(head("adaptive"), "forward", **BATCH, weight=c.weights),
    "AdaptiveSoftmax.scores": on(head("adaptive"), "scores", h=c.hidden),
    "DenseOutput": new(
        zloss.DenseOutput,
        **SIZES,
        loss=lambda rng: given(c.loss("softmax")(rng), "module"),
        softmax="logits",
        bias=True,
        **PLACE,
    ),
    "DenseOutput.activations": on(head("dense"), "activations", h=c.hidden),
    "DenseOutput.forward": on(head("dense"), "forward", **BATCH, weight=c.weights),
    "DenseOutput.log_prob": on(head("dense"), "log_prob", h=c.hidden),
    "DenseOutput.logits": on(head("dense"), "logits", h=c.hidden),
    "DenseOutput.scores": on(head("dense"), "scores", h=c.hidden),
    "DenseOutput.target_log_prob": on(head("dense"), "target_log_prob", **BATCH),
    "Head": new(zloss.HierarchicalSoftmax, **SIZES, ignore_index=-100),
    "Head.class_at": on(head(), "class_at", positions=c.index),
    "Head.forward": on(head(), "forward", **BATCH, weight=c.weights),
    "Head.log_prob": on(c.likelihood, "log_prob", h=c.hidden),
    "Head.optimizer": on(
        head("dense", "gram", "adaptive"), "optimizer", name="adam", lr=0.1, weight_decay=0.01
    ),
    "Head.perplexity": on(c.likelihood, "perplexity", **BATCH),
    "Head.position_of": on(head(), "position_of", classes=c.index),
    "Head.rank": on(head(), "rank", **RANKING),
    "Head.scores": on(head(), "scores", h=c.hidden),
    "Head.sgd": on(head("dense", "gram", "factored", "adaptive"), "sgd", lr=0.1, weight_decay=0.01),
    "Head.target_log_prob": on(c.likelihood, "target_log_prob", **BATCH),
    "Head.topk": on(head(), "topk", **EVALUATION),
    "HierarchicalSoftmax": new(
        zloss.HierarchicalSoftmax,
        **SIZES,
        clusters=3,
        counts=c.counts,
        bias=True,
        implementation="torch",
        exact_rows=False,
        **MANNERS,
        class_weight=c.class_weight,
        **PLACE,
    ),
    "HierarchicalSoftmax.block_of": on(head("hierarchical"), "block_of", positions=c.index),
    "HierarchicalSoftmax.forward": on(head("hierarchical"), "forward", **BATCH, weight=c.weights),
    "HierarchicalSoftmax.scores": on(head("hierarchical"), "scores", h=c.hidden),
    "HierarchicalSoftmax.target_log_prob": on(head("hierarchical"), "target_log_prob", **BATCH),
    "SampledSoftmax": new(
        zloss.SampledSoftmax,
        **SIZES,
        num_samples=5,
        sampler="unigram",
        counts=c.counts,
        power=0.5,
        loss="softmax",
        remove_accidental_hits=True,
        generator=generator,
        bias=True,
        **MANNERS,
        class_weight=c.class_weight,
        **PLACE,
    ),
    "SampledSoftmax.activations": on(head("sampled"), "activations", h=c.hidden),
    "SampledSoftmax.forward": on(head("sampled"), "forward", **BATCH, weight=c.weights),
    "SampledSoftmax.logits": on(head("sampled"), "logits", h=c.hidden),
    "SampledSoftmax.scores": on(head("sampled"), "scores", h=c.hidden),
    "SharedNegatives": new(
        zloss.SharedNegatives,
        num_classes=CLASSES,
        num_samples=5,
        sampler="unigram",
        counts=c.counts,
        power=0.5,
        strength=0.5,
        scored_by="z",
        scale=2.0,
        device=PLACE["device"],
    ),
    "SharedNegatives.forward": on(
        c.negatives, "forward", layer=c.factored, h=c.hidden, stats=c.statistics
    ),
    "SphericalOutput": new(
        zloss.SphericalOutput,
        layer=some_layer,
        loss=c.loss(*SPHERICAL),
        negatives=c.negatives,
    ),
    "SphericalOutput.forward": on(head("factored", "gram"), "forward", **BATCH, weight=c.weights),
    "SphericalOutput.logits": on(head("factored", "gram"), "logits", h=c.hidden),
    "SphericalOutput.optimizer": on(
        head("factored", "gram"), "optimizer", name="sgd", lr=0.1, weight_decay=0.01
    ),
    "SphericalOutput.scores": on(head("factored", "gram"), "scores", h=c.hidden),
    "SphericalOutput.sgd": on(
        head("factored"), "sgd", lr=Given(None, Kind.NUMBER), relative_lr=0.1, weight_decay=0.01
    ),
    "softmax_implementations": new(zloss.softmax_implementations, device=torch.device("cpu")),
}

HEAD_CALLS |= {
    "balanced_weights": new(zloss.balanced_weights, counts=c.counts, balance=0.5, largest=5.0),
    "Clustering": new(
        zloss.Clustering,
        order=lambda _: given(torch.randperm(CLASSES), "int32"),
        sizes=lambda _: [5, 7],
    ),
    "Clustering.by_frequency": new(zloss.Clustering.by_frequency, counts=c.counts, num_clusters=3),
    "Clustering.by_labels": new(zloss.Clustering.by_labels, labels=labels),
    "Clustering.in_order": new(zloss.Clustering.in_order, num_classes=CLASSES, num_clusters=3),
    "Clustering.shuffled": new(
        zloss.Clustering.shuffled, num_classes=CLASSES, num_clusters=3, seed=1
    ),
    "HeadConfig": new(
        zloss.HeadConfig,
        head="sampled",
        loss=given("nce", "None", "empty text"),
        options={"num_samples": 5},
        **MANNERS,
    ),
    "HeadConfig.build": on(counting, "build", **SIZES, counts=c.counts, **PLACE),
    "HeadConfig.build_negatives": on(
        lambda _: zloss.HeadConfig(options={"negatives": 5}),
        "build_negatives",
        num_classes=CLASSES,
        device=PLACE["device"],
    ),
    "HeadConfig.build_loss": on(
        dense_config, "build_loss", num_classes=CLASSES, class_weight=c.class_weight
    ),
    "HeadConfig.from_dict": new(
        zloss.HeadConfig.from_dict, values=lambda rng: given(values(rng), "dict")
    ),
    "HeadConfig.loss_options": on(config, "loss_options", num_classes=CLASSES),
    "LogUniformSampler": new(
        zloss.LogUniformSampler, num_classes=CLASSES, counts=c.counts, device=PLACE["device"]
    ),
    "UniformSampler": new(zloss.UniformSampler, num_classes=CLASSES, device=PLACE["device"]),
    "UnigramSampler": new(zloss.UnigramSampler, counts=c.counts, power=0.5, device=PLACE["device"]),
}
for _name, _make in (
    ("LogUniformSampler", c.log_uniform),
    ("UniformSampler", c.uniform),
    ("UnigramSampler", c.unigram),
):
    HEAD_CALLS |= {
        f"{_name}.draw": on(_make, "draw", num_samples=5, generator=generator),
        f"{_name}.follow_": on(_make, "follow_", device=PLACE["device"]),
        f"{_name}.log_prob": on(_make, "log_prob", classes=c.index),
    }
