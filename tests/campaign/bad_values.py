"""Bad values for the arguments of public names, drawn at random: each with the verdict that it deserves.

The kind of an argument decides what may stand in its place. A number may be replaced by another number, never by a
text. Values that mean the same, such as a tensor with other strides, have to give the same result.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum, auto
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class Kind(Enum):
    """What an argument is."""

    FLAG = auto()
    WHOLE = auto()
    NUMBER = auto()
    CHOICE = auto()
    DTYPE = auto()
    DEVICE = auto()
    FLOATS = auto()  # a tensor
    CLASSES = auto()  # a tensor of numbers of classes, or of ignored ones
    COUNTS = auto()  # a tensor of other integers
    MASK = auto()  # a bool tensor
    FUNCTION = auto()
    MAPPING = auto()
    OBJECT = auto()


TENSORS = {Kind.FLOATS, Kind.CLASSES, Kind.COUNTS, Kind.MASK}


class Verdict(Enum):
    """What has to become of a call with a bad value."""

    REFUSED = auto()
    SAME = auto()  # the result of the good value
    FREE = auto()  # an error, or a result without NaN
    LOUD = auto()  # an error, or a result with or without NaN: the value is one, or overflows


@dataclass(frozen=True)
class Bad:
    """A bad value, what it is called, and its verdict."""

    label: str
    value: Any
    verdict: Verdict


class _Subclass(Tensor):
    pass


class _AnyModule(nn.Module):
    def forward(self, *_: Any) -> Tensor:
        return torch.ones(())


class _LikeAnArray:
    def __array__(self, *_: Any, **__: Any) -> Any:
        return np.ones((2, 3))


# Each with the kinds that may take it, so that not to refuse it is fine.
JUNK: dict[str, tuple[Callable[[], Any], set[Kind], Verdict]] = {
    "text": (lambda: "text", set(), Verdict.FREE),
    "empty text": (lambda: "", set(), Verdict.FREE),
    "odd text": (lambda: "\x1b[31m\u202e\n%s{}\ud800", set(), Verdict.FREE),
    "bytes": (lambda: b"\x00ab", set(), Verdict.FREE),
    "empty list": (list, set(), Verdict.FREE),
    "list": (lambda: [1], set(), Verdict.FREE),
    "nested list": (lambda: [[1.0, 2.0], [3.0]], set(), Verdict.FREE),
    "tuple": (lambda: (1, "a"), set(), Verdict.FREE),
    "dict": (lambda: {"a": 1}, set(), Verdict.FREE),
    "dict of numbers": (lambda: {1: 2}, set(), Verdict.FREE),
    "set": (lambda: {1, 2}, set(), Verdict.FREE),
    "object": (object, set(), Verdict.FREE),
    "like an array": (_LikeAnArray, set(), Verdict.FREE),
    "complex": (lambda: 1j, set(), Verdict.FREE),
    "NaN": (lambda: math.nan, set(), Verdict.FREE),
    "infinity": (lambda: math.inf, set(), Verdict.FREE),
    "minus infinity": (lambda: -math.inf, set(), Verdict.FREE),
    "True": (lambda: True, {Kind.FLAG}, Verdict.FREE),
    "False": (lambda: False, {Kind.FLAG}, Verdict.FREE),
    "zero": (lambda: 0, {Kind.WHOLE, Kind.NUMBER}, Verdict.FREE),
    "negative": (lambda: -3, {Kind.WHOLE, Kind.NUMBER}, Verdict.FREE),
    "one": (lambda: 1, {Kind.WHOLE, Kind.NUMBER}, Verdict.FREE),
    "huge": (lambda: 2**62, {Kind.WHOLE, Kind.NUMBER}, Verdict.LOUD),
    "beyond int64": (lambda: 10**30, {Kind.NUMBER}, Verdict.LOUD),
    "beyond floats": (lambda: 10**400, set(), Verdict.FREE),
    "fraction": (lambda: 1.5, {Kind.NUMBER}, Verdict.FREE),
    "negative fraction": (lambda: -0.25, {Kind.NUMBER}, Verdict.FREE),
    "tiny": (lambda: 1e-300, {Kind.NUMBER}, Verdict.LOUD),
    "rational": (lambda: Fraction(1, 3), set(), Verdict.FREE),
    "decimal": (lambda: Decimal("1.5"), set(), Verdict.FREE),
    "whole tensor": (lambda: torch.tensor(3), {Kind.NUMBER}, Verdict.FREE),
    "0-dim tensor": (lambda: torch.tensor(1.5), {Kind.NUMBER}, Verdict.FREE),
    "0-dim tensor of NaN": (lambda: torch.tensor(math.nan), set(), Verdict.FREE),
    "vector": (lambda: torch.ones(3), set(), Verdict.FREE),
    "empty tensor": (lambda: torch.ones(0), set(), Verdict.FREE),
    "array": (lambda: np.ones(3), set(), Verdict.FREE),
    "whole of numpy": (lambda: np.int64(2), {Kind.WHOLE, Kind.NUMBER}, Verdict.FREE),
    "number of numpy": (lambda: np.float32(0.5), {Kind.NUMBER}, Verdict.FREE),
    "function": (lambda: lambda *_: torch.ones(()), {Kind.FUNCTION}, Verdict.FREE),
    "type": (lambda: int, {Kind.FUNCTION}, Verdict.LOUD),
    "module": (_AnyModule, {Kind.FUNCTION}, Verdict.FREE),
    "dtype": (lambda: torch.float16, {Kind.DTYPE}, Verdict.FREE),
    "dtype of integers": (lambda: torch.int64, set(), Verdict.FREE),
    "dtype of 8 bits": (lambda: torch.float8_e4m3fn, set(), Verdict.FREE),
    "meta": (lambda: torch.device("meta"), {Kind.DEVICE}, Verdict.FREE),
    "meta by name": (lambda: "meta", {Kind.DEVICE}, Verdict.FREE),
    "device that is not there": (lambda: "cuda:99", {Kind.DEVICE}, Verdict.FREE),
}


def bad_value(
    rng: random.Random, good: Any, kind: Kind, *, takes_none: bool, may_take: set[str]
) -> Bad:
    """Draw a bad value for an argument with this good one. `may_take` names junk that means something there."""
    if kind in TENSORS and rng.random() < 0.7:
        label, (change, verdict) = rng.choice(list(_changes(kind).items()))
        return Bad(label, change(good), Verdict.FREE if label in may_take else verdict)
    if kind is Kind.MAPPING and rng.random() < 0.8:
        return _changed_entry(rng, good)
    if rng.random() < 0.05:
        return Bad("None", None, Verdict.FREE if takes_none else Verdict.REFUSED)
    label, (make, kinds, verdict) = rng.choice(list(JUNK.items()))
    if kind in TENSORS and isinstance(make(), Tensor):
        return Bad(label, make(), Verdict.LOUD)
    allowed = kind in kinds or label in may_take
    return Bad(label, make(), verdict if allowed else Verdict.REFUSED)


def _changed_entry(rng: random.Random, good: Any) -> Bad:
    """Replace one entry of a mapping, at any depth, or remove it."""
    changed = _copied(good)
    inside, path = changed, list[str]()
    while True:
        key = rng.choice(list(inside) if isinstance(inside, dict) else range(len(inside)))
        path.append(str(key))
        below = inside[key]
        if not isinstance(below, dict | list) or not below or rng.random() < 0.3:
            break
        inside = below
    if rng.random() < 0.2:
        del inside[key]
        return Bad(f"without {'.'.join(path)}", changed, Verdict.FREE)
    label, (make, _, verdict) = rng.choice(list(JUNK.items()))
    inside[key] = make()
    return Bad(f"{label} as {'.'.join(path)}", changed, verdict)


def _copied(value: Any) -> Any:
    """Return a copy of nested mappings and lists with the same things in them."""
    if isinstance(value, dict):
        return {key: _copied(entry) for key, entry in value.items()}
    return [_copied(entry) for entry in value] if isinstance(value, list) else value


# ---- changes of a good tensor ----------------------------------------------------------------------------------------


def _with(value: float) -> Callable[[Tensor], Tensor]:
    def changed(tensor: Tensor) -> Tensor:
        spoiled = tensor.detach().clone()
        spoiled.view(-1)[len(tensor) // 2] = value
        return spoiled

    return changed


def _strided(tensor: Tensor) -> Tensor:
    wide = torch.stack([tensor.detach(), tensor.detach()], -1)
    return wide[..., 0]


def _one_more_column(tensor: Tensor) -> Tensor:
    return torch.cat([tensor, tensor[..., :1]], -1)


_OF_ALL: dict[str, tuple[Callable[[Tensor], Any], Verdict]] = {
    "other strides": (_strided, Verdict.SAME),
    "a subclass": (lambda t: t.detach().as_subclass(_Subclass), Verdict.SAME),
    "sparse": (lambda t: t.detach().to_sparse(), Verdict.REFUSED),
    "nested": (lambda t: torch.nested.nested_tensor([t.detach(), t.detach()]), Verdict.REFUSED),
    "meta": (lambda t: t.detach().to("meta"), Verdict.REFUSED),
    "complex": (lambda t: t.detach().to(torch.complex64), Verdict.REFUSED),
    "a list": (lambda t: t.tolist(), Verdict.REFUSED),
    "an array": (lambda t: t.detach().numpy(), Verdict.REFUSED),
    "one number": (lambda t: t.detach().flatten()[0], Verdict.FREE),
    "one dimension more": (lambda t: t.detach()[None], Verdict.FREE),
    "no rows": (lambda t: t.detach()[:0], Verdict.FREE),
    "fewer rows": (lambda t: t.detach()[1:], Verdict.FREE),
    "one column more": (_one_more_column, Verdict.FREE),
    "quantised": (
        lambda t: torch.quantize_per_tensor(t.detach().float(), 0.1, 0, torch.qint8),
        Verdict.REFUSED,
    ),
}
_OF_FLOATS: dict[str, tuple[Callable[[Tensor], Any], Verdict]] = {
    "a parameter": (lambda t: nn.Parameter(t.detach().clone()), Verdict.SAME),
    "integers": (lambda t: t.detach().long(), Verdict.REFUSED),
    "bools": (lambda t: t.detach() > 0, Verdict.REFUSED),
    "8 bits": (lambda t: t.detach().to(torch.float8_e4m3fn), Verdict.REFUSED),
    "half": (lambda t: t.detach().half(), Verdict.FREE),
    "double": (lambda t: t.detach().double(), Verdict.FREE),
    "NaN": (_with(math.nan), Verdict.LOUD),
    "infinity": (_with(math.inf), Verdict.LOUD),
    "huge": (lambda t: t.detach() * 1e30, Verdict.LOUD),
    "zeros": (lambda t: torch.zeros_like(t), Verdict.FREE),
}
_OF_INTEGERS: dict[str, tuple[Callable[[Tensor], Any], Verdict]] = {
    "int32": (lambda t: t.int(), Verdict.SAME),
    "uint8": (lambda t: t.clamp(0, 9).to(torch.uint8), Verdict.FREE),
    "uint64": (lambda t: t.clamp_min(0).to(torch.uint64), Verdict.REFUSED),
    "floats": (lambda t: t.float(), Verdict.REFUSED),
    "bools": (lambda t: t > 0, Verdict.REFUSED),
    "negative": (_with(-7), Verdict.FREE),
    "huge": (_with(2**62), Verdict.FREE),
}


@cache
def _changes(kind: Kind) -> dict[str, tuple[Callable[[Tensor], Any], Verdict]]:
    if kind is Kind.FLOATS:
        return _OF_ALL | _OF_FLOATS
    if kind is Kind.MASK:
        floats = {"floats": (lambda t: t.float(), Verdict.REFUSED)}
        return _OF_ALL | floats | {"integers": (lambda t: t.long(), Verdict.REFUSED)}
    if kind is Kind.COUNTS:  # of how often a class occurs, say: fractions are fine there
        return _OF_ALL | _OF_INTEGERS | {"floats": (lambda t: t.float(), Verdict.FREE)}
    strict = {
        label: (change, Verdict.REFUSED)
        for label, (change, _) in _OF_INTEGERS.items()
        if label in ("negative", "huge")
    }
    return _OF_ALL | _OF_INTEGERS | strict
