"""What defines a run: the text, the network, and how it is trained."""

import math
from dataclasses import dataclass, field
from typing import Literal

from zloss_lab.evaluation import Evaluation, is_made_large
from zloss_lab.networks import NetworkConfig

# Keys of a training that are counted in ones.
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
    """How to train. The defaults are those of the paper for Penn Treebank where it gives them."""

    batch_size: int = 250
    mode: Literal["running", "sentence"] = (
        "running"  # contexts run across sentences, or are filled up before them
    )
    optimizer: Literal["sgd", "adam"] = "sgd"  # of all layers but the output
    lr: float = 1.0
    output_lr: float = 20.0
    weight_decay: float = 0.0  # of the hidden layers
    output_weight_decay: float = 0.0  # of the head
    clip: float | None = None  # norm of the gradient of the whole network
    epochs: int | None = 20  # at most; where none, the schedule ends it
    steps: int | None = None  # at most, if fewer
    seconds: float | None = (
        None  # of training steps at most; validations and checkpoints are not counted
    )
    validate_every: int | None = None  # steps; an epoch where none
    validation_examples: int = 20_000
    score: str = "top_10_error"  # what decides: top_K_error, mean_rank, perplexity (lower is better) or mrr (higher)
    schedule: Literal["plateau", "linear"] = (
        "plateau"  # of the learning rates; the next three are for plateau
    )
    lr_factor: float = 0.5  # of all learning rates, when the score has not improved
    patience: int = 0  # so many validations in a row before that
    stop_after: int = (
        4  # lowerings in a row without an improvement; the last is the end, and is not tried
    )
    checkpoint_every: int = 1000  # steps
    keep: int = 2  # newest checkpoints; the best stays too
    log_every: int = 100  # steps
    graph: bool = True  # on a GPU, replay the whole step as a CUDA graph wherever nothing in it waits for the device
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
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ValueError(f"{name} must be a finite number > 0, got {getattr(self, name)}")
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
        """Where a run ends at the latest; infinity where no number of steps ends it."""
        limits = (None if self.epochs is None else self.epochs * epoch_steps, self.steps)
        return min((limit for limit in limits if limit is not None), default=math.inf)

    def validates_at(self, step: int, epoch_steps: int) -> bool:
        """Whether the network is judged after so many steps: at regular intervals, and at the end."""
        return (
            step == self.last_step(epoch_steps) or step % (self.validate_every or epoch_steps) == 0
        )

    def cost(self, result: Evaluation) -> float:
        """The score that decides, as something to be made small."""
        score = result.score(self.score)
        return -score if is_made_large(self.score) else score


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that defines a run."""

    corpus: str  # folder of a prepared corpus
    network: NetworkConfig = field(default_factory=NetworkConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    device: str = "auto"  # a GPU where there is one
