"""The dense head: it computes every logit and takes any loss."""

from typing import TypeGuard

import torch
from torch import Tensor, nn

from zloss.heads.admission import Admitted
from zloss.heads.defaults import DENSE, HeadDefaults
from zloss.heads.linear import LinearHead
from zloss.heads.softmax import IGNORED, SoftmaxName, find_cross_entropy
from zloss.inputs import shown
from zloss.layers.ranking import Scores
from zloss.losses import SoftmaxCrossEntropy, ZNormalized
from zloss.losses.class_weight import weigh
from zloss.losses.dense import is_likelihood, log_prob_of
from zloss.losses.loss import Loss
from zloss.losses.reduction import reduce_loss
from zloss.targets import IGNORE_INDEX

# The largest number of logits in memory where whole rows are needed: 256 MiB in float32.
_ROW_ELEMENTS = 2**26


class DenseOutput(LinearHead):
    """`nn.Linear` with a loss on all of its logits, at O(B C H) a step. All other heads are compared with it.

    Args:
        in_features: H, the width of the hidden layer.
        num_classes: C.
        loss: any loss of this library, or a module that is called as `loss(logits, target)`. The default is
            `SoftmaxCrossEntropy()`. The loss decides the reduction and the ignore_index.
        softmax: the implementation of `SoftmaxCrossEntropy`. "logits" forms all logits. The others do not:
            "linear_cross_entropy" (torch >= 2.13), "liger" (liger-kernel), "cut_cross_entropy" and
            "cut_cross_entropy_exact" (cut-cross-entropy). `zloss.softmax_implementations(device)` lists the ones that
            can run on a device. The head refuses any other one on its first use there.
        bias, device, dtype: as in `nn.Linear`.

    >>> head = DenseOutput(16, 1000)
    >>> optimizer = torch.optim.Adam(head.parameters())
    >>> head(torch.randn(4, 16), torch.tensor([7, 0, 999, -100])).backward()
    >>> optimizer.step()
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        loss: nn.Module | None = None,
        softmax: SoftmaxName = "logits",
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        loss = SoftmaxCrossEntropy() if loss is None else loss
        if not isinstance(loss, nn.Module):
            raise ValueError(
                f"loss must be a module that is called as loss(logits, target), got {shown(loss)}"
            )
        ignore_index = int(getattr(loss, "ignore_index", IGNORE_INDEX))
        super().__init__(
            in_features,
            num_classes,
            bias=bias,
            device=device,
            dtype=dtype,
            ignore_index=ignore_index,
        )
        find_cross_entropy(softmax)
        if softmax != "logits" and not _is_softmax(loss):
            raise ValueError(
                f"softmax={softmax!r} computes SoftmaxCrossEntropy, not {type(loss).__name__}"
            )
        self.loss, self.softmax = loss, softmax

    @property
    def defaults(self) -> HeadDefaults:
        return DENSE

    def forward(self, h: Tensor, target: Tensor, *, weight: Tensor | None = None) -> Tensor:
        admitted = self._admission.admit(h, target, self.linear.weight)
        if _is_softmax(self.loss):
            return admitted.conclude(self._softmax_loss(self.loss, admitted, weight))
        logits, innermost = self.linear(admitted.h), _innermost(self.loss)
        if isinstance(innermost, Loss):
            options = {} if weight is None else {"weight": weight}
            return admitted.conclude(self.loss(logits, admitted.targets, **options))
        if weight is not None or admitted.targets.shape[1] > 1:
            raise ValueError(
                f"{type(innermost).__name__} is not of this library: it takes one target per example and no row weights"
            )
        return admitted.conclude(self.loss(logits, admitted.targets.to_tensor(self.ignore_index)))

    @property
    def is_capturable(self) -> bool:
        # Whether the other implementations wait for the device is not known.
        return self.softmax in ("logits", "linear_cross_entropy")

    def _softmax_loss(
        self, loss: SoftmaxCrossEntropy, admitted: Admitted, row_weight: Tensor | None
    ) -> Tensor:
        targets, classes = admitted.targets, self.linear.weight
        cross_entropy = find_cross_entropy(self.softmax, classes.device)
        pairs = (
            admitted.h.repeat_interleave(targets.shape[1], 0)
            if targets.shape[1] > 1
            else admitted.h
        )
        flat = torch.where(targets.valid, targets.index, IGNORED).flatten()
        is_plain = row_weight is None and loss.class_weight is None
        if targets.shape[1] == 1 and is_plain and loss.reduction != "none":
            # With a single sum, fused implementations need no second pass.
            total = cross_entropy(pairs, classes, self.linear.bias, flat, "sum")
            return total if loss.reduction == "sum" else total / targets.counted.sum().clamp_min(1)
        flat_loss = cross_entropy(pairs, classes, self.linear.bias, flat, "none")
        per_target = weigh(
            flat_loss.reshape(targets.shape), targets.index, loss.class_weight, self.num_classes
        )
        return reduce_loss(targets.mean(per_target), targets.counted, loss.reduction, row_weight)

    def scores(self, h: Tensor) -> Scores:
        scores, loss = self.activations(h), self.loss
        return scores.transformed(loss.score) if isinstance(loss, Loss | ZNormalized) else scores

    @property
    def is_likelihood(self) -> bool:
        return is_likelihood(self.loss)

    def log_prob(self, h: Tensor) -> Tensor:  # (B, C)
        """Return the log-probabilities of all classes, without gradient."""
        self._require_likelihood()
        return log_prob_of(self.loss, self.logits(h))

    def target_log_prob(self, h: Tensor, target: Tensor) -> Tensor:  # as target
        if not isinstance(self.loss, ZNormalized):
            return super().target_log_prob(h, target)
        self._require_likelihood()
        with self._evaluation(h):
            targets = self._positions(target, h)
        # Normalisation needs whole rows, so this takes a few rows at a time.
        rows = max(1, _ROW_ELEMENTS // self.num_classes)
        parts = zip(h.split(rows), targets.index.split(rows), strict=True)
        log_prob = torch.cat([self.log_prob(part).gather(1, index) for part, index in parts])
        return torch.where(targets.valid, log_prob, 0).reshape(target.shape)


def _is_softmax(loss: nn.Module) -> TypeGuard[SoftmaxCrossEntropy]:
    """Return whether this is the loss itself and no subclass of it, which may override `per_target`."""
    return type(loss) is SoftmaxCrossEntropy


def _innermost(loss: nn.Module) -> nn.Module:
    """Return the loss itself, or the loss inside of `ZNormalized`."""
    return _innermost(loss.loss) if isinstance(loss, ZNormalized) else loss
