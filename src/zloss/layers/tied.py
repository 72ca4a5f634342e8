"""Input embeddings that are the rows of the output layer."""

import torch
from torch import Tensor, nn

from zloss.inputs import INTEGERS, check_tensor, check_whole, shown
from zloss.layers.dense import DenseLinear
from zloss.layers.factored import FactoredLinear
from zloss.limits import has_other_processes


class TiedEmbedding(nn.Module):
    """An embedding without weights of its own: it looks up rows of an output layer, and trains them there.

    Stands for an `nn.Embedding` with its weight tied to an `nn.Linear`. One optimizer step of the layer takes the
    gradients of both uses. Where there is a bias, embeddings do not have it.

    The layer does not become a part of this module. The model has to hold it too, as its output, and trains, moves and
    saves it there, once. A copy of the model is tied to the layer of the copy.

    Args:
        layer: the output layer.
        padding_idx: the id that stands for nothing. It gives zeros, has no gradient, and need not be a class.

    >>> class NextItem(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.output = zloss.FactoredLinear(16, 100_000)
    ...         self.embedding = zloss.TiedEmbedding(self.output, padding_idx=-1)
    ...         self.hidden = nn.Linear(16, 16)
    ...
    ...     def forward(self, items, target):                               # (B, L), (B,)
    ...         return self.output(self.hidden(self.embedding(items).sum(1)), target)
    >>> model, loss_of = NextItem(), zloss.ZLoss(a=0.1, b=10)
    >>> optimizers = [torch.optim.Adam(model.hidden.parameters()), zloss.FactoredSGD(model.output, lr=1.0)]
    >>> loss_of(model(torch.tensor([[5, 7], [9, -1]]), torch.tensor([7, 99_999]))).backward()
    >>> for optimizer in optimizers:
    ...     optimizer.step()
    """

    def __init__(self, layer: FactoredLinear | DenseLinear, padding_idx: int | None = None) -> None:
        super().__init__()
        if not isinstance(layer, FactoredLinear | DenseLinear):
            raise ValueError(
                f"layer must be a FactoredLinear, GramLinear or DenseLinear, got {shown(layer)}; of a head, give "
                "head.layer"
            )
        if padding_idx is not None:
            check_whole("padding_idx", padding_idx)
        # In a tuple, which hides it from torch: it is a part of the model, and not of this module.
        self._tied_to = (layer,)
        self.padding_idx = padding_idx

    @property
    def layer(self) -> FactoredLinear | DenseLinear:
        """The output layer that has the rows."""
        return self._tied_to[0]

    def forward(self, ids: Tensor) -> Tensor:  # (...) -> (..., H)
        self._refuse_several_processes()
        if self.padding_idx is None:
            return self.layer.rows(ids)
        check_tensor("ids", ids, INTEGERS)
        is_padding = ids == self.padding_idx
        return self.layer.rows(torch.where(is_padding, 0, ids)).masked_fill(
            is_padding[..., None], 0
        )

    def _refuse_several_processes(self) -> None:
        is_trained = torch.is_grad_enabled() and any(
            p.requires_grad for p in self.layer.parameters()
        )
        if is_trained and isinstance(self.layer, FactoredLinear) and has_other_processes(None):
            raise ValueError(
                "TiedEmbedding does not train in several processes: each of them would give the layer the gradients "
                "of its own ids alone; train in one process, or use an nn.Embedding there"
            )

    def extra_repr(self) -> str:
        layer = self.layer
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{layer.num_classes}, {layer.in_features}, layer={type(layer).__name__}{padding}"
