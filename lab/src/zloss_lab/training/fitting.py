"""Training of a run from its beginning, or from its last checkpoint."""

import json
from pathlib import Path

from zloss_lab.configuration import ConfigError, differing, from_table, to_table
from zloss_lab.runs import CONFIG, Run, RunError
from zloss_lab.training.experiment import Experiment
from zloss_lab.training.progress import TrainingWatcher
from zloss_lab.training.trainer import Trainer

# Keys that may be changed in the config of a run that has begun. All others have shaped its weights and optimizers.
_CHANGEABLE = (
    "corpus",  # it may have moved; that it has the same words is checked
    "device",
    "training.epochs",
    "training.steps",
    "training.seconds",
    "training.validate_every",
    "training.stop_after",
    "training.checkpoint_every",
    "training.keep",
    "training.log_every",
    "training.graph",
)


def fit(
    config: Experiment, folder: Path, *, resume: bool = False, watch: TrainingWatcher | None = None
) -> Run:
    """Train until the schedule ends, and return the run. With `resume`, continue where the run in `folder` stopped."""
    run = Run(folder)
    if resume and to_table(config) != to_table(resumed(folder)):
        raise RunError(
            f"{folder} was started with another config: resume it with its own, or start a new run"
        )
    if resume and run.steps():
        _require_continued(config, run)
    if not resume:
        run.require_new()
    # A trainer is made before anything is written, because a wrong config fails here.
    trainer = Trainer(config, run, watch or (lambda _: None))
    with run.alone():
        if not resume:
            run.create(to_table(config))
        elif run.steps():
            trainer.restore(run.load(device=str(trainer.device)))
        else:  # the run was stopped before its first checkpoint
            run.forget_after(0)
        try:
            trainer.train()
        finally:
            run.close()
    return run


def resumed(folder: Path) -> Experiment:
    """Return the config of a run that exists, to resume the run with it."""
    run = Run.open(folder)
    try:
        return from_table(Experiment, run.config)
    except ConfigError as error:
        raise ConfigError(f"{folder / CONFIG}: {error}") from error


def _require_continued(config: Experiment, run: Run) -> None:
    """Refuse a config in which other keys than the changeable ones differ from the config of the checkpoint."""
    try:
        trained_with = to_table(from_table(Experiment, run.state().get("config", {})))
    except ConfigError as error:
        raise run.unusable(run.steps()[-1], error) from error
    for key, (old, new) in differing(trained_with, to_table(config)).items():
        if key not in _CHANGEABLE:
            may = ", ".join(name.rpartition(".")[2] for name in _CHANGEABLE)
            raise RunError(
                f"{key} in {run.folder / CONFIG} is {json.dumps(new)}, and the run was trained with "
                f"{json.dumps(old)}: change it back, or start a new run (these may be changed: {may})"
            )
