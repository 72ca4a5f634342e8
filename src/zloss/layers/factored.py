"""The factored output layer: C classes at a cost that does not depend on C."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from zloss.layers.faults import Fault
from zloss.layers.gradient import all_places, nonzero_places
from zloss.layers.inputs import check_hidden, check_same_device, check_sizes
from zloss.layers.limits import export_error, refuse_transforms, uncompiled
from zloss.layers.portable import PortableWeight
from zloss.layers.prediction import Predicting
from zloss.layers.ranking import LinearScores
from zloss.layers.statistics import FactoredStatistics, KernelStatistics, Tape, with_bias_column
from zloss.layers.update import Factors
from zloss.layers.weight import Implementation
from zloss.parallel import refuse_data_parallel
from zloss.stats import SphericalStats
from zloss.targets import IGNORE_INDEX, checked_targets, parse_targets, target_columns


class FactoredLinear(Predicting, PortableWeight):
    """An output layer for a huge number of classes, trained by SGD steps that cost O(H^2), whatever their number.

    Stands for `nn.Linear(in_features, num_classes)` under a spherical loss. Its weight matrix is kept as
    `W = V U + 1 omega^T` with U a small square matrix; `layer(h, target)` yields the statistics that such a loss needs,
    the backward pass records the gradient of W in O(B H) numbers, and `FactoredSGD` applies exactly the step that dense
    SGD would have taken. Neither W nor a gradient of its size is ever formed.

    Args:
        in_features: H, the width of the hidden layer.
        num_classes: C.
        bias: one more weight per class, as in `nn.Linear`.
        device, dtype: of the weights; float32 or float64.
        state_dtype: dtype of the H x H state. Float64 by default; float32 would round small changes away.
        product_dtype: dtype of matrix products. By default float64 where that costs no more (data-centre GPUs), else
            `dtype`.
        ignore_index: the target that counts for nothing.
        max_condition: refactor when `condition()` passes this. By default sqrt(1 + 30^2 / H) for float32: that of a U
            in which one direction has shrunk 30-fold; for float64, 10,000-fold.
        synchronous: on a GPU, wait for the verdict on every batch and step. Bad input is then refused at once, and a
            step too large for the factors is applied by another route instead of being refused. Costs a stall a step.
            A CPU always works like this.
        implementation: "triton" for kernels that make a step few launches, none of which waits, so that it can be
            captured by `zloss.CapturedStep`; "torch" for the same without; "auto" for kernels where there is a GPU,
            Triton, and float32 weights.

    >>> layer = FactoredLinear(16, 100_000)
    >>> optimizer = zloss.FactoredSGD([layer], lr=1.0)
    >>> h = torch.randn(4, 16, requires_grad=True)
    >>> loss = zloss.ZLoss(a=0.1, b=10)(layer(h, torch.tensor([7, 0, 99_999, -100])))    # the last row is ignored
    >>> loss.backward()                               # h.grad as usual; the gradient of W is recorded in the layer
    >>> optimizer.step()

    As with `nn.Linear`, `layer.requires_grad_(False)` freezes it, and nothing is recorded under `torch.no_grad()`.
    Unlike with `nn.Linear`, a step uses up the gradient. `layer.V` is a parameter, so that it moves, saves and freezes
    as usual, but it never has a `.grad`, and ordinary optimizers pass over it. The gradient is zeroed with the model's.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        state_dtype: torch.dtype | None = None,
        product_dtype: torch.dtype | None = None,
        ignore_index: int = IGNORE_INDEX,
        max_condition: float | None = None,
        synchronous: bool = False,
        implementation: Implementation = "auto",
    ) -> None:
        check_sizes(in_features, num_classes)
        super().__init__(
            num_classes,
            in_features + bias,
            device=device,
            dtype=dtype,
            state_dtype=state_dtype,
            product_dtype=product_dtype,
            max_condition=max_condition,
            synchronous=synchronous,
            implementation=implementation,
        )
        self.in_features, self.num_classes, self.has_bias = in_features, num_classes, bias
        self.ignore_index = ignore_index
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw new weights, distributed as those of `nn.Linear`."""
        bound = 1 / math.sqrt(self.in_features)
        self.V.uniform_(-bound, bound)
        self.adopt_rows()

    @uncompiled
    def forward(
        self,
        h: Tensor,  # (B, H)
        target: Tensor,  # (B,) or (B, K)
    ) -> SphericalStats:
        """Statistics of the activations `h @ W.T`, differentiable in `h` and, through the record, in W."""
        check_hidden(h, self.in_features, self.V)
        check_same_device(h, target)
        refuse_data_parallel(self)
        refuse_transforms()
        self.settle_foreign_writes()
        tape = Tape(self)
        anchor = self._anchor(tape) if torch.is_grad_enabled() and self.V.requires_grad else None
        if self.uses_kernels:
            columns = target_columns(target, len(h), self.num_classes)
            scores, mean, scatter, valid = KernelStatistics.apply(
                h, anchor, columns, self.ignore_index, tape
            )  # type: ignore[no-untyped-call]
        else:
            scores, mean, scatter, valid = self._torch_statistics(h, anchor, target, tape)
        return SphericalStats.from_moments(
            scores.reshape(target.shape),
            mean,
            scatter,
            self.num_classes,
            valid=valid.reshape(target.shape),
            once_differentiable=True,
            ignore_index=self.ignore_index,
        )

    def _torch_statistics(
        self, h: Tensor, anchor: Tensor | None, target: Tensor, tape: Tape
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        parse = checked_targets if self.waits_for_device else parse_targets
        targets = parse(target, len(h), self.num_classes, self.ignore_index)
        places = (
            nonzero_places(targets.valid) if self.waits_for_device else all_places(targets.valid)
        )
        rows = self.V.detach()[targets.index.flatten()[places]]
        scores, mean, scatter = FactoredStatistics.apply(h, anchor, rows, places, targets, tape)  # type: ignore[no-untyped-call]
        return scores, mean, scatter, targets.valid

    def weight(self) -> Tensor:  # (C, H)
        """The weight matrix W, materialised: a new C x H tensor."""
        return self.materialised()[:, : self.in_features].contiguous()

    def bias(self) -> Tensor | None:  # (C,)
        """The bias, or None."""
        return self.materialised()[:, -1].contiguous() if self.has_bias else None

    def to_linear(self) -> nn.Linear:
        """An `nn.Linear` with the same weights, to export or to go on with another loss or optimizer."""
        full = self.materialised()
        linear = nn.Linear(
            self.in_features, self.num_classes, bias=self.has_bias, device="meta", dtype=full.dtype
        )
        linear.weight = nn.Parameter(full[:, : self.in_features].contiguous())
        if self.has_bias:
            linear.bias = nn.Parameter(full[:, -1].contiguous())
        return linear

    @classmethod
    @torch.no_grad()
    def from_linear(cls, linear: nn.Linear, **options: Any) -> "FactoredLinear":
        """A factored layer that starts from the weights of `linear`; `options` as for the constructor.

        >>> linear = nn.Linear(8, 100)
        >>> torch.equal(FactoredLinear.from_linear(linear).weight(), linear.weight)
        True
        """
        weight, bias = linear.weight, linear.bias
        options = {"dtype": weight.dtype} | options
        device = options.pop("device", None) or weight.device
        # Made without memory first: random weights and their Gram matrix would only be thrown away.
        blank = cls(
            linear.in_features, linear.out_features, bias=bias is not None, device="meta", **options
        )
        layer = blank.to_empty(device=device)
        layer.V[:, : linear.in_features].copy_(weight)
        if bias is not None:
            layer.V[:, -1].copy_(bias)
        layer.adopt_rows()
        return layer

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(
            self._in_factors(state_dict, prefix, errors=args[-1]), prefix, *args
        )

    @torch.no_grad()
    def _in_factors(
        self, state_dict: dict[str, Any], prefix: str, errors: list[str]
    ) -> dict[str, Any]:
        """A checkpoint that has an `nn.Linear` in place of this layer, with V and its factors instead."""
        weight, bias = (state_dict.get(prefix + name) for name in ("weight", "bias"))
        if weight is None or prefix + "V" in state_dict:
            return state_dict
        misfit = self._misfit(weight, bias)
        if misfit is None:
            V = weight if bias is None else torch.cat((weight, bias[:, None]), dim=1)
            own = dict(zip(("V", *Factors._fields), (V, *self._plain_factors(V)), strict=True))
        else:
            errors.append(
                f"{prefix}weight is that of an nn.Linear, which is taken as W, but {misfit}"
            )
            own = self.state_dict()
        others = {
            key: value
            for key, value in state_dict.items()
            if key not in (prefix + "weight", prefix + "bias")
        }
        return others | {prefix + name: tensor for name, tensor in own.items()}

    def _misfit(self, weight: Tensor, bias: Tensor | None) -> str | None:
        """Why weights cannot be those of this layer."""
        if weight.shape != (self.num_classes, self.in_features):
            return f"it has shape {tuple(weight.shape)} instead of {(self.num_classes, self.in_features)}"
        if (bias is not None) != self.has_bias:
            return f"it has {'a' if bias is not None else 'no'} bias: build this layer with bias={bias is not None}"
        return None

    def __prepare_scriptable__(self) -> Any:
        """What TorchScript asks for before it compiles a module."""
        raise export_error()

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, num_classes={self.num_classes}, bias={self.has_bias}, "
            f"dtype={self.V.dtype}, state_dtype={self.U.dtype}, product_dtype={self.product_dtype}"
        )

    def _anchor(self, tape: Tape) -> Tensor:
        """A leaf that autograd accumulates into exactly when it would accumulate into the weight of an `nn.Linear`.

        So `loss.backward()` records, while `torch.autograd.grad(loss, h)` leaves the layer alone.
        """
        anchor = torch.empty(0, device=self.V.device, requires_grad=True)
        anchor.register_post_accumulate_grad_hook(lambda _: self.record(tape.take()))
        return anchor

    @uncompiled
    def scores(self, h: Tensor) -> LinearScores:
        self.raise_faults()
        check_hidden(h, self.in_features, self.V)
        self.settle_foreign_writes()
        if not h.isfinite().all():
            raise self._error(Fault.HIDDEN, math.nan)
        hs = with_bias_column(h.to(self.U.dtype), len(self.U))
        queries, row_shift = (hs @ self.U.T).to(self.V.dtype), (hs @ self.omega).to(self.V.dtype)
        return LinearScores(queries, self.V.detach(), row_shift=row_shift)
