"""One way to build any head: a small config that the lab, the benchmarks and a user's script all share.

    [head]                          zloss.HeadConfig.from_dict({"head": "sampled", "loss": "nce", "num_samples": 256})
    head = "sampled"                    .build(512, 10_000, counts=counts)
    loss = "nce"
    num_samples = 256

`HEADS` and `LOSSES` are the registries. A head names the losses that it can train and says why no others; a pair that
cannot work is refused with that reason and with what to use instead.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor, nn

from zloss.heads.adaptive import AdaptiveSoftmax
from zloss.heads.clustering import Clustering
from zloss.heads.dense import DenseOutput
from zloss.heads.head import Head
from zloss.heads.hierarchical import HierarchicalSoftmax
from zloss.heads.sampled import SampledSoftmax
from zloss.heads.samplers import Sampler
from zloss.heads.spherical import SphericalOutput
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
from zloss.losses.reduction import Reduction, check_reduction
from zloss.names import check_name
from zloss.targets import IGNORE_INDEX

Start = float | Callable[[int], float]  # a value, or one that depends on the number of classes


@dataclass(frozen=True)
class LossKind:
    """A loss by name: how it is made, and its hyper-parameters with the values to start from."""

    make: Callable[..., nn.Module] | None  # None where the loss is the head's own doing
    options: Mapping[str, Start] = field(default_factory=dict)

    def starts(self, num_classes: int) -> dict[str, float]:
        """The values to start from with so many classes.

        >>> LOSSES["z_loss"].starts(200_000)
        {'a': 0.0224, 'b': 10.0}
        """
        return {
            name: start(num_classes) if callable(start) else start
            for name, start in self.options.items()
        }


def _softness(num_classes: int) -> float:
    """Of the Z-loss: relative to the largest z that there can be, it is the same for any number of classes."""
    return float(f"{10 / math.sqrt(max(num_classes, 1)):.3g}")  # layers refuse fewer


def _z_normalized(loss: type[nn.Module]) -> Callable[..., nn.Module]:
    return lambda a, b=0.0, **options: ZNormalized(loss(**options), a=a, b=b)


LOSSES: dict[str, LossKind] = {
    "z_loss": LossKind(ZLoss, {"a": _softness, "b": 10.0}),
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


# What an option may be. An object of the library, such as a `Clustering`, may stand for a number or a name of it.
_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(
        ("bias", "synchronous", "exact_rows", "head_bias", "remove_accidental_hits"), (bool,)
    ),
    **dict.fromkeys(("a", "b", "eps", "max_condition", "div_value", "power"), (Real,)),
    **dict.fromkeys(("softmax", "implementation"), (str,)),
    "num_samples": (Integral,),
    "clusters": (Integral, Clustering),
    "sampler": (str, Sampler),
    "cutoffs": (list, tuple),
}
_IN_WORDS = {
    bool: "true or false",
    Real: "a number",
    Integral: "a whole number",
    str: "a name",
    list: "a list",
}


def _check_type(name: str, value: Any) -> None:
    types = _TYPES[name]
    is_flag = isinstance(value, bool)  # which Python takes for a number too
    if is_flag != (types == (bool,)) or not isinstance(value, types):
        raise ValueError(f"option {name} must be {_IN_WORDS[types[0]]}, got {value!r}")


@dataclass(frozen=True)
class HeadKind:
    """A head by name."""

    make: Callable[..., Head]  # of (in_features, num_classes, config, **options)
    losses: tuple[str, ...]  # that it can train, the default first
    why: str  # it can train no others
    options: tuple[str, ...]
    takes_counts: bool = False


def _factored(in_features: int, num_classes: int, config: "HeadConfig", **options: Any) -> Head:
    layer = FactoredLinear(in_features, num_classes, ignore_index=config.ignore_index, **options)
    return SphericalOutput(layer, config.build_loss(num_classes))


def _gram(in_features: int, num_classes: int, config: "HeadConfig", **options: Any) -> Head:
    layer = GramLinear(in_features, num_classes, ignore_index=config.ignore_index, **options)
    return SphericalOutput(layer, config.build_loss(num_classes))


def _dense(in_features: int, num_classes: int, config: "HeadConfig", **options: Any) -> Head:
    return DenseOutput(in_features, num_classes, loss=config.build_loss(num_classes), **options)


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
        _factored, SPHERICAL, _NO_LOGITS, ("bias", "max_condition", "synchronous")
    ),
    "gram": HeadKind(_gram, SPHERICAL, _NO_LOGITS, ("bias",)),
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
assert _TYPES.keys() == {name for options in _OPTIONS for name in options}


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """A head and a loss by name, with their options.

    Args:
        head: "factored", "gram", "dense", "hierarchical", "adaptive" or "sampled".
        loss: by default the head's first: "z_loss" for factored and gram, "softmax" for the others.
        options: of the head and of the loss in one mapping, such as `{"a": 0.2, "b": 9.0}` or `{"num_samples": 256}`.
            The Z-loss has a = 10 / sqrt(C) and b = 10 where nothing is said.
        reduction: "mean" over the rows that are not ignored, "sum", or "none" for one value per example.
        ignore_index: the target that counts for nothing.

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
        if not self.loss:
            object.__setattr__(self, "loss", HEADS[self.head].losses[0])
        check_name("loss", self.loss, LOSSES)
        self._check_pair()
        check_reduction(self.reduction)
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
            _check_type(name, value)
        if not isinstance(self.ignore_index, int):
            raise ValueError(f"ignore_index must be a whole number, got {self.ignore_index!r}")

    def _check_pair(self) -> None:
        kind = HEADS[self.head]
        if self.loss not in kind.losses:
            able = [name for name, other in HEADS.items() if self.loss in other.losses]
            raise ValueError(
                f"the {self.head} head cannot train {self.loss}: {kind.why}; it trains "
                f"{', '.join(kind.losses)}; for {self.loss} use one of {', '.join(able)}"
            )

    def _known_options(self) -> list[str]:
        return [*HEADS[self.head].options, *LOSSES[self.loss].options]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "HeadConfig":
        """From one flat mapping, such as a table of a TOML file: what is not a field is an option.

        TOML has no word for none: "none" is as if nothing had been said.

        >>> HeadConfig.from_dict({"head": "sampled", "num_sample": 256})
        Traceback (most recent call last):
            ...
        ValueError: unknown option of head 'sampled' with loss 'softmax': 'num_sample'; did you mean 'num_samples'?
        known: bias, num_samples, sampler, power, remove_accidental_hits
        """
        own = {
            name: value
            for name, value in values.items()
            if name in ("head", "loss", "reduction", "ignore_index")
        }
        others = {name: value for name, value in values.items() if name not in own}
        return cls(
            **own,
            options={name: None if value == "none" else value for name, value in others.items()},
        )

    def to_dict(self) -> dict[str, Any]:
        """The flat mapping that `from_dict` takes."""
        own = {
            "head": self.head,
            "loss": self.loss,
            "reduction": self.reduction,
            "ignore_index": self.ignore_index,
        }
        return own | dict(self.options)

    def build(
        self,
        in_features: int,
        num_classes: int,
        *,
        counts: Tensor | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Head:
        """A new head. `counts` says how often each class occurs; heads that have no use for it ignore it."""
        kind = HEADS[self.head]
        options = {name: value for name, value in self.options.items() if name in kind.options}
        if kind.takes_counts:
            options["counts"] = counts
        return kind.make(in_features, num_classes, self, device=device, dtype=dtype, **options)

    def build_loss(self, num_classes: int) -> Any:
        """The loss on its own."""
        make = LOSSES[self.loss].make
        if make is None:
            raise ValueError(
                f"{self.loss} does not exist on its own: it is part of the {self.head} head"
            )
        return make(**self.loss_options(num_classes), **self.manners)

    def loss_options(self, num_classes: int) -> dict[str, Any]:
        """All hyper-parameters of the loss: those given, and of the others what is good to start from."""
        starts = LOSSES[self.loss].starts(num_classes)
        return {name: self.options.get(name, start) for name, start in starts.items()}

    @property
    def manners(self) -> dict[str, Any]:
        """What every loss takes."""
        return {"reduction": self.reduction, "ignore_index": self.ignore_index}
