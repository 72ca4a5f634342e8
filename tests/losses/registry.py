"""Every loss, its slow definition, and its place in each property registry. To test a new loss, add a row to `CASES`.

The definitions are plain Python over a list of activations `o` and the target `c`: nothing of the library is in them.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import pytest
from torch import nn

import zloss

A, B, EPS = 0.7, 1.5, 0.3  # the hyper-parameters of every case
YES, NO = True, False


def softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def z_scores(o: Sequence[float]) -> list[float]:
    mean = math.fsum(o) / len(o)
    std = math.sqrt(math.fsum((x - mean) ** 2 for x in o) / len(o))
    return [(x - mean) / std if std else 0.0 for x in o]


def z_loss(o: Sequence[float], c: int) -> float:
    return softplus(A * (B - z_scores(o)[c])) / A


def squared_error(o: Sequence[float], c: int) -> float:
    return 0.5 * math.fsum((x - (k == c)) ** 2 for k, x in enumerate(o))


def taylor_softmax(o: Sequence[float], c: int) -> float:
    numerators = [1 + x + x * x / 2 for x in o]
    return -math.log(numerators[c] / math.fsum(numerators))


def spherical(o: Sequence[float], c: int) -> float:
    numerators = [x * x + EPS for x in o]
    return -math.log(numerators[c] / math.fsum(numerators))


def sigmoid(o: Sequence[float], c: int) -> float:
    return math.fsum(softplus(-x) if k == c else softplus(x) for k, x in enumerate(o))


def log_softmax(o: Sequence[float], c: int) -> float:
    return math.log(math.fsum(math.exp(x - max(o)) for x in o)) + max(o) - o[c]


def z_log_softmax(o: Sequence[float], c: int) -> float:
    return log_softmax([A * z for z in z_scores(o)], c) / A


def z_sigmoid(o: Sequence[float], c: int) -> float:
    return sigmoid([A * z for z in z_scores(o)], c) / A


def shifted_sigmoid(o: Sequence[float], c: int) -> float:
    return sigmoid([x - B for x in o], c)


def shifted_z_sigmoid(o: Sequence[float], c: int) -> float:
    return sigmoid([A * (z - B) for z in z_scores(o)], c) / A


def normalized(
    loss: Callable[..., nn.Module], *, b: float = 0.0, **options: object
) -> zloss.ZNormalized:
    return zloss.ZNormalized(loss(**options), a=A, b=b)


class LossCase(NamedTuple):
    """A loss, its definition and its properties. `make` takes `reduction` and `ignore_index`."""

    name: str
    make: Callable[..., nn.Module]
    definition: Callable[[Sequence[float], int], float]
    # The registries: is each of these a property of the loss?
    shift_invariant: bool
    scale_invariant: bool
    spherical: bool
    probabilistic: bool  # sum_c exp(-loss(o, c)) = 1; for a Z-normalised likelihood only at a = 1
    non_negative: bool
    # Does the library reduce it: K targets, row weights, 0 for a batch without targets?
    reduced_here: bool


sigmoid_of_z = partial(normalized, zloss.SigmoidCrossEntropy)

# shift-invariant, scale-invariant, spherical, probabilistic, non-negative; reduced here
CASES = [
    LossCase("ZLoss", partial(zloss.ZLoss, a=A, b=B), z_loss, YES, YES, YES, NO, YES, YES),
    LossCase("SquaredError", zloss.SquaredError, squared_error, NO, NO, YES, NO, YES, YES),
    LossCase("TaylorSoftmax", zloss.TaylorSoftmax, taylor_softmax, NO, NO, YES, YES, YES, YES),
    LossCase(
        "SphericalSoftmax",
        partial(zloss.SphericalSoftmax, eps=EPS),
        spherical,
        NO,
        NO,
        YES,
        YES,
        YES,
        YES,
    ),
    LossCase("SigmoidCrossEntropy", zloss.SigmoidCrossEntropy, sigmoid, NO, NO, NO, NO, YES, YES),
    LossCase(
        "ShiftedSigmoid",
        partial(zloss.SigmoidCrossEntropy, b=B),
        shifted_sigmoid,
        NO,
        NO,
        NO,
        NO,
        YES,
        YES,
    ),
    LossCase(
        "SoftmaxCrossEntropy", zloss.SoftmaxCrossEntropy, log_softmax, YES, NO, NO, YES, YES, YES
    ),
    LossCase(
        "ZSoftmax",
        partial(normalized, nn.CrossEntropyLoss),
        z_log_softmax,
        YES,
        YES,
        NO,
        NO,
        YES,
        NO,
    ),
    LossCase("ZSigmoid", sigmoid_of_z, z_sigmoid, YES, YES, NO, NO, YES, YES),
    LossCase(
        "ShiftedZSigmoid", partial(sigmoid_of_z, b=B), shifted_z_sigmoid, YES, YES, NO, NO, YES, YES
    ),
    LossCase("CrossEntropyLoss", nn.CrossEntropyLoss, log_softmax, YES, NO, NO, YES, YES, NO),
]


def each(cases: Iterable[LossCase]) -> pytest.MarkDecorator:
    """Run a test once for each case, as its argument `case`."""
    return pytest.mark.parametrize("case", list(cases), ids=lambda case: case.name)


every_loss = each(CASES)
every_loss_of_the_library = each(case for case in CASES if case.make is not nn.CrossEntropyLoss)
every_loss_reduced_here = each(case for case in CASES if case.reduced_here)
every_spherical_loss = each(case for case in CASES if case.spherical)


def unregistered(names: Iterable[str], namespace: object) -> list[str]:
    """Return the concrete loss classes among `names` of `namespace` that no row of `CASES` makes."""
    registered = {type(case.make()) for case in CASES}
    candidates = [getattr(namespace, name) for name in names]
    return [
        candidate.__name__
        for candidate in candidates
        if inspect.isclass(candidate)
        and issubclass(candidate, nn.Module)
        and candidate.__module__.startswith("zloss.losses")
        and not inspect.isabstract(candidate)
        and candidate not in registered
    ]
