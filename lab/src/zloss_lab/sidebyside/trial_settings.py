"""What the trials of a stack have in common, and what they may differ in.

A trial is an ordinary experiment. Trials stand in one stack when they agree in everything but the keys of `FREE` and
the hyper-parameters of their loss: those are numbers, which can be kept per trial.

The head is a dense matrix without bias under plain SGD. That is what the heads "factored" and "gram" are too, as far as
their results go: the step of a factored layer is exactly the dense one. So they are taken for dense here.
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

HEADS = ("dense", "factored", "gram")
FREE = frozenset(
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
    """The numbers of the experiments that can stand in one stack, group by group.

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
    """Refuse experiments that cannot stand in one stack."""
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
            head.head in HEADS,
            f"network.head.head must be one of {', '.join(HEADS)}, got {head.head!r}",
        ),
        (not head.options.get("bias"), "network.head.bias must be false"),
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
        (training.clip is None, f"training.clip must be none, got {training.clip}"),
        # By "plateau" the rates of every trial would fall at times of its own.
        (
            training.schedule == "linear",
            f"training.schedule must be 'linear', got {training.schedule!r}",
        ),
        (training.seconds is None, f"training.seconds must be none, got {training.seconds}"),
    ):
        if not is_possible:
            raise ValueError(f"to be trained side by side, {demand}")
    check_score(training.score)
    head.build_loss(num_classes=2)  # its hyper-parameters: bad ones are so with any number


def check_score(name: str) -> None:
    """Refuse what is no score of ranks."""
    if name == "perplexity":
        raise ValueError(
            "to be trained side by side, training.score must be one of ranks, got 'perplexity'"
        )
    require_score(name, is_likelihood=False)


def _common(experiment: Experiment) -> dict[str, Any]:
    """What the trials of its stack have to agree in, by dotted key."""
    free = FREE | {f"network.head.{name}" for name in LOSSES[experiment.network.head.loss].options}
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
        """Those of these experiments."""

        def column(values: Iterator[float]) -> Tensor:
            return torch.tensor(list(values), dtype=torch.float32, device=device).reshape(-1, 1, 1)

        training = [experiment.training for experiment in experiments]
        options = [experiment.network.head.loss_options(num_classes) for experiment in experiments]
        return cls(
            lr=column(config.lr for config in training),
            output_lr=column(config.output_lr for config in training),
            weight_decay=column(config.weight_decay for config in training),
            output_weight_decay=column(config.output_weight_decay for config in training),
            dropout=column(experiment.network.dropout for experiment in experiments),
            loss_options={name: column(values[name] for values in options) for name in options[0]},
        )

    def select(self, rows: Tensor) -> "TrialSettings":
        """Those of some of the trials."""
        return TrialSettings(
            lr=self.lr[rows],
            output_lr=self.output_lr[rows],
            weight_decay=self.weight_decay[rows],
            output_weight_decay=self.output_weight_decay[rows],
            dropout=self.dropout[rows],
            loss_options={name: values[rows] for name, values in self.loss_options.items()},
        )
