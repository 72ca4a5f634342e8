"""Adam for parameters whose gradients are dense or row-sparse."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from zloss.inputs import check_number, shown
from zloss.optim.checked_optimizer import CheckedOptimizer
from zloss.optim.groups import listed_groups
from zloss.streams import must_not_wait


class RowAdam(CheckedOptimizer):
    r"""Adam, by rows where a gradient is row-sparse.

    For a gradient g, with the bias corrections of Adam:

        m = beta1 m + (1 - beta1) g        v = beta2 v + (1 - beta2) g^2        W = W - lr m / (sqrt(v) + eps)

    A dense gradient changes all rows, as `torch.optim.Adam` does. A row-sparse gradient changes its own rows only, and
    other rows keep their moments. `torch.optim.SparseAdam` does the same and refuses dense gradients. One `RowAdam`
    trains a head that has both, such as `HierarchicalSoftmax`. It cannot be captured as a CUDA graph, and says so.

    Args:
        params: parameters, or parameter groups `{"params": [...], "lr": ...}`.
        lr: the learning rate.
        betas: the decay of m and of v in a step.
        eps: a small number, which is added to the root of v.

    >>> head = zloss.HierarchicalSoftmax(8, 100)
    >>> optimizer = RowAdam(head.parameters(), lr=0.01)
    >>> head(torch.randn(4, 8), torch.tensor([1, 2, 3, 4])).backward()
    >>> optimizer.step()

    Reference: Kingma and Ba, Adam: a method for stochastic optimization, 2015, https://arxiv.org/abs/1412.6980.
    """

    options = ("lr", "betas", "eps")
    _shown_options = "lr, betas and eps"
    _instead = (
        "weight decay would change every row at every step, and torch.optim.Adam has the other options for dense "
        "gradients"
    )

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        options = {"lr": lr, "betas": betas, "eps": eps}
        self._check_group(options)
        super().__init__(listed_groups(params), options)

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        check_number("eps", group["eps"], least=0)
        betas = group["betas"]
        if not isinstance(betas, tuple | list) or len(betas) != 2:
            raise ValueError(f"betas must be two numbers, got {shown(betas)}")
        for beta in betas:
            check_number("a number of betas", beta, least=0)
            if not beta < 1:
                raise ValueError(f"a number of betas must be below 1, got {beta}")

    def _descend_all(self) -> None:
        if must_not_wait():
            raise ValueError(
                "RowAdam counts its steps on the host, so a CUDA graph would repeat one step of it: use RowSGD, or "
                "head.sgd(lr), in a captured step"
            )
        super()._descend_all()

    def _descend(self, parameter: Tensor, group: dict[str, Any]) -> None:
        if parameter.grad is None:
            return
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        rows, grad = _rows_and_values(parameter.grad)
        mean = _blended(state["exp_avg"], rows, grad, beta1)
        square = _blended(state["exp_avg_sq"], rows, grad * grad, beta2)
        scale = (square / (1 - beta2 ** state["step"])).sqrt_().add_(group["eps"])
        change = mean / scale * (-float(group["lr"]) / (1 - beta1 ** state["step"]))
        if rows is None:
            parameter.add_(change)
        else:
            parameter.index_add_(0, rows, change)


def _rows_and_values(grad: Any) -> tuple[Tensor | None, Tensor]:
    """Return the rows of a row-sparse gradient with their values, each row once; None and the gradient if dense."""
    if not grad.is_sparse:
        return None, grad
    grad = grad.coalesce()
    return grad.indices()[0], grad.values()


def _blended(moment: Tensor, rows: Tensor | None, values: Tensor, beta: float) -> Tensor:
    """Change a moment towards new values, in some rows or in all of them, and return these rows of it."""
    if rows is None:
        return moment.lerp_(values, 1 - beta)
    changed = moment.index_select(0, rows).lerp_(values, 1 - beta)
    moment.index_copy_(0, rows, changed)
    return changed
