"""Training an n-gram language model: `fit(config, folder) -> Run`, resumable at any step to the identical result.

A run that was killed continues as if nothing had happened, bit for bit on a CPU. The exception is a run with a time
limit, `training.seconds`. Its result depends on the speed of the machine. After an interruption it continues for the
time that is left, and the result is not identical.
"""

from zloss_lab.training.assembly import (
    batches_of,
    build_network,
    build_optimizers,
    device_of,
    load_network,
    open_corpus,
)
from zloss_lab.training.experiment import Experiment, TrainingConfig
from zloss_lab.training.fitting import fit, resumed
from zloss_lab.training.interrupts import deferred_interrupt
from zloss_lab.training.progress import TrainingProgress, TrainingWatcher
from zloss_lab.training.schedule import Schedule, linear_factor
from zloss_lab.training.trainer import DivergedError, Trainer

__all__ = [
    "DivergedError",
    "Experiment",
    "Schedule",
    "Trainer",
    "TrainingConfig",
    "TrainingProgress",
    "TrainingWatcher",
    "batches_of",
    "build_network",
    "build_optimizers",
    "deferred_interrupt",
    "device_of",
    "fit",
    "linear_factor",
    "load_network",
    "open_corpus",
    "resumed",
]
