"""What is told to whoever watches a training."""

from collections.abc import Callable
from dataclasses import dataclass

from zloss_lab.evaluation import Evaluation


@dataclass(frozen=True, kw_only=True)
class TrainingProgress:
    """What a watcher is told, every `log_every` steps and after each validation."""

    step: int
    steps: float  # where it will end, as far as can be told; infinity where the scores decide that
    epoch: float
    loss: float
    lr: float
    words_per_second: float
    condition: float | None  # of the factors of the output layer
    validation: Evaluation | None = None


TrainingWatcher = Callable[[TrainingProgress], None]
