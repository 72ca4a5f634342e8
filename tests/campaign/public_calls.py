"""A valid call of every public name of the library, from which attacks with bad input start.

`CALLS` has an entry for each line of `tests/public_names.txt` that takes an argument. `UNCALLED` says why a name that
takes arguments has none. A test fails when a name is in neither.
"""

import random
from typing import Any

import torch

import zloss
from tests.campaign import calls as c
from tests.campaign.bad_values import JUNK, Kind
from tests.campaign.calls import (
    BATCH,
    CLASSES,
    ENDLESS,
    EVALUATION,
    LISTS,
    MANNERS,
    PLACE,
    RANKING,
    ROWS,
    SIZES,
    SPHERICAL,
    TENSORS,
    Given,
    Maker,
    given,
    loss,
    new,
    on,
)
from tests.campaign.head_calls import HEAD_CALLS

ANYTHING = Given(
    True, Kind.FLAG, {"None", *JUNK}
)  # an argument of torch's interface that is not used

UNCALLED = {
    "RefusedStepError": "the library raises it, and users only read it",
    "SigmoidCrossEntropy.log_prob": "it always says that this loss is not a likelihood",
}


def int64(rng: random.Random) -> Given:
    return given(c.index(rng), "int32")


def ranks(_: random.Random) -> Given:
    return Given(torch.randint(CLASSES, (ROWS,)), Kind.COUNTS)


def recorded(rng: random.Random) -> Any:
    return c.factored(rng).recorded_gradient()


def scaler(_: random.Random) -> Any:
    return torch.amp.GradScaler("cpu", enabled=False)


def parameters(rng: random.Random) -> Any:
    return list(c.embedding(rng).parameters())


def row_group(rng: random.Random) -> dict[str, Any]:
    return {"params": parameters(rng), "lr": 0.1}


def layer_group(rng: random.Random) -> dict[str, Any]:
    return {"layers": [c.factored(rng)], "lr": 0.1}


def row_state(rng: random.Random) -> dict[str, Any]:
    return c.row_sgd(rng).state_dict()


def adam_state(rng: random.Random) -> dict[str, Any]:
    return c.row_adam(rng).state_dict()


def layer_state(rng: random.Random) -> dict[str, Any]:
    return c.factored_sgd(rng).state_dict()


def whole_state(rng: random.Random) -> dict[str, Any]:
    return c.whole(rng).state_dict()


def models(rng: random.Random) -> Given:
    return Given([c.factored_under_z_loss(rng), c.linear(rng)], Kind.OBJECT, {"module"})


def optimizers(rng: random.Random) -> Given:
    return Given([c.row_sgd(rng)], Kind.OBJECT, {"empty list"})


def clipped(rng: random.Random) -> Given:
    return Given([c.factored(rng), c.embedding(rng)], Kind.OBJECT, {*LISTS, *TENSORS, "module"})


def row_ids(rng: random.Random) -> Given:
    return given(c.index(rng), "integers", "vector", "empty tensor", "0-dim tensor")


def tied(rng: random.Random) -> zloss.TiedEmbedding:
    return zloss.TiedEmbedding(c.factored(rng), padding_idx=-1)


ROW_IDS = {"ids": row_ids, "with_bias": False}

_LAYERS: dict[str, Maker] = {
    "TiedEmbedding": new(zloss.TiedEmbedding, layer=c.factored, padding_idx=given(-1, "None")),
    "TiedEmbedding.forward": on(tied, "forward", ids=row_ids),
    "DenseLinear": new(zloss.DenseLinear, **SIZES, bias=True, **PLACE, ignore_index=-100),
    "DenseLinear.forward": on(c.dense, "forward", **BATCH),
    "DenseLinear.from_linear": new(zloss.DenseLinear.from_linear, linear=c.linear, ignore_index=-1),
    "DenseLinear.logits": on(c.dense, "logits", h=c.hidden),
    "DenseLinear.rank": on(c.dense, "rank", **RANKING),
    "DenseLinear.rows": on(c.dense, "rows", **ROW_IDS),
    "DenseLinear.scores": on(c.dense, "scores", h=c.hidden),
    "DenseLinear.topk": on(c.dense, "topk", **EVALUATION),
    "GramLinear": new(zloss.GramLinear, **SIZES, bias=True, **PLACE, ignore_index=-100),
    "GramLinear.forward": on(c.gram, "forward", **BATCH),
    "FactoredLinear": new(
        zloss.FactoredLinear,
        **SIZES,
        bias=True,
        **PLACE,
        state_dtype=torch.float64,
        product_dtype=torch.float32,
        ignore_index=-100,
        max_condition=given(50.0, *ENDLESS),
        synchronous=True,
        implementation="torch",
    ),
    "FactoredLinear.attach": on(c.factored, "attach", optimizer=c.factored_sgd, mark_has_norm=True),
    "FactoredLinear.forward": on(c.factored, "forward", **BATCH),
    "FactoredLinear.from_linear": new(
        zloss.FactoredLinear.from_linear, linear=c.linear, ignore_index=-1, synchronous=True
    ),
    "FactoredLinear.logits": on(c.factored, "logits", h=c.hidden),
    "FactoredLinear.rank": on(c.factored, "rank", **RANKING),
    "FactoredLinear.record": on(c.factored, "record", gradient=recorded),
    "FactoredLinear.rows": on(c.factored, "rows", **ROW_IDS),
    "FactoredLinear.scale_grad_": on(
        c.factored, "scale_grad_", factor=given(0.5, "0-dim tensor of NaN")
    ),
    "FactoredLinear.scores": on(c.factored, "scores", h=c.hidden),
    "FactoredLinear.step_": on(c.factored, "step_", lr=0.1, weight_decay=0.01, row_rule=c.row_rule),
    "FactoredLinear.topk": on(c.factored, "topk", **EVALUATION),
    "FactoredLinear.unscale_grad_": on(
        c.factored, "unscale_grad_", scale=given(2.0, "0-dim tensor of NaN")
    ),
    "FactoredLinear.zero_grad": on(c.factored, "zero_grad", set_to_none=ANYTHING),
}

_WEIGHTED = {"class_weight": c.class_weight}
_LOSSES: dict[str, Maker] = {
    "SphericalLoss": new(zloss.SquaredError, **MANNERS, **_WEIGHTED),
    "SphericalLoss.forward": on(
        loss(*SPHERICAL), "forward", input=c.logits, target=c.targets, weight=c.weights
    ),
    "SphericalLoss.log_prob": on(loss("taylor_softmax"), "log_prob", logits=c.logits),
    "SphericalLoss.per_example": on(loss(*SPHERICAL), "per_example", stats=c.statistics),
    "SphericalLoss.score": on(loss(*SPHERICAL), "score", logits=c.logits),
    "ZLoss": new(zloss.ZLoss, a=0.5, b=3.0, **MANNERS, **_WEIGHTED),
    "SquaredError": new(zloss.SquaredError, **MANNERS, **_WEIGHTED),
    "TaylorSoftmax": new(zloss.TaylorSoftmax, **MANNERS, **_WEIGHTED),
    "SphericalSoftmax": new(zloss.SphericalSoftmax, eps=0.5, **MANNERS, **_WEIGHTED),
    "ZLoss.parameters_for": on(loss("z_loss"), "parameters_for", num_classes=40),
    "ZLoss.per_example": on(loss("z_loss"), "per_example", stats=c.statistics),
    "SquaredError.per_example": on(loss("squared_error"), "per_example", stats=c.statistics),
    "TaylorSoftmax.per_example": on(loss("taylor_softmax"), "per_example", stats=c.statistics),
    "SphericalSoftmax.per_example": on(
        loss("spherical_softmax"), "per_example", stats=c.statistics
    ),
    "TaylorSoftmax.score": on(loss("taylor_softmax"), "score", logits=c.logits),
    "SphericalSoftmax.score": on(loss("spherical_softmax"), "score", logits=c.logits),
    "SigmoidCrossEntropy": new(zloss.SigmoidCrossEntropy, b=0.5, **MANNERS, **_WEIGHTED),
    "SoftmaxCrossEntropy": new(zloss.SoftmaxCrossEntropy, **MANNERS, **_WEIGHTED),
    "ZNormalized": new(
        zloss.ZNormalized,
        loss=lambda rng: given(loss("softmax")(rng), "module"),
        a=2.0,
        b=0.5,
    ),
    "ZNormalized.forward": on(
        loss("z_softmax", "z_sigmoid"), "forward", logits=c.logits, target=c.targets
    ),
    "ZNormalized.log_prob": on(loss("z_softmax"), "log_prob", logits=c.logits),
    "ZNormalized.score": on(loss("z_softmax"), "score", logits=c.logits),
    "spherical_softmax": new(zloss.spherical_softmax, stats=c.statistics, eps=0.5),
    "squared_error": new(zloss.squared_error, stats=c.statistics),
    "taylor_softmax": new(zloss.taylor_softmax, stats=c.statistics),
    "z_loss": new(zloss.z_loss, stats=c.statistics, a=0.5, b=3.0),
}
for _name, _key in (("SigmoidCrossEntropy", "sigmoid"), ("SoftmaxCrossEntropy", "softmax")):
    _LOSSES |= {
        f"{_name}.forward": on(
            loss(_key), "forward", logits=c.logits, target=c.targets, weight=c.weights
        ),
        f"{_name}.per_target": on(loss(_key), "per_target", logits=c.logits, index=int64),
        f"{_name}.score": on(loss(_key), "score", logits=c.logits),
    }
_LOSSES["SoftmaxCrossEntropy.log_prob"] = on(loss("softmax"), "log_prob", logits=c.logits)

_MOMENTS = {"target": c.of_rows, "num_classes": CLASSES, "valid": c.true_rows}
_STATISTICS: dict[str, Maker] = {
    "SphericalStats": new(zloss.SphericalStats, **_MOMENTS, sum=c.of_rows, sumsq=c.of_rows),
    "SphericalStats.from_logits": new(
        zloss.SphericalStats.from_logits, logits=c.logits, target=c.targets, ignore_index=-100
    ),
    "SphericalStats.from_moments": new(
        zloss.SphericalStats.from_moments,
        **_MOMENTS,
        mean=c.of_rows,
        scatter=c.of_rows,
        classes=lambda rng: c.index(rng)[:, 0],
        once_differentiable=False,
        ignore_index=-100,
    ),
    "SphericalStats.mean_over_targets": on(
        lambda rng: zloss.SphericalStats.from_logits(
            c.logits(rng), c.targets(rng)[:, None].flatten(1)[:, 0]
        ),
        "mean_over_targets",
        values=c.of_rows,
    ),
    "SphericalStats.per_row": on(c.statistics, "per_row", vector=c.of_rows),
    "MeanReciprocalRank.update": on(lambda _: zloss.MeanReciprocalRank(), "update", ranks=ranks),
    "TopKError": new(zloss.TopKError, k=3),
    "TopKError.update": on(lambda _: zloss.TopKError(3), "update", ranks=ranks),
    "Perplexity.update": on(
        lambda _: zloss.Perplexity(), "update", log_prob=c.of_rows, counted=c.true_rows
    ),
}

_TRAINING: dict[str, Maker] = {
    "CapturedStep": new(zloss.CapturedStep, step=c.function, optimizers=optimizers),
    "FactoredSGD": new(
        zloss.FactoredSGD,
        layers=lambda rng: [c.factored(rng)],
        lr=Given(None, Kind.NUMBER),
        relative_lr=0.5,
        weight_decay=0.01,
        row_lr=0.3,
        row_eps=1e-6,
    ),
    "FactoredSGD.add_param_group": on(c.factored_sgd, "add_param_group", param_group=layer_group),
    "FactoredSGD.load_state_dict": on(c.factored_sgd, "load_state_dict", state_dict=layer_state),
    "FactoredSGD.step": on(c.factored_sgd, "step", closure=c.closure),
    "FactoredSGD.unscale_": on(c.factored_sgd, "unscale_", scaler=scaler),
    "FactoredSGD.zero_grad": on(c.factored_sgd, "zero_grad", set_to_none=ANYTHING),
    "RowAdam": new(
        zloss.RowAdam, params=parameters, lr=0.5, betas=given((0.5, 0.9), "list"), eps=1e-3
    ),
    "RowAdam.add_param_group": on(c.row_adam, "add_param_group", param_group=row_group),
    "RowAdam.load_state_dict": on(c.row_adam, "load_state_dict", state_dict=adam_state),
    "RowAdam.step": on(c.row_adam, "step", closure=c.closure),
    "Optimizer": new(
        zloss.Optimizer,
        model=models,
        trunk=c.trunk,
        output_lr=0.5,
        output_relative_lr=Given(None, Kind.NUMBER),
        output_weight_decay=0.01,
        output_row_lr=0.3,
    ),
    "Optimizer.add_param_group": on(c.whole, "add_param_group", param_group=layer_group),
    "Optimizer.load_state_dict": on(c.whole, "load_state_dict", state_dict=whole_state),
    "Optimizer.step": on(c.whole, "step", closure=c.closure),
    "Optimizer.zero_grad": on(c.whole, "zero_grad", set_to_none=True),
    "RowSGD": new(zloss.RowSGD, params=parameters, lr=0.5),
    "RowSGD.add_param_group": on(c.row_sgd, "add_param_group", param_group=row_group),
    "RowSGD.load_state_dict": on(c.row_sgd, "load_state_dict", state_dict=row_state),
    "RowSGD.step": on(c.row_sgd, "step", closure=c.closure),
    "clip_grad_norm_": new(
        zloss.clip_grad_norm_,
        params_and_layers=clipped,
        max_norm=given(1.0, *ENDLESS),
        error_if_nonfinite=True,
    ),
    "gather_batch": new(
        zloss.gather_batch,
        h=c.hidden,
        target=ranks,
        group=Given(None, Kind.OBJECT),
        equal_rows=True,
    ),
}

CALLS: dict[str, Maker] = {
    **_LAYERS,
    **HEAD_CALLS,
    **_LOSSES,
    **_STATISTICS,
    **_TRAINING,
}
