"""Heads: output layers with their losses behind one interface, which train on a hidden batch and rank classes.

    loss = head(h, target)                    differentiable in h and in the weights of the head
    optimizer = head.optimizer()              the default optimizer of this head, at its rate
    optimizer = head.sgd(lr)                  plain SGD on the head, in the form that its gradients need
    scores, classes = head.topk(h, 10)        exact, over all classes, in blocks of bounded memory
    ranks = head.rank(h, target)              1 + the number of classes that score strictly higher
    log_p = head.log_prob(h)                  if the head is a probability model (`head.is_likelihood`)

Every head takes the same targets, row weights and ignored rows, and refuses bad input with the same messages. A head
implements `forward` and `scores`. This base class implements the rest. `tests/heads/registry.py` lists all heads, and
every test runs for each head in that list.

Shape letters: B examples, H width of the hidden layer, C classes, K targets per example.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from zloss.heads.admission import Admission
from zloss.heads.class_order import ClassOrder
from zloss.heads.defaults import HeadDefaults, OptimizerName
from zloss.inputs import (
    NotFiniteError,
    check_choice,
    check_hidden,
    check_rates,
    check_same_device,
    check_sizes,
    checked_classes,
)
from zloss.layers.ranking import Scores
from zloss.metrics import Perplexity
from zloss.optim import RowAdam, RowSGD
from zloss.precision import exact_products
from zloss.targets import IGNORE_INDEX, Targets, check_ignore_index, checked_targets

_DENSE_OPTIMIZERS: dict[OptimizerName, Callable[..., Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.Adam,
}
# For heads with row-sparse gradients, whose other gradients may be dense.
_ROW_OPTIMIZERS: dict[OptimizerName, Callable[..., Optimizer]] = {
    "sgd": RowSGD,
    "adagrad": torch.optim.Adagrad,
    "adam": RowAdam,
}


class Head(nn.Module, ABC):
    """An output layer together with the loss that trains it."""

    is_row_sparse: bool = False  # True if gradients are sparse tensors with few rows of the weights
    has_normalized_scores: bool = False  # True if `scores` are log-probabilities

    def __init__(
        self, in_features: int, num_classes: int, *, ignore_index: int = IGNORE_INDEX
    ) -> None:
        super().__init__()
        check_sizes(in_features, num_classes)
        check_ignore_index(ignore_index)
        self.in_features, self.num_classes = in_features, num_classes
        self.ignore_index = ignore_index
        # The order of the classes among the `scores`, if it differs from the order of their numbers.
        self.order: ClassOrder | None = None
        self._admission = Admission(num_classes, ignore_index)

    @abstractmethod
    def forward(
        self,
        h: Tensor,  # (B, H)
        target: Tensor,  # (B,) or (B, K)
        *,
        weight: Tensor | None = None,  # (B,)
    ) -> Tensor:
        """Return the loss of a batch, with row weights if given."""

    @abstractmethod
    def scores(self, h: Tensor) -> Scores:
        """Return the scores of all classes, in the order of `position_of`, to be evaluated piecewise."""

    @property
    def is_likelihood(self) -> bool:
        """True if the head is a probability model, so that it has `log_prob` and `perplexity`."""
        return True

    @property
    def is_capturable(self) -> bool:
        """True if `zloss.CapturedStep` can capture a training step: on a GPU the step never waits for the device."""
        return True

    @property
    def has_relative_rates(self) -> bool:
        """True if plain SGD needs no learning rate: see `zloss.FactoredSGD`."""
        return False

    @property
    def reference_weight(self) -> Tensor:
        """A parameter (any, H) that shows the device and the dtype of the head."""
        return next(self.parameters())

    # ---- use ---------------------------------------------------------------------------------------------------------

    def topk(
        self, h: Tensor, k: int, *, block_size: int | None = None
    ) -> tuple[Tensor, Tensor]:  # (B, k), (B, k)
        """Return the scores and the classes of the k best classes, best first, in blocks of `block_size` classes."""
        with self._evaluation(h) as scores:
            values, positions = scores.topk(k, block_size)
            return values, self.class_at(positions)

    def rank(
        self, h: Tensor, target: Tensor, *, block_size: int | None = None
    ) -> Tensor:  # as target
        """Return 1 + the number of classes that score strictly higher than the target; 0 for an ignored target."""
        with self._evaluation(h) as scores:
            return scores.rank(self._positions(target, h), block_size).reshape(target.shape)

    def log_prob(self, h: Tensor) -> Tensor:  # (B, C)
        """Return the log-probabilities of all classes, without gradient."""
        self._require_likelihood()
        with self._evaluation(h) as scores:
            log_prob = scores.all() - self._log_normalizer(scores)[:, None]
            return log_prob[:, self.position_of(torch.arange(self.num_classes, device=h.device))]

    def target_log_prob(self, h: Tensor, target: Tensor) -> Tensor:  # as target
        """Return the log-probability of each target, 0 for an ignored target. Needs bounded memory for any C."""
        self._require_likelihood()
        with self._evaluation(h) as scores:
            targets = self._positions(target, h)
            log_prob = scores.of_targets(targets.index) - self._log_normalizer(scores)[:, None]
            return torch.where(targets.valid, log_prob, 0).reshape(target.shape)

    def perplexity(self, h: Tensor, target: Tensor) -> float:
        """Return `exp` of the mean negative log-probability of the targets. See `zloss.Perplexity` for many batches."""
        metric = Perplexity()
        log_prob = self.target_log_prob(h, target)
        # The ignore_index may not fit into a narrower type.
        metric.update(log_prob, counted=target.long() != self.ignore_index)
        return metric.compute()

    @property
    def defaults(self) -> HeadDefaults | None:
        """The optimizer and the learning rate to start with, measured if `is_measured`. None for heads of users."""
        return None

    def optimizer(
        self,
        name: OptimizerName | None = None,
        *,
        lr: float | None = None,
        weight_decay: float = 0.0,
    ) -> Optimizer:
        """Return an optimizer for the weights of the head, in the form that its gradients need.

        Without arguments it is the one of `defaults`. Adam and Adagrad change only the rows that a row-sparse gradient
        has, see `RowAdam`. Row-sparse gradients allow no weight decay.

        Args:
            name: "sgd", "adagrad" or "adam".
            lr: the learning rate. It may be left out where the optimizer is the default one.
            weight_decay: the L2 penalty, added to the gradient as `weight_decay * W`.

        >>> head = zloss.SampledSoftmax(16, 100_000)
        >>> head.defaults
        HeadDefaults(optimizer='adam', lr=0.01, is_relative=False, is_measured=True)
        >>> optimizer = head.optimizer()
        >>> slower = head.optimizer(lr=0.003)
        >>> plain = head.optimizer("sgd", lr=30.0)
        """
        name, lr = self._completed(name, lr)
        check_rates(lr, weight_decay)
        if not self.is_row_sparse:
            return _DENSE_OPTIMIZERS[name](self._weights(), lr=lr, weight_decay=weight_decay)
        if weight_decay != 0:
            raise ValueError(
                f"weight_decay={weight_decay} would change every row at every step, and the gradients of "
                f"{type(self).__name__} are row-sparse: use weight_decay=0, or decay the layers below only"
            )
        return _ROW_OPTIMIZERS[name](self._weights(), lr=lr)

    def sgd(self, lr: float | None = None, *, weight_decay: float = 0.0) -> Optimizer:
        """Return plain SGD for all parameters of the head. Only a head that `has_relative_rates` needs no rate."""
        if lr is None:
            raise ValueError(
                f"lr must be a finite number >= 0, got None: {type(self).__name__} needs one, as in sgd(lr=0.1)"
            )
        check_rates(lr, weight_decay)
        return self.optimizer("sgd", lr=lr, weight_decay=weight_decay)

    def _weights(self) -> Iterator[nn.Parameter]:
        """Yield the parameters that an optimizer of the head trains."""
        return self.parameters()

    def _completed(
        self, name: OptimizerName | None, lr: float | None
    ) -> tuple[OptimizerName, float]:
        """Return the name and the rate of an optimizer, with the default ones in the place of None."""
        best = self.defaults
        if name is not None:
            check_choice("name", name, get_args(OptimizerName))
        if best is None:
            if name is None or lr is None:
                raise ValueError(
                    f"this {type(self).__name__} has no default optimizer: give a name and a rate, such as "
                    'head.optimizer("sgd", lr=0.1)'
                )
            return name, lr
        if lr is None and name not in (None, best.optimizer):
            raise ValueError(
                f"lr is missing: the default rate {best.lr:g} is for {best.optimizer}, not for {name}"
            )
        return name or best.optimizer, best.lr if lr is None else lr

    # ---- hooks of CapturedStep ---------------------------------------------------------------------------------------

    def begin_capture(self) -> None:
        """Prepare for a capture. `CapturedStep` calls this when a step first uses the head."""
        self._admission.was_captured = False

    def end_capture(self) -> Callable[[], None] | None:
        """Finish a capture. Returns the function that `CapturedStep` calls after every replay, or None."""
        return self._admission.after_replay if self._admission.was_captured else None

    # ---- for heads that order their classes in their own way ---------------------------------------------------------

    def position_of(self, classes: Tensor) -> Tensor:
        """Return the positions of classes among the `scores`."""
        classes = checked_classes("classes", classes, self.num_classes)
        return classes if self.order is None else self.order.position_of(classes)

    def class_at(self, positions: Tensor) -> Tensor:
        """Return the classes at positions among the `scores`."""
        positions = checked_classes("positions", positions, self.num_classes)
        return positions if self.order is None else self.order.class_at(positions)

    def _log_normalizer(self, scores: Scores) -> Tensor:  # (B,)
        """Return the number of each row that turns its scores into log-probabilities when it is subtracted."""
        if self.has_normalized_scores:
            return self.reference_weight.new_zeros(scores.num_rows)
        return scores.logsumexp()

    def _positions(self, target: Tensor, h: Tensor) -> Targets:
        check_same_device(h, target)
        targets = checked_targets(target, len(h), self.num_classes, self.ignore_index)
        return targets.at(self.position_of(targets.index))

    @contextmanager
    def _evaluation(self, h: Tensor) -> Iterator[Scores]:
        """Yield the scores of all classes, in full precision even if training uses a coarser one."""
        self._admission.raise_faults()
        weight = self.reference_weight
        check_hidden(h, self.in_features, weight)
        if not h.isfinite().all():
            raise NotFiniteError("h has a NaN or an infinity: check the layers below")
        with torch.no_grad(), exact_products(h.device.type):
            yield self.scores(h)

    def _require_likelihood(self) -> None:
        if not self.is_likelihood:
            raise ValueError(
                f"{type(self).__name__} with this loss is not a probability model: it ranks classes and gives them no "
                "probabilities; build it with a loss that is a likelihood, or use topk and rank"
            )
