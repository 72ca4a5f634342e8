"""Plain SGD on parameters with row-sparse gradients."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from zloss import kernels
from zloss.inputs import check_rates
from zloss.optim.checked_optimizer import CheckedOptimizer
from zloss.optim.groups import listed_groups


class RowSGD(CheckedOptimizer):
    """Plain SGD for parameters with row-sparse gradients: the steps of `torch.optim.SGD(parameters, lr)`.

    On a GPU, one pass over the rows adds a coalesced sparse gradient, such as the one of `HierarchicalSoftmax`. That is
    twice as fast as torch's own addition. One pass also adds a float32 gradient with repeated rows, such as the one of
    `nn.Embedding(sparse=True)`. The sums of repeated rows are then taken in no fixed order, so this way is not used if
    torch is set to deterministic algorithms. All other gradients are added by torch.

    Args:
        params: parameters, or parameter groups `{"params": [...], "lr": ...}`.
        lr: the learning rate.

    >>> head = zloss.HierarchicalSoftmax(8, 100)
    >>> optimizer = RowSGD(head.parameters(), lr=0.1)
    >>> head(torch.randn(4, 8), torch.tensor([1, 2, 3, 4])).backward()
    >>> optimizer.step()
    """

    options = ("lr",)
    _shown_options = "lr"

    def __init__(self, params: Iterable[Tensor] | Iterable[dict[str, Any]], lr: float) -> None:
        check_rates(lr, 0.0)
        super().__init__(listed_groups(params), {"lr": lr})

    def _descend(self, parameter: Tensor, group: dict[str, Any]) -> None:
        if parameter.grad is not None:
            _subtract(parameter, parameter.grad, float(group["lr"]))


def _subtract(parameter: Tensor, grad: Tensor, lr: float) -> None:
    if grad.is_sparse and _suits_kernel(parameter, grad):
        rows, values = grad._indices()[0], grad._values()
        kernels.load("row_update").add_rows_(
            parameter, rows, values, -lr, repeated=not grad.is_coalesced()
        )
    else:
        parameter.add_(grad, alpha=-lr)


def _suits_kernel(parameter: Tensor, grad: Tensor) -> bool:
    is_plain = (
        parameter.dim() == 2 and parameter.is_contiguous() and parameter.dtype != torch.float64
    )
    if not grad.is_coalesced():  # repeated rows need atomic additions
        is_plain &= (
            parameter.dtype == torch.float32 and not torch.are_deterministic_algorithms_enabled()
        )
    return (
        is_plain
        and grad.sparse_dim() == 1
        and parameter.device.type == "cuda"
        and kernels.available()
    )
