"""Heads: whole output layers behind one interface, from the hidden batch to the loss and back to ranked classes.

    loss = head(h, target)                    differentiable in h and in the weights of the head
    optimizer = head.sgd(lr)                  plain SGD on the head, in the form that suits its gradients
    scores, classes = head.topk(h, 10)        exact, over all classes, in blocks of bounded memory
    ranks = head.rank(h, target)              1 + the number of classes that score strictly higher
    log_p = head.log_prob(h)                  where the head is a probability model (`head.is_likelihood`)

Every head takes the same targets, row weights and ignored rows, and refuses bad input in the same words. A head
supplies `forward` and `scores`; the rest follows. `tests/heads/registry.py` lists all of them, and by being listed
there a new one gets every test.

Shape letters: B examples, H width of the hidden layer, C classes, K targets per example.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from zloss.heads.admission import Admission
from zloss.heads.class_order import ClassOrder
from zloss.inputs import check_hidden, check_same_device, check_sizes
from zloss.layers.ranking import Scores
from zloss.metrics import Perplexity
from zloss.optim import RowSGD
from zloss.precision import exact_products
from zloss.targets import IGNORE_INDEX, Targets, checked_targets


class Head(nn.Module, ABC):
    """An output layer together with the loss that trains it."""

    is_row_sparse: bool = (
        False  # do gradients touch few rows of the weights, and come as sparse tensors?
    )
    has_normalized_scores: bool = False  # are `scores` log-probabilities already?

    def __init__(
        self, in_features: int, num_classes: int, *, ignore_index: int = IGNORE_INDEX
    ) -> None:
        super().__init__()
        check_sizes(in_features, num_classes)
        self.in_features, self.num_classes, self.ignore_index = (
            in_features,
            num_classes,
            ignore_index,
        )
        self.order: ClassOrder | None = (
            None  # of the classes among the `scores`, where it is not that of their numbers
        )
        self._admission = Admission(num_classes, ignore_index)

    @abstractmethod
    def forward(
        self,
        h: Tensor,  # (B, H)
        target: Tensor,  # (B,) or (B, K)
        *,
        weight: Tensor | None = None,  # (B,)
    ) -> Tensor:
        """The loss of a batch, with row weights if given."""

    @abstractmethod
    def scores(self, h: Tensor) -> Scores:
        """The scores of all classes, in the order of `position_of`, to be evaluated piecewise."""

    @property
    def is_likelihood(self) -> bool:
        """Whether the head is a probability model: `log_prob` and `perplexity` exist."""
        return True

    @property
    def is_capturable(self) -> bool:
        """Whether a training step on a GPU never waits for it, so that `zloss.CapturedStep` can capture it."""
        return True

    @property
    def reference_weight(self) -> Tensor:
        """A parameter that says where the head is and in which dtype, (anything, H)."""
        return next(self.parameters())

    # ---- use ---------------------------------------------------------------------------------------------------------

    def topk(
        self, h: Tensor, k: int, *, block_size: int | None = None
    ) -> tuple[Tensor, Tensor]:  # (B, k), (B, k)
        """Scores and classes of the k best classes, best first, in blocks of `block_size` classes."""
        with self._evaluation(h) as scores:
            values, positions = scores.topk(k, block_size)
            return values, self.class_at(positions)

    def rank(
        self, h: Tensor, target: Tensor, *, block_size: int | None = None
    ) -> Tensor:  # as target
        """1 + the number of classes that score strictly higher than the target; 0 for an ignored target."""
        with self._evaluation(h) as scores:
            return scores.rank(self._positions(target, h), block_size).reshape(target.shape)

    def log_prob(self, h: Tensor) -> Tensor:  # (B, C)
        """Log-probabilities of all classes, without gradient."""
        self._require_likelihood()
        with self._evaluation(h) as scores:
            log_prob = scores.all() - self._log_normalizer(scores)[:, None]
            return log_prob[:, self.position_of(torch.arange(self.num_classes, device=h.device))]

    def target_log_prob(self, h: Tensor, target: Tensor) -> Tensor:  # as target
        """Log-probability of each target; 0 for an ignored target. Never holds those of all classes at once."""
        self._require_likelihood()
        with self._evaluation(h) as scores:
            targets = self._positions(target, h)
            log_prob = scores.of_targets(targets.index) - self._log_normalizer(scores)[:, None]
            return torch.where(targets.valid, log_prob, 0).reshape(target.shape)

    def perplexity(self, h: Tensor, target: Tensor) -> float:
        """`exp` of the mean negative log-probability of the targets; `zloss.Perplexity` does it over many batches."""
        metric = Perplexity()
        log_prob = self.target_log_prob(h, target)
        metric.update(
            log_prob, counted=target.long() != self.ignore_index
        )  # which a narrow type would wrap
        return metric.compute()

    def sgd(self, lr: float, *, weight_decay: float = 0.0) -> Optimizer:
        """Plain SGD on all parameters of the head. Without weight decay where gradients are row-sparse."""
        if not self.is_row_sparse:
            return torch.optim.SGD(self.parameters(), lr=lr, weight_decay=weight_decay)
        if weight_decay != 0:
            raise ValueError(
                f"weight_decay={weight_decay} would change every row at every step, and the gradients of "
                f"{type(self).__name__} are row-sparse: use weight_decay=0, or decay the layers below only"
            )
        return RowSGD(self.parameters(), lr)

    # ---- hooks of CapturedStep ---------------------------------------------------------------------------------------

    def begin_capture(self) -> None:
        """Prepare for a capture; `CapturedStep` calls this when a step first uses the head."""
        self._admission.was_captured = False

    def end_capture(self) -> Callable[[], None] | None:
        """Finish a capture. Returns what `CapturedStep` has to call after every replay, if anything."""
        return self._admission.after_replay if self._admission.was_captured else None

    # ---- for heads that keep their classes in an order of their own --------------------------------------------------

    def position_of(self, classes: Tensor) -> Tensor:
        """Where a class stands among the `scores`."""
        return classes if self.order is None else self.order.position_of(classes)

    def class_at(self, positions: Tensor) -> Tensor:
        """Which class stands there."""
        return positions if self.order is None else self.order.class_at(positions)

    def _log_normalizer(self, scores: Scores) -> Tensor:  # (B,)
        """What turns scores into log-probabilities when subtracted."""
        return (
            self.reference_weight.new_zeros(scores.num_rows)
            if self.has_normalized_scores
            else scores.logsumexp()
        )

    def _positions(self, target: Tensor, h: Tensor) -> Targets:
        check_same_device(h, target)
        targets = checked_targets(target, len(h), self.num_classes, self.ignore_index)
        return targets.at(self.position_of(targets.index))

    @contextmanager
    def _evaluation(self, h: Tensor) -> Iterator[Scores]:
        """The scores of all classes, in full precision whatever the training runs in."""
        self._admission.raise_faults()
        weight = self.reference_weight
        check_hidden(h, self.in_features, weight)
        if not h.isfinite().all():
            raise ValueError("h has a NaN or an infinity: check the layers below")
        with torch.no_grad(), exact_products(h.device.type):
            yield self.scores(h.to(weight.dtype))

    def _require_likelihood(self) -> None:
        if not self.is_likelihood:
            raise ValueError(
                f"{type(self).__name__} with this loss is not a probability model: it ranks classes and gives them no "
                "probabilities; build it with a loss that is a likelihood, or use topk and rank"
            )
