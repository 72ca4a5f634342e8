"""Calls with good arguments, and the small objects of the library that they need."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import isfunction
from typing import Any

import torch
from torch import Tensor, nn

import zloss
from tests.campaign.bad_values import Kind
from zloss.layers.row_rule import RowAdagrad

WIDTH, CLASSES, ROWS = 4, 12, 6
HEADS = ("factored", "gram", "dense", "hierarchical", "adaptive", "sampled")
SPHERICAL = ("z_loss", "squared_error", "taylor_softmax", "spherical_softmax")
SIZES = {"in_features": WIDTH, "num_classes": CLASSES}
PLACE = {"device": torch.device("cpu"), "dtype": torch.float32}
MANNERS = {"reduction": "mean", "ignore_index": -100}
LISTS = ("empty list", "list", "nested list", "tuple")
TENSORS = ("whole tensor", "0-dim tensor", "0-dim tensor of NaN", "vector", "empty tensor")
ENDLESS = ("infinity", "beyond int64", "beyond floats")
_KINDS: tuple[tuple[type, Kind], ...] = (
    (bool, Kind.FLAG),  # before int, of which it is a subclass
    (int, Kind.WHOLE),
    (float, Kind.NUMBER),
    (str, Kind.CHOICE),
    (torch.dtype, Kind.DTYPE),
    (torch.device, Kind.DEVICE),
    (dict, Kind.MAPPING),
)


@dataclass(frozen=True)
class Given:
    """A good argument: its value, its kind, and the bad values that mean something in its place."""

    value: Any
    kind: Kind
    may_take: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Call:
    """A call that works, and the objects whose state a refused call must not change."""

    function: Callable[..., Any]
    arguments: dict[str, Given]
    watched: list[Any]

    def __call__(self, **changed: Any) -> Any:
        """Make the call, with some arguments changed."""
        good = {name: one.value for name, one in self.arguments.items()}
        return self.function(**good | changed)


Maker = Callable[[random.Random], Call]


def given(value: Any, *may_take: str) -> Given:
    """Return an argument of the kind that its value shows."""
    if isinstance(value, Given):
        return value
    if isinstance(value, Tensor):
        by_dtype = {torch.bool: Kind.MASK, torch.long: Kind.CLASSES}
        return Given(value, by_dtype.get(value.dtype, Kind.FLOATS), set(may_take))
    kinds = [kind for of_type, kind in _KINDS if isinstance(value, of_type)]
    return Given(value, kinds[0] if kinds else Kind.OBJECT, set(may_take))


def new(function: Callable[..., Any], **arguments: Any) -> Maker:
    """Return the maker of a call. Functions among the arguments make an argument from random numbers."""
    return lambda rng: _made(function, [], arguments, rng)


def on(make: Callable[[random.Random], Any], method: str, **arguments: Any) -> Maker:
    """Return the maker of a call of a method of an object that `make` returns."""

    def made(rng: random.Random) -> Call:
        owner = make(rng)
        return _made(getattr(owner, method), [owner], arguments, rng)

    return made


def _made(
    function: Callable[..., Any], owners: list[Any], arguments: dict[str, Any], rng: random.Random
) -> Call:
    fresh = {
        name: given(value(rng) if isfunction(value) else value) for name, value in arguments.items()
    }
    return Call(function, fresh, [*owners, *(one.value for one in fresh.values())])


# ---- tensors ---------------------------------------------------------------------------------------------------------


def hidden(_: random.Random) -> Tensor:
    return torch.randn(ROWS, WIDTH)


def targets(rng: random.Random) -> Tensor:
    return torch.randint(CLASSES, (ROWS, 2) if rng.random() < 0.3 else (ROWS,))


def logits(_: random.Random) -> Tensor:
    return torch.randn(ROWS, CLASSES)


def index(_: random.Random) -> Tensor:
    return torch.randint(CLASSES, (ROWS, 2))


def of_rows(_: random.Random) -> Tensor:
    return torch.rand(ROWS) + 1


def weights(_: random.Random) -> Given:
    return given(torch.rand(ROWS), "integers")


def counts(_: random.Random) -> Given:
    return Given(torch.randint(1, 50, (CLASSES,)), Kind.COUNTS)


def class_weight(_: random.Random) -> Given:
    return given(torch.rand(CLASSES), "integers")


def true_rows(_: random.Random) -> Tensor:
    return torch.ones(ROWS, dtype=torch.bool)


BATCH = {"h": hidden, "target": targets}
EVALUATION = {"h": hidden, "k": 3, "block_size": 5}
RANKING = BATCH | {"block_size": 5}


# ---- layers, heads, losses -------------------------------------------------------------------------------------------


def factored(rng: random.Random) -> zloss.FactoredLinear:
    """Return a layer that has stepped and has a gradient recorded."""
    return _with_gradient(rng, zloss.SquaredError())


def factored_under_z_loss(rng: random.Random) -> zloss.FactoredLinear:
    """Return such a layer with a loss that a relative learning rate suits."""
    return _with_gradient(rng, zloss.ZLoss())


def _with_gradient(rng: random.Random, loss: zloss.SphericalLoss) -> zloss.FactoredLinear:
    layer = zloss.FactoredLinear(WIDTH, CLASSES, bias=rng.random() < 0.5)
    for _ in range(2):
        layer.step_(1.0)
        loss(layer(hidden(rng), targets(rng))).backward()
    return layer


def dense(rng: random.Random) -> zloss.DenseLinear:
    return zloss.DenseLinear(WIDTH, CLASSES, bias=rng.random() < 0.5)


def gram(rng: random.Random) -> zloss.GramLinear:
    return zloss.GramLinear(WIDTH, CLASSES, bias=rng.random() < 0.5)


def linear(rng: random.Random) -> nn.Linear:
    return nn.Linear(WIDTH, CLASSES, bias=rng.random() < 0.5)


def head(*names: str, loss: str = "") -> Callable[[random.Random], zloss.Head]:
    """Return the maker of one of these heads, or of any."""

    def made(rng: random.Random) -> zloss.Head:
        name = rng.choice(names or HEADS)
        return zloss.HeadConfig(head=name, loss=loss).build(WIDTH, CLASSES)

    return made


def likelihood(rng: random.Random) -> zloss.Head:
    if rng.random() < 0.3:
        return head("factored", "gram", loss="taylor_softmax")(rng)
    return head("dense", "hierarchical", "adaptive", "sampled", loss="softmax")(rng)


def loss(*names: str) -> Callable[[random.Random], Any]:
    """Return the maker of one of these losses."""
    return lambda rng: zloss.HeadConfig(head="dense", loss=rng.choice(names)).build_loss(CLASSES)


def statistics(rng: random.Random) -> zloss.SphericalStats:
    return zloss.SphericalStats.from_logits(logits(rng), targets(rng))


def negatives(_: random.Random) -> zloss.SharedNegatives:
    return zloss.SharedNegatives(CLASSES, num_samples=5)


def sampler(rng: random.Random) -> Any:
    return rng.choice([uniform, log_uniform, unigram])(rng)


def uniform(_: random.Random) -> zloss.UniformSampler:
    return zloss.UniformSampler(CLASSES)


def log_uniform(rng: random.Random) -> zloss.LogUniformSampler:
    ordered = counts(rng).value if rng.random() < 0.5 else None
    return zloss.LogUniformSampler(CLASSES, counts=ordered)


def unigram(rng: random.Random) -> zloss.UnigramSampler:
    return zloss.UnigramSampler(counts(rng).value)


# ---- training --------------------------------------------------------------------------------------------------------


def row_rule(_: random.Random) -> RowAdagrad:
    return RowAdagrad(torch.zeros(CLASSES), ratio=0.1, eps=1e-6)


def factored_sgd(rng: random.Random) -> zloss.FactoredSGD:
    return zloss.FactoredSGD(factored(rng), 0.5)


def trunk(_: random.Random) -> Given:
    return Given(torch.optim.SGD, Kind.FUNCTION)


def whole(rng: random.Random) -> zloss.Optimizer:
    return zloss.Optimizer([factored(rng), linear(rng)], torch.optim.SGD, lr=0.1, output_lr=0.5)


def embedding(_: random.Random) -> nn.Embedding:
    layer = nn.Embedding(CLASSES, WIDTH, sparse=True)
    layer(torch.randint(CLASSES, (ROWS,))).sum().backward()
    return layer


def row_sgd(rng: random.Random) -> zloss.RowSGD:
    return zloss.RowSGD(embedding(rng).parameters(), 0.5)


def row_adam(rng: random.Random) -> zloss.RowAdam:
    return zloss.RowAdam(embedding(rng).parameters(), 0.5)


def closure(_: random.Random) -> Given:
    return Given(lambda: torch.ones(()), Kind.FUNCTION)


def function(_: random.Random) -> Given:
    return Given(lambda *inputs: torch.ones(()), Kind.FUNCTION)
