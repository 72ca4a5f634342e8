"""One way to build any head: a small config that the lab, the benchmarks and the scripts of users share.

    [head]                          zloss.HeadConfig.from_dict({"head": "sampled", "loss": "nce", "num_samples": 256})
    head = "sampled"                    .build(512, 10_000, counts=counts)
    loss = "nce"
    num_samples = 256

`HEADS` and `LOSSES` are the registries. Each head lists the losses that it can train, with the reason why it cannot
train others. A config refuses a pair that cannot work. Its message gives the reason and the heads that do work.
"""

# Long because the two registries and the config that refuses wrong pairs of their entries are read together.
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from zloss.heads.adaptive import AdaptiveSoftmax
from zloss.heads.balance import weights_for
from zloss.heads.dense import DenseOutput
from zloss.heads.head import Head
from zloss.heads.hierarchical import HierarchicalSoftmax
from zloss.heads.negatives import SharedNegatives
from zloss.heads.option_types import OPTION_TYPES, check_option
from zloss.heads.sampled import SampledSoftmax
from zloss.heads.spherical import SphericalOutput
from zloss.inputs import check_mapping, check_sizes, check_whole
from zloss.layers import FactoredLinear, GramLinear
from zloss.losses import (
    SigmoidCrossEntropy,
    SoftmaxCrossEntropy,
    SphericalSoftmax,
    SquaredError,
    TaylorSoftmax,
    ZLoss,
    ZNormalized,
)
from zloss.losses.functions import default_a, default_b
from zloss.losses.reduction import Reduction, check_reduction
from zloss.names import check_name
from zloss.targets import IGNORE_INDEX, check_ignore_index

Start = float | Callable[[int], float]  # a value, or one that depends on the number of classes


@dataclass(frozen=True)
class LossKind:
    """An entry of `LOSSES`: the function that makes a loss, and its hyper-parameters with good first values."""

    make: Callable[..., nn.Module] | None  # None if the loss is a part of its head
    options: Mapping[str, Start] = field(default_factory=dict)

    def starts(self, num_classes: int) -> dict[str, float]:
        """Return good first values of the hyper-parameters for this number of classes.

        >>> LOSSES["z_loss"].starts(200_000)
        {'a': 0.0224, 'b': 10.0}
        """
        return {
            name: start(num_classes) if callable(start) else start
            for name, start in self.options.items()
        }


def _z_normalized(loss: type[nn.Module]) -> Callable[..., nn.Module]:
    return lambda a, b=0.0, **options: ZNormalized(loss(**options), a=a, b=b)


LOSSES: dict[str, LossKind] = {
    "z_loss": LossKind(ZLoss, {"a": default_a, "b": default_b}),
    "squared_error": LossKind(SquaredError),
    "taylor_softmax": LossKind(TaylorSoftmax),
    "spherical_softmax": LossKind(SphericalSoftmax, {"eps": 0.1}),
    "softmax": LossKind(SoftmaxCrossEntropy),
    "sigmoid": LossKind(SigmoidCrossEntropy, {"b": 0.0}),
    "z_softmax": LossKind(_z_normalized(SoftmaxCrossEntropy), {"a": 1.0}),
    "z_sigmoid": LossKind(_z_normalized(SigmoidCrossEntropy), {"a": 1.0, "b": 0.0}),
    "nce": LossKind(None),
}
SPHERICAL = ("z_loss", "squared_error", "taylor_softmax", "spherical_softmax")
DENSE = ("softmax", "sigmoid", "z_softmax", "z_sigmoid", *SPHERICAL)


@dataclass(frozen=True)
class HeadKind:
    """An entry of `HEADS`: the function that makes a head, its losses and its options."""

    make: Callable[..., Head]  # called with (in_features, num_classes, config, **options)
    losses: tuple[str, ...]  # the losses that it can train, with the default first
    why: str  # the reason why it cannot train other losses
    options: tuple[str, ...]  # besides `balance`, which every head has
    takes_counts: bool = False  # True if it takes the counts of the classes


def _factored(
    in_features: int, num_classes: int, config: "HeadConfig", class_weight: Any, **options: Any
) -> Head:
    negatives = config.build_negatives(num_classes, options["device"])
    layer = FactoredLinear(in_features, num_classes, ignore_index=config.ignore_index, **options)
    return SphericalOutput(layer, config.build_loss(num_classes, class_weight), negatives)


def _gram(
    in_features: int, num_classes: int, config: "HeadConfig", class_weight: Any, **options: Any
) -> Head:
    negatives = config.build_negatives(num_classes, options["device"])
    layer = GramLinear(in_features, num_classes, ignore_index=config.ignore_index, **options)
    return SphericalOutput(layer, config.build_loss(num_classes, class_weight), negatives)


def _dense(
    in_features: int, num_classes: int, config: "HeadConfig", class_weight: Any, **options: Any
) -> Head:
    loss = config.build_loss(num_classes, class_weight)
    return DenseOutput(in_features, num_classes, loss=loss, **options)


def _hierarchical(in_features: int, num_classes: int, config: "HeadConfig", **options: Any) -> Head:
    return HierarchicalSoftmax(in_features, num_classes, **config.manners, **options)


def _adaptive(in_features: int, num_classes: int, config: "HeadConfig", **options: Any) -> Head:
    return AdaptiveSoftmax(in_features, num_classes, **config.manners, **options)


def _sampled(in_features: int, num_classes: int, config: "HeadConfig", **options: Any) -> Head:
    loss: Any = config.loss  # one of the names in `HEADS`
    return SampledSoftmax(in_features, num_classes, loss=loss, **config.manners, **options)


_NO_LOGITS = (
    "it sees all classes through their sum and sum of squares alone and never forms a logit"
)
HEADS: dict[str, HeadKind] = {
    "factored": HeadKind(
        _factored, SPHERICAL, _NO_LOGITS, ("bias", "max_condition", "synchronous", "negatives")
    ),
    "gram": HeadKind(_gram, SPHERICAL, _NO_LOGITS, ("bias", "negatives")),
    "dense": HeadKind(
        _dense, DENSE, "it looks at every class and draws no noise", ("bias", "softmax")
    ),
    "hierarchical": HeadKind(
        _hierarchical,
        ("softmax",),
        "its tree is a way to factorise the probability of a softmax",
        ("bias", "clusters", "implementation", "exact_rows"),
        takes_counts=True,
    ),
    "adaptive": HeadKind(
        _adaptive,
        ("softmax",),
        "its clusters are a way to factorise the probability of a softmax",
        ("cutoffs", "div_value", "head_bias"),
        takes_counts=True,
    ),
    "sampled": HeadKind(
        _sampled,
        ("softmax", "nce"),
        "sampling stands for the sum over all classes of a softmax",
        ("bias", "num_samples", "sampler", "power", "remove_accidental_hits"),
        takes_counts=True,
    ),
}


_OPTIONS = [*(kind.options for kind in HEADS.values()), *(kind.options for kind in LOSSES.values())]
assert OPTION_TYPES.keys() == {"balance"}.union(*_OPTIONS)


_FIELDS = ("head", "loss", "reduction", "ignore_index")  # of a config, besides the options


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """A head and a loss by name, with their options.

    Args:
        head: "factored", "gram", "dense", "hierarchical", "adaptive" or "sampled".
        loss: a name in `LOSSES`. The default is "z_loss" for factored and gram, and "softmax" for the other heads.
        options: the options of the head and of the loss in one mapping, such as `{"a": 0.2, "b": 9.0}` or
            `{"num_samples": 256}`. `ZLoss` has defaults of a and b. With any head and loss, `balance` weights the
            classes by `zloss.balanced_weights(counts, balance)`. For factored and gram, `negatives` adds
            `zloss.SharedNegatives`: the object itself, or a number of uniform samples.
        reduction: "mean" over the rows that are not ignored, "sum", or "none" for one value per example.
        ignore_index: the target that is ignored.

    >>> head = HeadConfig(head="factored", options={"a": 0.2, "b": 9.0}).build(16, 1000)
    >>> head.loss
    ZLoss(a=0.2, b=9.0, reduction='mean')
    >>> HeadConfig(head="factored", loss="softmax")
    Traceback (most recent call last):
        ...
    ValueError: the factored head cannot train softmax: it sees all classes through their sum and sum of squares alone
    and never forms a logit; it trains z_loss, squared_error, taylor_softmax, spherical_softmax; for softmax use one of
    dense, hierarchical, adaptive, sampled
    """

    head: str = "factored"
    loss: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    reduction: Reduction = "mean"
    ignore_index: int = IGNORE_INDEX

    def __post_init__(self) -> None:
        check_name("head", self.head, HEADS)
        if self.loss is None or (isinstance(self.loss, str) and not self.loss):
            object.__setattr__(self, "loss", HEADS[self.head].losses[0])
        check_name("loss", self.loss, LOSSES)
        self._check_pair()
        check_reduction(self.reduction)
        check_mapping("options", self.options)
        for name in self.options:
            check_name(
                f"option of head {self.head!r} with loss {self.loss!r}", name, self._known_options()
            )
        object.__setattr__(
            self,
            "options",
            {name: value for name, value in self.options.items() if value is not None},
        )
        for name, value in self.options.items():
            check_option(name, value)
        check_ignore_index(self.ignore_index)

    def _check_pair(self) -> None:
        kind = HEADS[self.head]
        if self.loss not in kind.losses:
            able = [name for name, other in HEADS.items() if self.loss in other.losses]
            raise ValueError(
                f"the {self.head} head cannot train {self.loss}: {kind.why}; it trains "
                f"{', '.join(kind.losses)}; for {self.loss} use one of {', '.join(able)}"
            )

    def _known_options(self) -> list[str]:
        return [*HEADS[self.head].options, *LOSSES[self.loss].options, "balance"]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "HeadConfig":
        """Make a config from one flat mapping, such as a table of a TOML file. Keys that are not fields are options.

        TOML cannot express None: an option with the value "none" gets its default.

        >>> HeadConfig.from_dict({"head": "sampled", "num_sample": 256})
        Traceback (most recent call last):
            ...
        ValueError: unknown option of head 'sampled' with loss 'softmax': 'num_sample'; did you mean 'num_samples'?
        known: bias, num_samples, sampler, power, remove_accidental_hits, balance
        """
        check_mapping("values", values)
        own = {name: values[name] for name in _FIELDS if name in values}
        others = {name: value for name, value in values.items() if name not in own}
        return cls(
            **own,
            options={
                name: None if isinstance(value, str) and value == "none" else value
                for name, value in others.items()
            },
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the flat mapping that `from_dict` takes."""
        return {name: getattr(self, name) for name in _FIELDS} | dict(self.options)

    def build(
        self,
        in_features: int,
        num_classes: int,
        *,
        counts: Tensor | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Head:
        """Make a new head. `counts` are the numbers of occurrences of the classes, which not every head uses."""
        kind = HEADS[self.head]
        check_sizes(in_features, num_classes)
        own = [name for name in kind.options if name != "negatives"]
        options = {name: value for name, value in self.options.items() if name in own}
        if kind.takes_counts:
            options["counts"] = counts
        balance = self.options.get("balance", 0.0)
        options["class_weight"] = weights_for(balance, counts, num_classes, device)
        return kind.make(in_features, num_classes, self, device=device, dtype=dtype, **options)

    def build_loss(self, num_classes: int, class_weight: Tensor | None = None) -> Any:
        """Make the loss without the head. With the option `balance` it needs weights of the classes."""
        if self.options.get("balance") and class_weight is None:
            raise ValueError(
                "option balance needs weights here: class_weight=zloss.balanced_weights(counts, balance)"
            )
        make = LOSSES[self.loss].make
        if make is None:
            raise ValueError(
                f"{self.loss} does not exist on its own: it is part of the {self.head} head"
            )
        return make(**self.loss_options(num_classes), **self.manners, class_weight=class_weight)

    def build_negatives(
        self, num_classes: int, device: torch.device | str | None = None
    ) -> SharedNegatives | None:
        """Make the explicit negatives of the option `negatives`, or None without it."""
        given = self.options.get("negatives")
        if given is None or isinstance(given, SharedNegatives):
            return given
        return SharedNegatives(num_classes, num_samples=given, device=device)

    def loss_options(self, num_classes: int) -> dict[str, Any]:
        """Return all hyper-parameters of the loss: the given values, and good first values for the others."""
        check_whole("num_classes", num_classes, least=1)
        starts = LOSSES[self.loss].starts(num_classes)
        return {name: self.options.get(name, start) for name, start in starts.items()}

    @property
    def manners(self) -> dict[str, Any]:
        """The options that every loss takes."""
        return {"reduction": self.reduction, "ignore_index": self.ignore_index}
