"""The weights of T networks of the same shape, one tensor for each layer."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from zloss.heads import DenseOutput, Head, SphericalOutput
from zloss_lab.networks import NgramNetwork


@dataclass(frozen=True)
class HiddenWeights:
    """The weights of one hidden layer."""

    weight: Tensor  # (T, out, in)
    bias: Tensor  # (T, 1, out)


@dataclass(frozen=True)
class StackedWeights:
    """The weights of T trials.

    Shape letters: T trials, C classes, E width of an embedding, H width of the last hidden layer.
    """

    embedding: Tensor  # (T, C, E)
    hidden: tuple[HiddenWeights, ...]
    output: Tensor  # (T, C, H)

    @classmethod
    def of(cls, networks: Iterable[NgramNetwork]) -> "StackedWeights":
        """Return copies of the weights of these networks. Only one network at a time is in memory."""
        layers = zip(*(_layers_of(network) for network in networks), strict=True)
        return cls.from_tensors([torch.stack(layer) for layer in layers])

    @classmethod
    def from_tensors(cls, tensors: list[Tensor]) -> "StackedWeights":
        """Return the weights of a list of tensors, as `tensors` gives it."""
        embedding, *hidden, output = tensors
        pairs = zip(hidden[::2], hidden[1::2], strict=True)
        return cls(embedding, tuple(HiddenWeights(weight, bias) for weight, bias in pairs), output)

    def tensors(self) -> list[Tensor]:
        """Return all weights as a list, from the embeddings to the output."""
        hidden = [tensor for layer in self.hidden for tensor in (layer.weight, layer.bias)]
        return [self.embedding, *hidden, self.output]

    @property
    def trials(self) -> int:
        """The number of trials T."""
        return len(self.output)

    def select(self, rows: Tensor) -> "StackedWeights":
        """Return a copy of the weights of the trials of these rows."""
        return self.from_tensors([tensor[rows] for tensor in self.tensors()])

    def clone(self) -> "StackedWeights":
        """Return a copy of all weights."""
        return self.from_tensors([tensor.clone() for tensor in self.tensors()])

    def copy_trial_(self, row: int, source: "StackedWeights", source_row: int) -> None:
        """Overwrite the weights of a trial with the weights of another."""
        for own, other in zip(self.tensors(), source.tensors(), strict=True):
            own[row].copy_(other[source_row])

    def is_finite(self) -> Tensor:  # (T,) bool
        """Return for each trial whether all its weights are finite numbers."""
        return torch.stack([tensor.isfinite().flatten(1).all(1) for tensor in self.tensors()]).all(
            0
        )


def _layers_of(network: NgramNetwork) -> list[Tensor]:
    layers = [layer for layer in network.layers if isinstance(layer, nn.Linear)]
    hidden = [
        tensor for layer in layers for tensor in (layer.weight.detach(), layer.bias.detach()[None])
    ]
    return [network.embedding.weight.detach(), *hidden, _output_of(network.head)]


def _output_of(head: Head) -> Tensor:  # (C, H)
    if isinstance(head, DenseOutput):
        return head.linear.weight.detach()
    assert isinstance(head, SphericalOutput), "no other head stands in a stack"
    return head.layer.weight()
