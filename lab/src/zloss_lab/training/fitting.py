"""A run from its beginning or from where it stopped."""

import json
import warnings
from pathlib import Path

from zloss_lab.configuration import ConfigError, differing, from_table, to_table
from zloss_lab.runs import Run, RunError
from zloss_lab.training.experiment import Experiment
from zloss_lab.training.progress import TrainingWatcher
from zloss_lab.training.trainer import Trainer

# What may be changed in the config of a run that has begun. All else is in the weights or the optimizers by then.
_CHANGEABLE = (
    "corpus",  # which may have moved; that it has the same words is checked
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
    """Train until the schedule ends, and return the run. With `resume`, go on where the run in `folder` stopped."""
    run = Run(folder)
    if resume and to_table(config) != to_table(
        resumed(folder)
    ):  # which knows keys that a run is too old for
        raise RunError(
            f"{folder} was started with another config: resume it with its own, or start a new run"
        )
    if resume and run.steps():
        _require_continued(config, run)
    if not resume:
        run.require_new()
    trainer = Trainer(
        config, run, watch or (lambda _: None)
    )  # before anything is written: it may well fail
    with run.alone():
        if not resume:
            run.create(to_table(config))
        elif run.steps():
            trainer.restore(run.load(device=str(trainer.device)))
        else:  # it was stopped before its first checkpoint
            run.forget_after(0)
        try:
            trainer.train()
        finally:
            run.close()
    return run


def resumed(folder: Path) -> Experiment:
    """The config of a run, to resume it with."""
    run = Run.open(folder)
    try:
        return from_table(Experiment, run.config)
    except ConfigError as error:
        raise ConfigError(f"{folder / 'config.json'}: {error}") from error


def _require_continued(config: Experiment, run: Run) -> None:
    """Refuse a config that was changed where the checkpoint would not follow."""
    before = run.state().get("config")
    if before is None:
        warnings.warn(
            f"the checkpoint of {run.folder} is of an early version, which did not note its config: whether "
            f"{run.folder / 'config.json'} is what it was trained with cannot be checked",
            stacklevel=3,
        )
        return
    try:
        trained_with = to_table(from_table(Experiment, before))
    except ConfigError as error:
        raise run.unusable(run.steps()[-1], error) from error
    for key, (old, new) in differing(trained_with, to_table(config)).items():
        if key not in _CHANGEABLE:
            may = ", ".join(name.rpartition(".")[2] for name in _CHANGEABLE)
            raise RunError(
                f"{key} in {run.folder / 'config.json'} is {json.dumps(new)}, and the run was trained with "
                f"{json.dumps(old)}: change it back, or start a new run (what may be changed is {may})"
            )
