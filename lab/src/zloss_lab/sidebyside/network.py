"""Networks of T trials that take their steps together: forward, backward and plain SGD, all in batched products.

The gradients are written out by hand. The gradient of the logits overwrites the logits (`stacked_losses.py`). The
gradient of a weight is never held in memory: `W -= lr g^T x` is a single product that adds to W. Learning rates are
tensors on the device, so that a schedule can change them without a change of the CUDA graph.

A trial drops the activations with a random number (`dropout.py`) below its rate.

Shape letters: T trials, B examples, n words of context, C classes, E width of an embedding, H of the last hidden layer.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from zloss.precision import exact_products, tf32_products
from zloss_lab.evaluation import worst_where_zero
from zloss_lab.sidebyside.stacked_losses import STACKED_LOSSES
from zloss_lab.sidebyside.trial_settings import TrialSettings
from zloss_lab.sidebyside.weights import StackedWeights


class StackedNetwork:
    """Networks of T trials with the layers of `NgramNetwork` and dense output layers.

    Args:
        weights: the first weights, which are changed in place.
        settings: the numbers in which the trials differ.
        loss: the name of the loss.
        tf32: whether products are in TF32 where the device has it. This includes the products of the output layer,
            which are most of the work. Ranks are always computed in float32.
    """

    def __init__(
        self, weights: StackedWeights, settings: TrialSettings, *, loss: str, tf32: bool = False
    ) -> None:
        self.weights, self.settings, self.loss_name, self.tf32 = weights, settings, loss, tf32
        self.lr_factor = torch.ones((), device=weights.output.device)  # scales all learning rates
        # Whether all losses and all scores of targets of a trial have been finite so far. It stays on the device, so
        # that a step does not wait for it.
        self.is_sound = torch.ones(weights.trials, dtype=torch.bool, device=weights.output.device)
        self._loss = STACKED_LOSSES[loss]
        self._drops, self._decays, self._output_decays = (
            bool(rate.any())
            for rate in (settings.dropout, settings.weight_decay, settings.output_weight_decay)
        )
        # The first row of each trial in one table with the embeddings of all trials.
        self._first_rows = (
            torch.arange(weights.trials, device=weights.output.device)[:, None, None]
            * self.num_classes
        )

    @property
    def num_classes(self) -> int:
        """The number of classes C."""
        return self.weights.output.shape[1]

    def select(self, rows: Tensor) -> "StackedNetwork":
        """Return a copy with the trials of these rows only."""
        chosen = StackedNetwork(
            self.weights.select(rows),
            self.settings.select(rows),
            loss=self.loss_name,
            tf32=self.tf32,
        )
        chosen.lr_factor.copy_(self.lr_factor)
        chosen.is_sound.copy_(self.is_sound[rows])
        return chosen

    @torch.no_grad()
    def learn(
        self,
        context: Tensor,  # (T, B, n)
        target: Tensor,  # (T, B)
        chances: Sequence[Tensor] = (),  # (T, B, width) of every hidden layer; for dropout only
    ) -> Tensor:  # (T,)
        """Take one step of all trials, and return the loss of each before it.

        Args:
            context: the words before the target.
            target: the word to predict.
            chances: the random numbers of dropout. They are not needed if the rate of every trial is 0.
        """
        rows = context + self._first_rows
        with tf32_products(self.tf32):
            activations = self.activations(rows, chances if self._drops else None)
            logits = torch.bmm(activations[-1], self.weights.output.transpose(1, 2))
            loss = self._loss.of(logits, target, **self.settings.loss_options).mean(1)
            self._descend(rows, activations, logits)
        self.is_sound.logical_and_(loss.isfinite())
        return loss

    @torch.no_grad()
    def rank(
        self,
        context: Tensor,  # (B, n), the same for all trials
        target: Tensor,  # (B,)
    ) -> Tensor:  # (T, B)
        """Return 1 + the number of classes that score strictly higher than the target.

        The rank is C where nothing is predicted: for a hidden layer of zeros, and for a score of the target that is not
        finite. Such a score makes a trial unsound, even if its weights are finite.
        """
        with tf32_products(self.tf32):
            hidden = self.activations(context + self._first_rows)[-1]
        with exact_products(hidden.device.type):
            scores = torch.bmm(hidden, self.weights.output.transpose(1, 2))
        if self._loss.score is not None:
            scores = self._loss.score(scores, **self.settings.loss_options)
        own = scores.gather(-1, target.expand(len(scores), -1)[..., None])
        # The count is of scores that are not higher. So scores that are not numbers count as higher.
        ranks = self.num_classes + 1 - (scores <= own).sum(-1)
        is_finite = own.squeeze(-1).isfinite()
        self.is_sound.logical_and_(is_finite.all(-1))
        return worst_where_zero(
            torch.where(is_finite, ranks, self.num_classes), hidden, self.num_classes
        )

    def activations(
        self,
        rows: Tensor,  # (T, B, n)
        chances: Sequence[Tensor] | None = None,  # (T, B, width) each; None for no dropout
    ) -> list[Tensor]:  # (T, B, width) of all layers
        """Return the activations of all layers, from the embeddings to the last hidden layer."""
        table = self.weights.embedding.flatten(0, 1)
        activations = [F.embedding(rows, table).flatten(2)]
        for number, layer in enumerate(self.weights.hidden):
            y = torch.baddbmm(layer.bias, activations[-1], layer.weight.transpose(1, 2)).relu_()
            activations.append(y if chances is None else self._dropped_(y, chances[number]))
        return activations

    def _dropped_(self, y: Tensor, chance: Tensor) -> Tensor:
        return y.mul_((chance >= self.settings.dropout) * self._gain)

    @property
    def _gain(self) -> Tensor:
        """The factor of the activations that are kept, so that their expected sum stays the same."""
        return 1 / (1 - self.settings.dropout)

    def _descend(
        self,
        rows: Tensor,  # (T, B, n)
        activations: list[Tensor],  # (T, B, width) each
        logits_grad: Tensor,  # (T, B, C), of the loss of each example
    ) -> None:
        """Compute the gradients and take the step of SGD, layer by layer from the output down."""
        lr, output_lr = self.settings.lr * self.lr_factor, self.settings.output_lr * self.lr_factor
        examples = logits_grad.shape[1]
        grad = torch.bmm(logits_grad, self.weights.output)
        if self._output_decays:
            self.weights.output.mul_(1 - output_lr * self.settings.output_weight_decay)
        _subtract_product_(
            self.weights.output, logits_grad, activations[-1] * (output_lr / examples)
        )
        for layer, (x, y) in reversed(
            list(zip(self.weights.hidden, pairwise(activations), strict=True))
        ):
            grad.masked_fill_(y <= 0, 0)  # activations that were dropped are 0 too
            if self._drops:
                grad.mul_(self._gain)
            below = torch.bmm(grad, layer.weight)
            if self._decays:
                layer.weight.mul_(1 - lr * self.settings.weight_decay)
                layer.bias.mul_(1 - lr * self.settings.weight_decay)
            _subtract_product_(layer.weight, grad, x * (lr / examples))
            layer.bias.sub_(grad.sum(1, keepdim=True) * (lr / examples))
            grad = below
        words = grad.mul_(lr / examples).reshape(-1, self.weights.embedding.shape[2])
        self.weights.embedding.flatten(0, 1).index_add_(0, rows.flatten(), words, alpha=-1)


def _subtract_product_(
    weight: Tensor,  # (T, out, in)
    grad: Tensor,  # (T, B, out)
    x: Tensor,  # (T, B, in)
) -> None:
    """Compute `weight -= grad^T x` for every trial."""
    weight.baddbmm_(grad.transpose(1, 2), x, alpha=-1)
