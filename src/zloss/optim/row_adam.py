"""Adam for parameters whose gradients are dense or row-sparse."""

from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from zloss.inputs import check_callable, check_mapping, check_number, check_rates, shown
from zloss.optim.groups import NOTES, check_parameters, listed, saved_groups
from zloss.streams import must_not_wait

_OPTIONS = ("lr", "betas", "eps")
# Options of other Adams in torch. With one of them a state dict would mean other steps.
_FOREIGN_OPTIONS = ("weight_decay", "amsgrad", "maximize")


class RowAdam(Optimizer):
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

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        options = {"lr": lr, "betas": betas, "eps": eps}
        _check_options(options)
        groups = listed(params)
        if not groups or isinstance(params, Tensor):
            raise ValueError(
                f"params must be one or more parameters in a list, or groups of them, got {shown(params)}"
            )
        if not all(isinstance(group, dict) for group in groups):
            groups = [{"params": groups}]
        super().__init__(groups, options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with options of their own."""
        check_mapping("param_group", param_group)
        _refuse(name for name in param_group if name not in {"params", *_OPTIONS, *NOTES})
        _check_options(self.defaults | param_group)
        given = param_group.get("params")
        params = [given] if isinstance(given, Tensor) else listed(given)
        before = {parameter for group in self.param_groups for parameter in group["params"]}
        check_parameters(params, before)
        super().add_param_group({**param_group, "params": params})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load moments and options. The state of a `torch.optim.SparseAdam` will do."""
        for group in saved_groups(state_dict, self.param_groups):
            _refuse(name for name in _FOREIGN_OPTIONS if group.get(name))
            if missing := ", ".join(name for name in _OPTIONS if name not in group):
                raise ValueError(f"state_dict has a group without {missing}")
            _check_options(group)
        super().load_state_dict(state_dict)

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take a step with every gradient that exists."""
        loss = None
        check_callable("closure", closure, or_none=True)
        if must_not_wait():
            raise ValueError(
                "RowAdam counts its steps on the host, so a CUDA graph would repeat one step of it: use RowSGD, or "
                "head.sgd(lr), in a captured step"
            )
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._descend(parameter, group)
        return loss

    def _descend(self, parameter: Tensor, group: dict[str, Any]) -> None:
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


def _check_options(options: dict[str, Any]) -> None:
    check_rates(options["lr"], 0.0)
    check_number("eps", options["eps"], least=0)
    betas = options["betas"]
    if not isinstance(betas, tuple | list) or len(betas) != 2:
        raise ValueError(f"betas must be two numbers, got {shown(betas)}")
    for beta in betas:
        check_number("a number of betas", beta, least=0)
        if not beta < 1:
            raise ValueError(f"a number of betas must be below 1, got {beta}")


def _refuse(names: Iterable[str]) -> None:
    if refused := ", ".join(names):
        raise ValueError(
            f"RowAdam has {', '.join(_OPTIONS)}, got {refused}: weight decay would change every row at every step, and "
            "torch.optim.Adam has the other options for dense gradients"
        )
