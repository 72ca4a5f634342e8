"""Progress reports of a training."""

from collections.abc import Callable
from dataclasses import dataclass

from zloss_lab.evaluation import Evaluation


@dataclass(frozen=True, kw_only=True)
class TrainingProgress:
    """A progress report, made every `log_every` steps and after each validation."""

    step: int
    # Expected number of steps in all; infinity if the scores decide when training ends.
    steps: float
    epoch: float
    loss: float
    lr: float
    words_per_second: float
    # Condition number of the factors of the output layer, if it has factors.
    condition: float | None
    validation: Evaluation | None = None


TrainingWatcher = Callable[[TrainingProgress], None]
