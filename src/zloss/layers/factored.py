"""The factored output layer: C classes at a cost that does not depend on C.

`FactoredLinear` holds the tensors and answers torch's hooks. Its parts do the work: README.md beside this file follows
one step of training through them.
"""

# Long because every hook of torch and every name that users call has to be a method of the module itself.
import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Self
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from zloss.inputs import (
    as_float,
    check_device,
    check_factor,
    check_flag,
    check_hidden,
    check_linear,
    check_rates,
    check_same_device,
    check_sizes,
    shown,
    with_bias_column,
)
from zloss.layers.forgotten import expect_step
from zloss.layers.gradient import PendingGradient, RecordedGradient
from zloss.layers.gradient_norm import norm_of
from zloss.layers.mark import GradientMark, WrittenNorm
from zloss.layers.matrix import FactoredMatrix
from zloss.layers.portable import NAMES, Checkpoint, Place, as_factors, misfit
from zloss.layers.prediction import Predicting
from zloss.layers.ranking import LinearScores
from zloss.layers.row_rule import RowAdagrad
from zloss.layers.rows import look_up
from zloss.layers.stepper import Implementation, Stepper
from zloss.layers.storage import InMemory
from zloss.layers.supervisor import Fault
from zloss.layers.update import Factors
from zloss.limits import (
    export_error,
    refuse_data_parallel,
    refuse_export,
    refuse_transforms,
    uncompiled,
)
from zloss.precision import check_dtypes, default_product_dtype, finest_dtype
from zloss.stats import SphericalStats, stats_of_layer
from zloss.targets import IGNORE_INDEX, check_ignore_index

# V looks like any other parameter. So code that gets it without its layer looks for the layer here.
_LIVING: "WeakSet[FactoredLinear]" = WeakSet()


def living_layers() -> list["FactoredLinear"]:
    """Return all factored layers that exist, copies included."""
    return list(_LIVING)


class FactoredLinear(Predicting, nn.Module):
    """An output layer for a huge number of classes, trained by SGD steps that cost O(H^2), whatever their number.

    Stands for `nn.Linear(in_features, num_classes)` under a spherical loss. Its weight matrix is kept as
    `W = V U + 1 omega^T` with U a small square matrix. `layer(h, target)` yields the statistics that such a loss needs.
    The backward pass records the gradient of W in O(B H) numbers. `FactoredSGD` applies exactly the step that dense SGD
    would have taken. Neither W nor a gradient of its size is ever formed.

    Args:
        in_features: H, the width of the hidden layer.
        num_classes: C.
        bias: one more weight per class, as in `nn.Linear`.
        device: the device of the weights.
        dtype: the dtype of the weights, float32 or float64.
        state_dtype: dtype of the H x H state. Float64 by default; float32 would round small changes away.
        product_dtype: dtype of matrix products. By default float64 where that costs no more (data-centre GPUs), else
            `dtype`.
        ignore_index: the target that counts for nothing.
        max_condition: refactor when `condition()` passes this. By default sqrt(1 + 30^2 / H) for float32: the condition
            of a U in which one direction has shrunk 30-fold; for float64, 10,000-fold.
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
    The layer copies the batch, so h and target may be overwritten once the forward pass is done. All gradients belong
    to the batch that the layer has seen. The backward pass of `nn.Linear` would raise an error there.
    Unlike with `nn.Linear`, a step uses up the gradient. `layer.V` is a parameter, so that it moves, saves and freezes
    as usual, but it never has a `.grad`, and ordinary optimizers pass over it. Without an optimizer of its own, their
    first step is an error. The gradient is zeroed with the model's.
    """

    U: Tensor  # (H, H)
    U_inv: Tensor  # (H, H)
    omega: Tensor  # (H,)
    wbar: Tensor  # (H,)
    gram: Tensor  # (H, H)

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
        super().__init__()
        check_sizes(in_features, num_classes)
        dtype = torch.get_default_dtype() if dtype is None else dtype
        check_dtypes(dtype, state_dtype, product_dtype)
        check_device("device", device)
        check_flag("bias", bias)
        check_flag("synchronous", synchronous)
        check_ignore_index(ignore_index)
        if max_condition is not None and math.isnan(as_float(max_condition)):
            raise ValueError(
                f"max_condition must be a number greater than 1, got {shown(max_condition)}"
            )
        self.in_features, self.num_classes, self.has_bias = in_features, num_classes, bias
        self.ignore_index = ignore_index
        self._asked_state_dtype, self._asked_product_dtype = state_dtype, product_dtype
        width = in_features + bias
        self.V = nn.Parameter(torch.empty(num_classes, width, device=device, dtype=dtype))
        self.gradient_mark = GradientMark.like(self.V)
        for name in Factors._fields:
            shape = (width,) if name in ("omega", "wbar") else (width, width)
            empty = torch.empty(shape, device=self.V.device, dtype=self._state_dtype())
            self.register_buffer(name, empty)
        self._stepper = Stepper(
            self.matrix,
            self.gradient_mark,
            max_condition=max_condition,
            synchronous=synchronous,
            implementation=implementation,
        )
        self.reset_parameters()
        _LIVING.add(self)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw new weights, distributed as in `nn.Linear`."""
        bound = 1 / math.sqrt(self.in_features)
        self.V.uniform_(-bound, bound)
        self.adopt_rows()

    # ---- a step of training ------------------------------------------------------------------------------------------

    @uncompiled
    def forward(
        self,
        h: Tensor,  # (B, H)
        target: Tensor,  # (B,) or (B, K)
    ) -> SphericalStats:
        """Return the statistics of the activations `h @ W.T`, differentiable in `h` and, by the record, in W."""
        check_hidden(h, self.in_features, self.V)
        check_same_device(h, target)
        refuse_data_parallel(self, self.V)
        refuse_transforms()
        matrix = self.settle_foreign_writes()
        is_trained = torch.is_grad_enabled() and self.V.requires_grad
        scores, mean, scatter, valid, classes = self._stepper.statistics(
            matrix, h, target, self.ignore_index, record=self.record if is_trained else None
        )
        return stats_of_layer(
            scores.reshape(target.shape),
            mean,
            scatter,
            self.num_classes,
            valid=valid.reshape(target.shape),
            classes=classes.reshape(target.shape),
            once_differentiable=True,
            ignore_index=self.ignore_index,
        )

    @uncompiled
    def rows(self, ids: Tensor, *, with_bias: bool = False) -> Tensor:  # (...) -> (..., H)
        """Return rows of W, differentiable: their gradient joins the same exact step, at O(H^2) for a row.

        Rows can take part in anything: input embeddings (`TiedEmbedding`), scores of chosen classes, penalties.

        Args:
            ids: classes, in any shape; they may repeat.
            with_bias: append the bias of its class to each row.

        >>> layer = FactoredLinear(16, 100_000)
        >>> optimizer = zloss.FactoredSGD(layer, lr=1.0)
        >>> h, target = torch.randn(4, 16), torch.tensor([7, 0, 99_999, 3])
        >>> loss = zloss.ZLoss(a=0.1, b=10)(layer(h, target))
        >>> negatives = h @ layer.rows(torch.randint(100_000, (256,))).T     # scores of these classes, (4, 256)
        >>> (loss + 0.1 * negatives.logsumexp(1).mean()).backward()
        >>> optimizer.step()                                                 # of both terms
        """
        check_flag("with_bias", with_bias)
        if with_bias and not self.has_bias:
            raise ValueError(
                "with_bias=True needs a layer with a bias: FactoredLinear(..., bias=True)"
            )
        refuse_data_parallel(self, self.V)
        refuse_transforms()
        matrix = self.settle_foreign_writes()
        is_trained = torch.is_grad_enabled() and self.V.requires_grad
        rows = look_up(self._stepper, matrix, ids, record=self.record if is_trained else None)
        return rows[..., : rows.shape[-1] if with_bias else self.in_features]

    def record(self, gradient: RecordedGradient) -> None:
        """Add to the gradient that the next step will apply."""
        if not isinstance(gradient, RecordedGradient):
            raise ValueError(
                f"gradient must be a RecordedGradient, as recorded_gradient() returns it, got {shown(gradient)}"
            )
        self.pending.record(gradient)
        if self.pending.mark_has_norm:
            self._mark_norm()
        if not self.pending.is_awaited():
            expect_step(self)

    @torch.no_grad()
    def step_(
        self, lr: float, *, weight_decay: float = 0.0, row_rule: RowAdagrad | None = None
    ) -> None:
        """Take the SGD step of the recorded gradient and use it up. `FactoredSGD` calls this.

        Looked-up rows may follow a rule of their own.
        """
        check_rates(lr, weight_decay)
        if row_rule is not None and not isinstance(row_rule, RowAdagrad):
            raise ValueError(f"row_rule must be a RowAdagrad or None, got {shown(row_rule)}")
        refuse_data_parallel(self, self.V)  # it may have been whole for the forward pass
        if self.V.grad is not None and self.pending.exists():
            raise ValueError(
                "V has a .grad, which this layer never gives it. V is a factor of the weights, not the weights: leave "
                "it out of penalties on parameters(), FactoredSGD has weight_decay; and tie no embedding to it"
            )
        self._stepper.step_(self.matrix, float(lr), float(weight_decay), row_rule)

    def attach(self, optimizer: Optimizer, *, mark_has_norm: bool = False) -> None:
        """Take note of an optimizer that steps this layer. `FactoredSGD` and `zloss.Optimizer` call this.

        Args:
            optimizer: without one, steps of other optimizers are an error while a gradient waits.
            mark_has_norm: let the mark have the norm of the gradient from now on, which takes a part of a step. Then
                `torch.nn.utils.clip_grad_norm_` and `GradScaler` reach the gradient through the mark.
        """
        check_flag("mark_has_norm", mark_has_norm)
        if not isinstance(optimizer, Optimizer):
            raise ValueError(f"optimizer must be an optimizer of torch, got {shown(optimizer)}")
        self.pending.attach(optimizer)
        if mark_has_norm:
            self.pending.mark_has_norm = True
            if self.pending.exists():
                self._mark_norm()

    # ---- the recorded gradient ---------------------------------------------------------------------------------------

    @property
    def pending(self) -> PendingGradient:
        """The records that wait for a step."""
        return self._stepper.pending

    def recorded_gradient(self) -> RecordedGradient | None:
        """Return the gradient of W left by the backward passes since the last step; None without any."""
        return self.pending.gradient()

    @torch.no_grad()
    def grad_norm(self) -> Tensor:  # ()
        """Return the Frobenius norm of the full C x H gradient, exact, in O(B H^2); 0 without any."""
        gradient = self.pending.gradient()
        if gradient is None:
            return self.wbar.new_zeros(())
        return norm_of(gradient, self.wbar, self.num_classes)

    @torch.no_grad()
    def _mark_norm(self) -> None:
        norm = norm_of(self.pending.total(), self.wbar, self.num_classes)
        self.pending.written_norm = WrittenNorm(self.gradient_mark, norm)

    @torch.no_grad()
    def scale_grad_(self, factor: Tensor | float) -> None:
        """Multiply the recorded gradient by `factor`."""
        check_factor("factor", factor)
        self.pending.scale_(factor)

    @property
    def is_grad_unscaled(self) -> bool:
        """True once the recorded gradient has been divided by the scale of a GradScaler; see `unscale_grad_`."""
        return self.pending.is_unscaled

    @torch.no_grad()
    def unscale_grad_(self, scale: Tensor | float) -> None:
        """Divide the recorded gradient by the scale of a GradScaler, once."""
        check_factor("scale", scale, above=0)
        divisor = torch.as_tensor(scale, dtype=self.U.dtype, device=self.U.device)
        self.pending.scale_(divisor.reciprocal())
        self.pending.is_unscaled = True

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the recorded gradient."""
        super().zero_grad(set_to_none=True)
        self.pending.drop()

    # ---- the matrix --------------------------------------------------------------------------------------------------

    @property
    def matrix(self) -> FactoredMatrix:
        """The weight matrix as it is now."""
        return FactoredMatrix(InMemory(self.V), self.factors(), self.product_dtype)

    def factors(self) -> Factors:
        """Return the small state, as the tensors themselves."""
        return Factors(self.U, self.U_inv, self.omega, self.wbar, self.gram)

    @torch.no_grad()
    def refactor(self) -> None:
        """Multiply U into V and take all statistics anew: one pass over V in place, O(C H^2). Leaves W as it is.

        Happens by itself when `condition()` passes `max_condition`.
        """
        self._stepper.refactor_(self.settle_foreign_writes())

    @torch.no_grad()
    def condition(self) -> float:
        """Return `|U|_F |U^-1|_F / H`: 1 after a refactor, growing by training."""
        self.raise_faults()
        return self.matrix.condition()

    def drift(self) -> float:
        """Return the relative error of the tracked Gram matrix at the last refactor; 0 before the first."""
        drift = self._stepper.conditioning.drift
        return 0.0 if drift is None else drift.item()

    @property
    def refactors(self) -> int:
        """The number of refactors so far."""
        return self._stepper.conditioning.refactors

    @torch.no_grad()
    def adopt_rows(self) -> None:
        """Take what V holds now as W: after you have written weights of your own to it, to all of it.

        Once the layer has stepped, rows of V are factors and not weights. Call `refactor()` before you write to some
        of them.
        """
        self._stepper.adopt_rows_(self.matrix)

    @torch.no_grad()
    def settle_foreign_writes(self) -> FactoredMatrix:
        """Take rows as W that others have written to V while it alone made up W; refuse what leaves no matrix.

        An initialiser that goes through the parameters of a model takes V for W. Returns the matrix after that.
        """
        refuse_export()
        matrix = self.matrix
        if not self._stepper.settles(matrix):
            raise ValueError(
                "V or its factors were written to from outside, as when weights are averaged (or by LBFGS), and no "
                "longer make one weight matrix: average weight() instead, load a checkpoint, or "
                "call adopt_rows() where all of V is yours; to write some rows of a trained layer, refactor() first"
            )
        return matrix

    @torch.no_grad()
    def materialised(self) -> Tensor:  # (C, H)
        """Return W itself as a new tensor; its last column is the bias, where there is one."""
        self.raise_faults()
        return self.settle_foreign_writes().materialised()

    def weight(self) -> Tensor:  # (C, H)
        """Return the weight matrix W, materialised: a new C x H tensor."""
        return self.materialised()[:, : self.in_features].contiguous()

    def bias(self) -> Tensor | None:  # (C,)
        """Return the bias, or None."""
        return self.materialised()[:, -1].contiguous() if self.has_bias else None

    def to_linear(self) -> nn.Linear:
        """Return an `nn.Linear` with the same weights, to export or to go on with another loss or optimizer."""
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
    def from_linear(cls, linear: nn.Linear, **options: Any) -> Self:
        """Return a factored layer that starts from the weights of `linear`; `options` as for the constructor.

        >>> linear = nn.Linear(8, 100)
        >>> torch.equal(FactoredLinear.from_linear(linear).weight(), linear.weight)
        True
        """
        check_linear(linear)
        weight, bias = linear.weight, linear.bias
        options = {"dtype": weight.dtype} | options
        check_device("device", device := options.pop("device", None))
        device = weight.device if device is None else device
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

    @uncompiled
    def scores(self, h: Tensor) -> LinearScores:
        """Return the scores of all classes, to be evaluated piecewise."""
        self.raise_faults()
        check_hidden(h, self.in_features, self.V)
        matrix = self.settle_foreign_writes()
        if not h.isfinite().all():
            raise self._stepper.supervisor.error(Fault.HIDDEN)
        hs = with_bias_column(h.to(self.U.dtype), len(self.U))
        queries, row_shift = (hs @ self.U.T).to(self.V.dtype), (hs @ self.omega).to(self.V.dtype)
        return LinearScores(queries, matrix.rows, row_shift=row_shift)

    # ---- devices and dtypes ------------------------------------------------------------------------------------------

    def raise_faults(self) -> None:
        """Raise for a batch or step that was refused on the device and not reported yet. Waits for the device."""
        self._stepper.raise_faults(self.matrix)

    @property
    def waits_for_device(self) -> bool:
        """True where verdicts on batches and steps are read at once: always on a CPU, where that is free."""
        return self._stepper.waits(self.matrix)

    @property
    def uses_kernels(self) -> bool:
        """True where Triton does the work: wherever it can, unless `implementation` says otherwise."""
        return self._stepper.uses_kernels(self.matrix)

    @property
    def max_condition(self) -> float | None:
        """The condition from which on the layer refactors; None for the default of its dtype."""
        return self._stepper.conditioning.max_condition

    @property
    def synchronous(self) -> bool:
        """True where the layer waits on a GPU for the verdict on every batch and step."""
        return self._stepper.supervisor.synchronous

    @synchronous.setter
    def synchronous(self, value: bool) -> None:
        check_flag("synchronous", value)
        self._stepper.supervisor.synchronous = value

    @property
    def product_dtype(self) -> torch.dtype:
        """The dtype that matrix products run in; never finer than the state."""
        asked = self._asked_product_dtype or default_product_dtype(self.V.device, self.V.dtype)
        finest = torch.promote_types(asked, self.V.dtype)
        return torch.float32 if self.U.dtype == torch.float32 else finest

    def _state_dtype(self) -> torch.dtype:
        asked = self._asked_state_dtype or finest_dtype(self.V.device)
        return torch.promote_types(asked, self.V.dtype)

    # ---- hooks of torch and of CapturedStep --------------------------------------------------------------------------

    def begin_capture(self) -> None:
        """Prepare for a capture; `CapturedStep` calls this when a step first uses the layer."""
        self._stepper.begin_capture(self.matrix)

    def end_capture(self) -> Callable[[], None] | None:
        """Finish a capture. Returns what `CapturedStep` has to call after every replay, if anything."""
        report = self._stepper.end_capture(self.matrix)
        return None if report is None else partial(self._after_replay, report)

    @torch.no_grad()
    def _after_replay(self, report: Tensor) -> None:
        if (arrived := self._stepper.after_replay(report)) is not None:
            self._stepper.act_on(self.matrix, arrived)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move or convert: V as asked, the state with it but in a dtype of its own (a round trip must not blunt it)."""
        check_dtypes(fn(torch.empty(0, dtype=self.V.dtype, device=self.V.device)).dtype, None, None)
        settles, has_gradient = self._settles_before_leaving(), self.pending.exists()
        before, factors = Place.of(self.V), self.factors()._asdict()
        # The state goes on its own, below: where it goes, there may be no float64 to put it in.
        super()._apply(lambda tensor: fn(tensor.to(self.V.dtype)), recurse)  # type: ignore[no-untyped-call]
        for name, tensor in factors.items():
            source = getattr(self, name) if tensor.is_meta else tensor
            moved = source.to(device=self.V.device, dtype=self._state_dtype())
            # After `share_memory()`: V with factors of another process would be another matrix.
            setattr(self, name, moved.share_memory_() if self._is_shared() else moved)
        now = Place.of(self.V)
        if not now.is_of_one_kind_with(before):  # else a captured step goes on with its backend
            self._stepper.forget_backend()
        if now != before:
            if has_gradient:
                warnings.warn(
                    "the gradient recorded for this layer was lost as it was moved: step first",
                    stacklevel=2,
                )
            self._stepper.forget_history()
        self._restore_mark()
        if settles:  # else the next use has to refuse it
            if now.dtype.itemsize > before.dtype.itemsize and not self.V.is_meta:
                self._sharpen()  # what is known of W was computed in the coarser dtype
            self._stepper.integrity.reseal(self.matrix)
        return self

    def _is_shared(self) -> bool:
        return self.V.device.type == "cpu" and self.V.is_shared()

    def __getstate__(self) -> dict[str, Any]:
        self._settles_before_leaving()
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._restore_mark()
        self._stepper.integrity.reseal(self.matrix, as_copy=True)
        _LIVING.add(self)

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        before, now = self._stepper.integrity.stamps, self.matrix.stamps()
        self._settles_before_leaving()
        if now[1:] == before[1:]:  # if the factors are written to as well, all parts have been
            after = self._stepper.integrity.stamps
            self._stepper.integrity.stamps = (before[0], *after[1:])
        super()._save_to_state_dict(destination, prefix, keep_vars)
        del destination[prefix + "gradient_mark"]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        entries = self._in_factors(state_dict, prefix, errors=args[-1])
        checkpoint = Checkpoint(entries, prefix, {name: getattr(self, name) for name in NAMES})
        if fault := checkpoint.fault():
            args[-1].append(fault)
        mark = {prefix + "gradient_mark": self.gradient_mark.data}
        super()._load_from_state_dict(checkpoint.loadable(fault) | mark, prefix, *args)
        self._restore_mark()
        self._stepper.invalidate_copies(self.matrix)
        self._stepper.forget_history()
        if checkpoint.is_blunt and not self.V.is_meta:
            self._refactor_blunt()
        elif checkpoint.is_coarse and not self.V.is_meta:
            self._sharpen()  # as after a conversion
        self._stepper.integrity.accept(self.matrix)

    @torch.no_grad()
    def _in_factors(
        self, entries: dict[str, Any], prefix: str, errors: list[str]
    ) -> dict[str, Any]:
        """Return the entries of a checkpoint with V and its factors in place of the weights of an `nn.Linear`."""
        weight, bias = (entries.get(prefix + name) for name in ("weight", "bias"))
        if weight is None or prefix + "V" in entries:
            return entries
        reason = misfit(weight, bias, (self.num_classes, self.in_features), self.has_bias)
        if reason is None:
            own = as_factors(weight, bias, self.matrix)
        else:
            told = f"{prefix}weight is that of an nn.Linear, which is taken as W, but {reason}"
            errors.append(told)
            own = self.state_dict()
        linear = {prefix + "weight", prefix + "bias"}
        others = {key: value for key, value in entries.items() if key not in linear}
        return others | {prefix + name: tensor for name, tensor in own.items()}

    @torch.no_grad()
    def _settles_before_leaving(self) -> bool:
        return self._stepper.settles_before_leaving(self.matrix)

    @torch.no_grad()
    def _refactor_blunt(self) -> None:
        """Refactor, as factors that were rounded to half precision no longer fit each other."""
        self._stepper.refactor_(self.matrix)

    @torch.no_grad()
    def _sharpen(self) -> None:
        matrix = self.matrix
        matrix.sharpen_()
        self._stepper.invalidate_copies(matrix)

    def _restore_mark(self) -> None:
        """Make a new mark where torch has made a plain parameter of it, or where V is on another device now."""
        mark = self.gradient_mark
        if not isinstance(mark, GradientMark) or mark.device != self.V.device:
            mark = self.gradient_mark = GradientMark.like(self.V)
        self.pending.mark = mark

    def __prepare_scriptable__(self) -> Any:
        """Refuse to become TorchScript, which asks for this first."""
        raise export_error()

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, num_classes={self.num_classes}, bias={self.has_bias}, "
            f"dtype={self.V.dtype}, state_dtype={self.U.dtype}, product_dtype={self.product_dtype}"
        )
