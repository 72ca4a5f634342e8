"""Settings of the trials of a stack: the settings that all trials share, and the numbers in which they may differ.

A trial is an ordinary experiment. Trials can be in one stack if they differ only in the keys of `FREE_KEYS` and in the
hyper-parameters of their loss. All of these are numbers, of which a stack keeps one for each trial.

In a stack, the output layer is a dense matrix without bias under plain SGD. The heads "factored" and "gram" have the
same results as this matrix, because their steps are exactly the dense ones. So a stack trains them as dense heads.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zloss.heads.config import LOSSES
from zloss_lab.configuration import dotted, to_table
from zloss_lab.evaluation import require_score
from zloss_lab.training import Experiment

STACKABLE_HEADS = ("dense", "factored", "gram")
FREE_KEYS = frozenset(
    {
        "network.dropout",
        "network.embedding_scale",
        "network.output_scale",
        "training.lr",
        "training.output_lr",
        "training.weight_decay",
        "training.output_weight_decay",
        "training.seed",
    }
)


def grouped(experiments: Sequence[Experiment]) -> list[list[int]]:
    """Return groups of experiments that can be in one stack, as indices into the sequence.

    >>> from zloss_lab.networks import NetworkConfig
    >>> wide, narrow = NetworkConfig(hidden=(512,)), NetworkConfig(hidden=(64,))
    >>> grouped([Experiment(corpus="ptb", network=network) for network in (wide, narrow, wide)])
    [[0, 2], [1]]
    """
    groups: dict[str, list[int]] = {}
    for number, experiment in enumerate(experiments):
        groups.setdefault(json.dumps(_common(experiment), sort_keys=True), []).append(number)
    return list(groups.values())


def check_trials(experiments: Sequence[Experiment]) -> None:
    """Raise `ValueError` where experiments cannot be in one stack."""
    if not experiments:
        raise ValueError("a stack needs at least one experiment")
    for experiment in experiments:
        _check_trial(experiment)
    first = _common(experiments[0])
    for number, experiment in enumerate(experiments):
        other = _common(experiment)
        for key in sorted(first.keys() | other.keys()):
            if first.get(key) != other.get(key):
                raise ValueError(
                    f"trials of a stack must agree in {key}: trial 0 has {first.get(key)!r}, trial {number} has "
                    f"{other.get(key)!r}; use `grouped` to sort them"
                )


def _check_trial(experiment: Experiment) -> None:
    network, training, head = experiment.network, experiment.training, experiment.network.head
    for is_possible, demand in (
        (
            head.head in STACKABLE_HEADS,
            f"network.head.head must be one of {', '.join(STACKABLE_HEADS)}, got {head.head!r}",
        ),
        (not head.options.get("bias"), "network.head.bias must be false"),
        (not head.options.get("balance"), "network.head.balance must be 0"),
        (
            head.reduction == "mean",
            f"network.head.reduction must be 'mean', got {head.reduction!r}",
        ),
        (network.precision != "bf16", "network.precision must be 'float32' or 'tf32', got 'bf16'"),
        (
            network.head_precision == "float32",
            "network.head_precision must be 'float32': the stack has one precision",
        ),
        (
            training.optimizer == "sgd",
            f"training.optimizer must be 'sgd', got {training.optimizer!r}",
        ),
        (
            training.output_optimizer == "sgd",
            f"training.output_optimizer must be 'sgd', got {training.output_optimizer!r}",
        ),
        (training.clip is None, f"training.clip must be none, got {training.clip}"),
        (training.output_lr is not None, "training.output_lr must be a number, got none"),
        # With "plateau", the learning rates of each trial would fall at other times.
        (
            training.schedule == "linear",
            f"training.schedule must be 'linear', got {training.schedule!r}",
        ),
        (training.seconds is None, f"training.seconds must be none, got {training.seconds}"),
    ):
        if not is_possible:
            raise ValueError(f"to be trained side by side, {demand}")
    check_score(training.score)
    head.build_loss(num_classes=2)  # refuses bad hyper-parameters, for any number of classes


def check_score(name: str) -> None:
    """Raise `ValueError` for a score that does not follow from ranks."""
    if name == "perplexity":
        raise ValueError(
            "to be trained side by side, training.score must be one of ranks, got 'perplexity'"
        )
    require_score(name, is_likelihood=False)


def _common(experiment: Experiment) -> dict[str, Any]:
    """Return the settings that all trials of its stack must share, by dotted key."""
    options = LOSSES[experiment.network.head.loss].options
    free = FREE_KEYS | {f"network.head.{name}" for name in options}
    return {key: value for key, value in dotted(to_table(experiment)) if key not in free}


@dataclass(frozen=True)
class TrialSettings:
    """The numbers in which the trials of a stack differ, on the device: (T, 1, 1) each."""

    lr: Tensor
    output_lr: Tensor
    weight_decay: Tensor
    output_weight_decay: Tensor
    dropout: Tensor
    loss_options: dict[str, Tensor]

    @classmethod
    def of(
        cls, experiments: Sequence[Experiment], num_classes: int, device: torch.device
    ) -> "TrialSettings":
        """Return the settings of these experiments, in their order."""

        def column(values: Iterator[float]) -> Tensor:
            return torch.tensor(list(values), dtype=torch.float32, device=device).reshape(-1, 1, 1)

        training = [experiment.training for experiment in experiments]
        options = [experiment.network.head.loss_options(num_classes) for experiment in experiments]
        return cls(
            lr=column(config.lr for config in training),
            output_lr=column(config.output_lr or 0.0 for config in training),
            weight_decay=column(config.weight_decay for config in training),
            output_weight_decay=column(config.output_weight_decay for config in training),
            dropout=column(experiment.network.dropout for experiment in experiments),
            loss_options={name: column(values[name] for values in options) for name in options[0]},
        )

    def select(self, rows: Tensor) -> "TrialSettings":
        """Return the settings of the trials of these rows."""
        return TrialSettings(
            lr=self.lr[rows],
            output_lr=self.output_lr[rows],
            weight_decay=self.weight_decay[rows],
            output_weight_decay=self.output_weight_decay[rows],
            dropout=self.dropout[rows],
            loss_options={name: values[rows] for name, values in self.loss_options.items()},
        )
