"""The way of a factored layer to another device or dtype, into copies, and into and out of checkpoints.

V and its factors make one matrix only together, and the small state has a dtype of its own. Torch moves, copies and
saves tensor by tensor and knows neither.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zloss.layers.matrix import FactoredMatrix
from zloss.layers.storage import InMemory
from zloss.layers.update import Factors

NAMES = ("V", *Factors._fields)


class Place(NamedTuple):
    """The kind of memory that V is in, and where."""

    device: torch.device
    dtype: torch.dtype
    address: int

    @classmethod
    def of(cls, V: Tensor) -> "Place":
        """Return the place of V."""
        return cls(V.device, V.dtype, V.data_ptr())

    def is_of_one_kind_with(self, other: "Place") -> bool:
        """Return whether the device and the dtype are the same."""
        return self[:2] == other[:2]


class Checkpoint:
    """The entries of a state dict for one layer, checked before anything is loaded.

    Args:
        entries: the state dict.
        prefix: before the names of this layer.
        own: the tensors of the layer by name: V and its factors.
    """

    def __init__(self, entries: dict[str, Any], prefix: str, own: dict[str, Tensor]) -> None:
        self.entries, self.prefix = entries, prefix
        given: dict[str, Any] = {name: entries.get(prefix + name) for name in own}
        fits = {n: t for n, t in own.items() if getattr(given[n], "shape", None) == t.shape}
        self._own: dict[str, Tensor] = fits
        self._given: dict[str, Tensor] = {name: given[name] for name in fits}
        self.is_whole = len(fits) == len(own)
        # Factors that were rounded to half precision no longer fit each other.
        self._blunt = [name for name, t in self._given.items() if t.dtype.itemsize < 4]
        self.is_blunt = bool(self._blunt)
        self.is_coarse = any(
            self._given[n].dtype.itemsize < t.dtype.itemsize for n, t in fits.items()
        )

    def fault(self) -> str | None:
        """Return why these entries cannot be loaded, if they cannot."""
        if not self._own:
            return None
        if not self.is_whole:
            reason = "they load together"
        elif not all(t.is_meta or t.isfinite().all() for t in self._given.values()):
            reason = "one of these has a NaN or an infinity"
        elif self.is_blunt or make_one_matrix(list(self._given.values())):
            return None
        else:
            reason = "these do not, as when factors are averaged"
        return f"V and its factors make one matrix: {reason}, so none of them was loaded"

    def loadable(self, fault: str | None) -> dict[str, Any]:
        """Return the entries to load; where there is a fault, the layer's own tensors stand for its entries."""
        kept = {name: self._given[name].to(self._own[name].dtype) for name in self._blunt}
        if fault is not None:
            kept |= self._own
        return self.entries | {self.prefix + name: tensor for name, tensor in kept.items()}


def make_one_matrix(loaded: list[Tensor]) -> bool:
    """Return whether loaded tensors, V and its factors, fit each other."""
    V, *parts = (tensor.detach() for tensor in loaded)
    dtype = torch.promote_types(parts[0].dtype, V.dtype)
    factors = Factors(*(part.to(V.device, dtype) for part in parts))
    return V.is_meta or FactoredMatrix(InMemory(V), factors, dtype).is_consistent()


def misfit(
    weight: Tensor, bias: Tensor | None, shape: tuple[int, int], has_bias: bool
) -> str | None:
    """Return why the weights of an `nn.Linear` cannot be taken by a layer of this shape, if they cannot."""
    if weight.shape != shape:
        return f"it has shape {tuple(weight.shape)} instead of {shape}"
    if (bias is not None) != has_bias:
        other = bias is not None
        return f"it has {'a' if other else 'no'} bias: build this layer with bias={other}"
    return None


def as_factors(weight: Tensor, bias: Tensor | None, like: FactoredMatrix) -> dict[str, Tensor]:
    """Return V and its factors by name, for the weights of an `nn.Linear`."""
    V = weight if bias is None else torch.cat((weight, bias[:, None]), dim=1)
    factors = replace(like, rows=InMemory(V)).plain_factors()
    return dict(zip(NAMES, (V, *factors), strict=True))
