"""Progress reports of a training."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from zloss_lab.evaluation import Evaluation
from zloss_lab.training.z_scores import ZScores


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
    # Softness of the Z-loss, and share of z-scores beyond b in the latest batch, if the network has a Z-loss.
    z_scores: ZScores | None = None
    validation: Evaluation | None = None

    def to_metrics(self) -> dict[str, Any]:
        """Return the line of the metrics of a run."""
        names = ("step", "epoch", "loss", "lr")
        z_scores = {} if self.z_scores is None else self.z_scores._asdict()
        return {"kind": "training"} | {name: getattr(self, name) for name in names} | z_scores


TrainingWatcher = Callable[[TrainingProgress], None]
