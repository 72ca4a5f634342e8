"""Single steps of a training, which a CUDA graph replays if that is possible."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

import zloss
from zloss_lab.networks import NgramNetwork
from zloss_lab.ngrams import NgramBatches
from zloss_lab.training.experiment import TrainingConfig


class TrainingStepper:
    """Trains a network on the batches of a text, one step at a time.

    A captured step counts the index of the next batch on the device, so that the host need not copy it there.

    Args:
        config: the settings of the training.
        network: the network to train.
        optimizers: the optimizers of the network.
        batches: the batches to train on.
    """

    def __init__(
        self,
        config: TrainingConfig,
        network: NgramNetwork,
        optimizers: Sequence[Optimizer],
        batches: NgramBatches,
    ) -> None:
        self._config, self._network = config, network
        self._optimizers, self._batches = optimizers, batches
        self._index = torch.zeros((), dtype=torch.long, device=batches.device)
        self._indexed_step = -1  # the step whose batch has that index
        self._replayed = zloss.CapturedStep(self._take_indexed, optimizers=optimizers)

    @property
    def is_captured(self) -> bool:
        """True if steps are replayed from a CUDA graph.

        Nothing in such a step may wait for the device. Sparse Adam does, and so does the norm of a row-sparse
        gradient. Adam and Adagrad of the output count their steps on the host, so a graph would repeat one step.
        """
        never_waits = (
            self._config.optimizer == self._config.output_optimizer == "sgd"
            and self._config.clip is None
            and self._network.head.is_capturable
        )
        return self._config.graph and self._batches.device.type == "cuda" and never_waits

    def take(self, step: int) -> Tensor:
        """Train on the batch of a step, counted from 0, and return the loss, which stays on the device."""
        epoch, index = divmod(step, len(self._batches))
        if not self.is_captured:
            return self._learn(*self._batches.batch(epoch, index))
        if index == 0 or step != self._indexed_step:
            self._batches.start(epoch)
            self._index.fill_(index)
        loss: Tensor = self._replayed()
        self._indexed_step = step + 1
        return loss

    def _take_indexed(self) -> Tensor:
        batch = self._batches.at(self._index)
        self._index.add_(1)
        return self._learn(*batch)

    def _learn(self, context: Tensor, target: Tensor) -> Tensor:
        self._network.train()
        return self._network.learn(context, target, self._optimizers, clip=self._config.clip)
