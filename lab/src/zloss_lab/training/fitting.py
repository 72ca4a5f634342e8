"""Training of a run from its beginning, or from its last checkpoint."""

import json
from pathlib import Path
from typing import Any

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
    """Return the config of a run that exists, to resume the run or to apply its network.

    A config is refused if it differs from the one of the last checkpoint in a key that may not be changed. Before the
    first checkpoint no key may be changed.
    """
    run = Run.open(folder)
    try:
        config = from_table(Experiment, run.config)
    except ConfigError as error:
        raise ConfigError(f"{folder / CONFIG}: {error}") from error
    if not run.steps():
        run.require_unchanged_config()
    for key, (old, new) in _changes(run, config).items():
        if key not in _CHANGEABLE:
            may = ", ".join(name.rpartition(".")[2] for name in _CHANGEABLE)
            raise RunError(
                f"{key} in {run.folder / CONFIG} is {json.dumps(new)}, and the run was trained with "
                f"{json.dumps(old)}: change it back, or start a new run (these may be changed: {may})"
            )
    return config


def changed_keys(folder: Path) -> list[str]:
    """Return a line for each key that was changed in the config of a run since its last checkpoint."""
    run = Run.open(folder)
    return [
        f"{key} is {json.dumps(new)} in {folder / CONFIG}, and was {json.dumps(old)} so far"
        for key, (old, new) in _changes(run, resumed(folder)).items()
    ]


def _changes(run: Run, config: Experiment) -> dict[str, tuple[Any, Any]]:
    """Return the pairs of values, by key, in which the config of the last checkpoint differs from this one."""
    steps = run.steps()
    if not steps:
        return {}
    try:
        trained_with = to_table(from_table(Experiment, run.state().config))
    except ConfigError as error:
        raise run.unusable(steps[-1], error) from error
    return differing(trained_with, to_table(config))
