"""Training an n-gram language model: `fit(config, folder) -> Run`, resumable at any step to the identical result.

A run that was killed continues as if nothing had happened, bit for bit on a CPU. The exception is a run with a time
limit, `training.seconds`. Its result depends on the speed of the machine. After an interruption it continues for the
time that is left, and the result is not identical.
"""

from zloss_lab.training.assembly import batches_of as batches_of
from zloss_lab.training.assembly import build_network as build_network
from zloss_lab.training.assembly import build_optimizers as build_optimizers
from zloss_lab.training.assembly import device_of as device_of
from zloss_lab.training.assembly import load_network as load_network
from zloss_lab.training.assembly import open_corpus as open_corpus
from zloss_lab.training.experiment import Experiment as Experiment
from zloss_lab.training.experiment import TrainingConfig as TrainingConfig
from zloss_lab.training.fitting import changed_keys as changed_keys
from zloss_lab.training.fitting import fit as fit
from zloss_lab.training.fitting import resumed as resumed
from zloss_lab.training.interrupts import deferred_interrupt as deferred_interrupt
from zloss_lab.training.progress import TrainingProgress as TrainingProgress
from zloss_lab.training.progress import TrainingWatcher as TrainingWatcher
from zloss_lab.training.schedule import Schedule as Schedule
from zloss_lab.training.schedule import linear_factor as linear_factor
from zloss_lab.training.trainer import DivergedError as DivergedError
from zloss_lab.training.trainer import Trainer as Trainer
