"""The configuration of a run: its corpus, its network and its training."""

import math
from dataclasses import dataclass, field
from typing import Literal

from zloss.heads.defaults import OptimizerName
from zloss_lab.evaluation import Evaluation, is_made_large
from zloss_lab.networks import NetworkConfig

# Keys that must be at least 1, if they are not none.
_COUNTS = (
    "batch_size",
    "epochs",
    "steps",
    "validate_every",
    "validation_examples",
    "stop_after",
    "checkpoint_every",
    "keep",
    "log_every",
)


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Settings of a training.

    A default is the value of the paper for Penn Treebank, if the paper has one.
    """

    batch_size: int = 250
    # Contexts run across the ends of sentences, or start with padding at the start of a sentence.
    mode: Literal["running", "sentence"] = "running"
    optimizer: Literal["sgd", "adam"] = "sgd"  # of all layers except the output
    output_optimizer: OptimizerName = "sgd"  # of the output layer; a factored head takes "sgd" only
    lr: float = 1.0  # of all layers except the output
    # Of the output layer. None for the default of the library: the relative rate of a factored Z-loss, `lr` elsewhere.
    output_lr: float | None = 20.0
    weight_decay: float = 0.0  # of the hidden layers
    output_weight_decay: float = 0.0  # of the head
    clip: float | None = None  # largest norm of the gradient of the whole network
    epochs: int | None = 20  # at most; without a limit the schedule ends the training
    steps: int | None = None  # at most
    # At most, of training steps; validations and checkpoints do not count.
    seconds: float | None = None
    validate_every: int | None = None  # steps; once an epoch if none
    validation_examples: int = 20_000
    # Decides which checkpoint is the best. For top_K_error, mean_rank and perplexity lower is better, for mrr higher.
    score: str = "top_10_error"
    schedule: Literal["plateau", "linear"] = "plateau"  # the next three keys are for plateau
    lr_factor: float = 0.5  # multiplies all learning rates when the score has not improved
    patience: int = 0  # validations in a row without an improvement before the rates are lowered
    # Training ends where the rates would be lowered this number of times in a row without an improvement.
    stop_after: int = 4
    checkpoint_every: int = 1000  # steps
    keep: int = 2  # number of newest checkpoints that are kept; the best one is kept too
    log_every: int = 100  # steps
    # On a GPU, replay the step as a CUDA graph if nothing in it waits for the device.
    graph: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        for name in _COUNTS:
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.patience < 0:
            raise ValueError(f"patience must be at least 0, got {self.patience}")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip must be > 0, or none, got {self.clip}")
        if (
            self.schedule == "linear"
            and self.epochs is None
            and self.steps is None
            and self.seconds is None
        ):
            raise ValueError(
                "the linear schedule falls to zero over the whole training: give epochs, steps or seconds"
            )
        for name in ("lr", "output_lr", "lr_factor"):
            value = getattr(self, name)
            is_default = name == "output_lr" and value is None
            if not is_default and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be a finite number > 0, got {value}")
        if self.output_optimizer != "sgd" and (self.output_lr or 0) >= 1:
            raise ValueError(
                f"output_lr={self.output_lr} is a rate for sgd: {self.output_optimizer} changes each weight by about "
                "output_lr in a step; give output_lr below 1, for example 0.003"
            )
        if self.lr_factor >= 1:
            raise ValueError(
                f"lr_factor must be below 1, as learning rates are lowered by it, got {self.lr_factor}"
            )
        if not 0 <= self.seed < 1 << 63:
            raise ValueError(f"seed must be from 0 to 2^63 - 1, got {self.seed}")
        for name in ("weight_decay", "output_weight_decay"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ValueError(f"{name} must be a finite number >= 0, got {getattr(self, name)}")
        if self.seconds is not None and not (math.isfinite(self.seconds) and self.seconds > 0):
            raise ValueError(f"seconds must be a finite number > 0, got {self.seconds}")

    def last_step(self, epoch_steps: int) -> float:
        """Return the largest number of steps of a run; infinity without a limit of epochs or steps."""
        limits = (None if self.epochs is None else self.epochs * epoch_steps, self.steps)
        return min((limit for limit in limits if limit is not None), default=math.inf)

    def validates_at(self, step: int, epoch_steps: int) -> bool:
        """Return whether there is a validation after a step: at regular intervals, and at the end."""
        return (
            step == self.last_step(epoch_steps) or step % (self.validate_every or epoch_steps) == 0
        )

    def cost(self, result: Evaluation) -> float:
        """Return the deciding score with a sign that makes lower values better."""
        score = result.score(self.score)
        return -score if is_made_large(self.score) else score


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """The configuration of a run."""

    corpus: str  # folder of a prepared corpus
    network: NetworkConfig = field(default_factory=NetworkConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    device: str = "auto"  # a GPU if the machine has one

    def __post_init__(self) -> None:
        if "negatives" in self.network.head.options:
            raise ValueError(
                "network.head.negatives must be none: the optimizers of the lab do not train the number c of its scores"
            )
