"""Feed-forward n-gram language models: concatenated embeddings of the context, hidden layers, and any head.

    network = NgramNetwork(NetworkConfig(), num_classes=10_000)
    optimizers = network.optimizers("sgd", lr=1.0, output_lr=20.0)
    loss = network.learn(context, target, optimizers)       # (B, n), (B,) -> ()

The trunk is the part below the head. Its products may be in TF32 or bfloat16, its parameters are float32, and the
input of the head is float32. Gradients of the embeddings are sparse tensors, with rows for the words of the batch only.

The embeddings start normal with standard deviation `embedding_scale`. The weights of hidden layers start normal with
variance 2 / fan-in (He et al., 2015), and the biases start at 0. So the activations of all layers are as large as the
embeddings. The head starts with its usual weights times `output_scale`.

Shape letters: B examples, n words of context, E width of an embedding, H width of the last hidden layer, C classes.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer, SparseAdam

from zloss.heads import Head, HeadConfig, SphericalOutput
from zloss.heads.defaults import OptimizerName
from zloss.layers import FactoredLinear
from zloss.names import check_name
from zloss.optim import RowSGD, clip_grad_norm_
from zloss.precision import tf32_products
from zloss.streams import Branch
from zloss_lab.hidden import HiddenSGD, RectifiedLinear

TrunkPrecision = Literal["float32", "tf32", "bf16"]
HeadPrecision = Literal["float32", "tf32"]
TrunkOptimizer = Literal["sgd", "adam"]

_WIDEST = 2**24  # a single layer of this width would have more weights than any machine can hold
# Heads whose initial weights may be multiplied by `output_scale`.
SCALABLE_HEADS = ("dense", "factored", "gram")


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """The shape of a network.

    Args:
        context: n, the number of words that the next word is predicted from.
        embedding: E, the width of the embedding of a word.
        hidden: widths of the hidden layers. The last one is H.
        dropout: share of the activations of each hidden layer that are dropped in training.
        embedding_scale: standard deviation of the initial embeddings.
        output_scale: factor of the initial weights of the head, for the heads in `SCALABLE_HEADS`.
        precision: precision of the products of the trunk. "tf32" has an effect on GPUs only.
        head_precision: precision of the products of the head in training. It has no effect on a factored head, which
            sets its own precision.
        head: the output layer and its loss.
    """

    context: int = 6
    embedding: int = 128
    hidden: tuple[int, ...] = (512, 256)
    dropout: float = 0.0
    # In short runs on Penn Treebank (600 steps, one seed) 0.1 was better than 1; 0.03 and 0.3 were about equal to it.
    embedding_scale: float = 0.1
    output_scale: float = 1.0
    precision: TrunkPrecision = "float32"
    head_precision: HeadPrecision = "float32"
    head: HeadConfig = field(default_factory=lambda: HeadConfig(options={"a": 0.2, "b": 10.0}))

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))
        sizes = (self.context, self.embedding, *self.hidden)
        if not 1 <= min(sizes) <= max(sizes) <= _WIDEST:
            raise ValueError(
                f"context, embedding and the widths of hidden layers must be at least 1 and at most {_WIDEST:,}, got "
                f"{self.context}, {self.embedding} and {self.hidden}"
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {self.dropout}")
        for name in ("embedding_scale", "output_scale"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ValueError(f"{name} must be a finite number > 0, got {getattr(self, name)}")
        if self.output_scale != 1 and self.head.head not in SCALABLE_HEADS:
            raise ValueError(
                f"output_scale={self.output_scale} is for the heads {', '.join(SCALABLE_HEADS)}: the {self.head.head} "
                "head starts at a scale of its own; set network.output_scale=1"
            )
        check_name("precision", self.precision, get_args(TrunkPrecision))
        check_name("head_precision", self.head_precision, get_args(HeadPrecision))
        if self.head.ignore_index >= 0:
            raise ValueError(
                f"head.ignore_index={self.head.ignore_index} would leave out a word of the vocabulary: in training and "
                "evaluation every word of the text is to be predicted; leave it at a negative number, such as -100"
            )
        if self.head.reduction == "none":
            raise ValueError(
                'head.reduction must be "mean" or "sum", got "none": training needs one number a batch'
            )

    @property
    def sizes(self) -> tuple[int, ...]:
        """The width of each layer below the output: the concatenated embeddings, then the hidden layers."""
        return (self.context * self.embedding, *self.hidden)


class NgramNetwork(nn.Module):
    """A language model that predicts a word from the n words before it.

    Args:
        config: shape of the network.
        num_classes: C, the number of words in the vocabulary.
        counts: number of occurrences of each word, (C,). Some heads use them to treat frequent words differently.
        device: device of the parameters.

    >>> network = NgramNetwork(NetworkConfig(context=3, embedding=4, hidden=(8,)), 100)
    >>> context, target = torch.randint(100, (5, 3)), torch.randint(100, (5,))
    >>> network(context, target).backward()
    >>> network.hidden(context).shape, network.head.rank(network.hidden(context), target).shape
    (torch.Size([5, 8]), torch.Size([5]))
    """

    def __init__(
        self,
        config: NetworkConfig,
        num_classes: int,
        *,
        counts: Tensor | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.config, self.num_classes = config, num_classes
        self.embedding = nn.Embedding(num_classes, config.embedding, sparse=True, device=device)
        tf32 = config.precision == "tf32"
        self.layers = nn.ModuleList(
            RectifiedLinear(*widths, tf32=tf32, device=device) for widths in pairwise(config.sizes)
        )
        self.dropout = nn.Dropout(config.dropout)
        self.head: Head = config.head.build(
            config.sizes[-1], num_classes, counts=counts, device=device
        )
        scale_head(self.head, config.output_scale)
        self.reset_trunk()

    @torch.no_grad()
    def reset_trunk(self) -> None:
        """Draw new weights for all layers except the output."""
        self.embedding.weight.normal_(std=self.config.embedding_scale)
        for layer in self.layers:
            assert isinstance(layer, nn.Linear)
            layer.weight.normal_(std=math.sqrt(2 / layer.in_features))
            layer.bias.zero_()

    def forward(
        self,
        context: Tensor,  # (B, n) integers
        target: Tensor,  # (B,) integers
    ) -> Tensor:
        """The loss of a batch."""
        loss: Tensor = self.head(self.hidden(context), target)
        return loss

    def hidden(self, context: Tensor) -> Tensor:  # (B, n) -> (B, H)
        """Return the output of the last hidden layer, which is the input of the head."""
        self._check(context)
        h = self.embedding(context).flatten(1)
        with self._products(h.device):
            for layer in self.layers:
                h = self.dropout(layer(h))
        result: Tensor = h.float()
        return result

    def learn(
        self,
        context: Tensor,  # (B, n) integers
        target: Tensor,  # (B,) integers
        optimizers: Sequence[Optimizer],
        *,
        clip: float | None = None,
        head_products: Callable[[], AbstractContextManager[Any]] | None = None,
    ) -> Tensor:
        """Train on one batch, and return its loss before the step.

        In a CUDA graph, the step of the head runs in parallel with the backward pass of the trunk, because neither
        fills the GPU alone.

        Args:
            context, target: the batch.
            optimizers: the list that the method `optimizers` returned.
            clip: the largest norm of the gradient of the whole network. None does not clip.
            head_products: makes a context manager for the computations of the head. It replaces the context that
                sets `head_precision`.
        """
        *of_trunk, of_head = optimizers
        if clip is not None and any(isinstance(optimizer, HiddenSGD) for optimizer in of_trunk):
            raise ValueError(
                f"clip={clip} needs the gradients of all layers, but these optimizers make none for hidden layers: use "
                "network.optimizers(..., forms_gradients=True)"
            )
        hidden, branch = self.hidden(context), Branch()
        top = hidden.detach().requires_grad_()
        with (head_products or self._head_products)():
            loss: Tensor = self.head(top, target)
            loss.backward()
        if clip is None:
            with branch.open():
                of_head.step()
        hidden.backward(top.grad)
        if clip is not None:
            clip_grad_norm_(self, clip)
            of_head.step()
        for optimizer in of_trunk:
            optimizer.step()
        branch.join()
        for optimizer in optimizers:
            optimizer.zero_grad()
        return loss.detach()

    def optimizers(
        self,
        trunk: TrunkOptimizer = "sgd",
        *,
        lr: float,
        output: OptimizerName = "sgd",
        output_lr: float | None = None,
        weight_decay: float = 0.0,
        output_weight_decay: float = 0.0,
        forms_gradients: bool = True,
    ) -> list[Optimizer]:
        """Return optimizers that together train the whole network. The last one is for the head.

        Args:
            trunk: "sgd" or "adam" for all layers below the head. A CUDA graph can capture "sgd" only.
            lr: learning rate of the trunk.
            output: "sgd", "adagrad" or "adam" for the head. A factored head takes "sgd" only.
            output_lr: learning rate of the head. The default is the relative rate 1 under a factored Z-loss, else `lr`.
            weight_decay: weight decay of the hidden layers. The embeddings have none: it would change every row.
            output_weight_decay: weight decay of the head. Heads with row-sparse gradients refuse it.
            forms_gradients: make gradients of the hidden layers in memory, which clipping needs and SGD does not.
        """
        check_name("optimizer", trunk, get_args(TrunkOptimizer))
        rows, dense = list(self.embedding.parameters()), list(self.layers.parameters())
        optimizers: list[Optimizer] = [RowSGD(rows, lr) if trunk == "sgd" else SparseAdam(rows, lr)]
        if dense and trunk == "sgd" and not forms_gradients:
            layers = [layer for layer in self.layers if isinstance(layer, RectifiedLinear)]
            optimizers.append(HiddenSGD(layers, lr, weight_decay=weight_decay))
        elif dense and trunk == "sgd":
            # A fused step applies the weight decay in the same kernel launch.
            fused = True if dense[0].is_cuda else None
            optimizers.append(SGD(dense, lr=lr, weight_decay=weight_decay, fused=fused))
        elif dense:
            optimizers.append(Adam(dense, lr=lr, weight_decay=weight_decay))
        output_lr = lr if output_lr is None and not self.head.has_relative_rates else output_lr
        of_head = self.head.optimizer(output, lr=output_lr, weight_decay=output_weight_decay)
        return [*optimizers, of_head]

    def _products(self, device: torch.device) -> AbstractContextManager[Any]:
        # A cache of converted weights saves nothing, because each weight is used once, and it disturbs CUDA graphs.
        is_bf16 = self.config.precision == "bf16"
        return (
            torch.autocast(device.type, torch.bfloat16, cache_enabled=False)
            if is_bf16
            else nullcontext()
        )

    def _head_products(self) -> AbstractContextManager[Any]:
        return tf32_products(self.config.head_precision == "tf32")

    def _check(self, context: Tensor) -> None:
        if context.dim() != 2 or context.shape[1] != self.config.context:
            raise ValueError(
                f"context must have shape (B, {self.config.context}), got {tuple(context.shape)}"
            )
        if context.is_floating_point() or context.is_complex() or context.dtype == torch.bool:
            raise ValueError(f"context must hold integer class indices, got dtype {context.dtype}")
        # On a GPU the check would wait for the device.
        if context.device.type == "cpu" and context.numel():
            least, most = (int(bound) for bound in context.aminmax())
            if least < 0 or most >= self.num_classes:
                bad = least if least < 0 else most
                raise ValueError(
                    f"word {bad} of a context is out of range: expected 0 <= word < {self.num_classes}"
                )

    def extra_repr(self) -> str:
        return f"sizes={[*self.config.sizes, self.num_classes]}, precision={self.config.precision}"


@torch.no_grad()
def scale_head(head: Head, factor: float) -> None:
    """Multiply all weights and the bias of a head by a factor. Other factors than 1 are for the `SCALABLE_HEADS`."""
    if factor == 1:  # also for a head that cannot be scaled
        return
    for parameter in head.parameters():
        parameter.mul_(factor)
    if isinstance(head, SphericalOutput) and isinstance(head.layer, FactoredLinear):
        head.layer.adopt_rows()  # the statistics of the layer were made from the old rows
