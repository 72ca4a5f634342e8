"""Small examples of all files that the lab reads again, and the reading of them as commands do it.

The examples are made once in a process. An attempt of the campaign gets a copy, does something to one file, and reads.
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.campaign.process_folder import process_folder
from tests.lab.pets import pets_corpus
from tests.lab.small_runs import experiment
from tests.lab.tuning.tiny import ONLY_LR, MadeUp, distance, made_up
from zloss_lab.configuration import ConfigError, to_table
from zloss_lab.corpora import Corpus, CorpusError
from zloss_lab.inspection.run_table import run_row
from zloss_lab.inspection.trained_model import TrainedModel
from zloss_lab.records import Recordable, RecordKey, read_records_as, write_records
from zloss_lab.runs import Run, RunError
from zloss_lab.training import changed_keys, fit, resumed
from zloss_lab.tuning.study import TuningStudy

# Errors of the lab by kind of file. Any other error would be a traceback, or words of another library.
REFUSALS: Mapping[str, tuple[type[ValueError], ...]] = {
    "corpus": (CorpusError,),
    "run": (RunError, ConfigError, CorpusError),
    "study": (RunError, ConfigError),
    "records": (ValueError,),
}


@dataclass(frozen=True, kw_only=True)
class Measured(Recordable):
    """A record, as benchmarks and experiments write them."""

    name: str
    score: float
    seed: int

    @property
    def key(self) -> RecordKey:
        """The name and the seed."""
        return self.name, self.seed


Reader = Callable[[Path], "Reading"]


@dataclass(frozen=True)
class Works:
    """A folder with the examples.

    Args:
        folder: the folder.
        files: the files that are read again, relative to the folder.
        readings: what each reader returns.
    """

    folder: Path
    files: tuple[Path, ...]
    readings: Mapping[Reader, "Reading"]

    def copy(self, folder: Path, kind: str) -> None:
        """Copy the examples of one kind into another folder."""
        shutil.copytree(self.folder / kind, folder / kind)


@cache
def works() -> Works:
    """Return the examples, which are made in a folder that ends with the process."""
    folder = process_folder() / "examples"
    folder.mkdir()
    pets_corpus(folder, lines=40).rename(folder / "corpus")
    options: dict[str, Any] = {"lr": 0.003, "optimizer": "adam", "validation_examples": 20}
    options |= {"steps": 4, "checkpoint_every": 2, "validate_every": 2, "log_every": 1}
    run = fit(experiment(folder / "corpus", **options), folder / "run")
    assert run.steps() == [2, 4]
    made_up(folder / "corpus", folder / "study", MadeUp(distance), space=ONLY_LR, trials=3)
    (folder / "records").mkdir()
    records = [Measured(name="factored", score=0.25 + seed / 3, seed=seed) for seed in range(3)]
    write_records(folder / "records" / "a.jsonl", records)
    files = [path for kind in READERS for path in (folder / kind).rglob("*") if path.is_file()]
    read_again = sorted(path for path in files if "tfevents" not in path.name)
    readings = {read: read(folder) for readers in READERS.values() for read in readers}
    return Works(folder, tuple(path.relative_to(folder) for path in read_again), readings)


@dataclass(frozen=True)
class Reading:
    """What a reader has returned.

    Args:
        content: the content of the files.
        config: the config of a run, which users may change.
        told: what a command prints about changes of the config.
    """

    content: Any
    config: Any = None
    told: tuple[str, ...] = ()

    def agrees_with(self, whole: "Reading") -> bool:
        """Return whether this is the content of whole files, with words about any change of the config."""
        is_known = self.config == whole.config or bool(self.told)
        return is_known and self.content == whole.content


def read_corpus(folder: Path) -> Reading:
    """Return everything that a corpus holds."""
    corpus = Corpus.open(folder / "corpus", verify=True)
    vocabulary = (corpus.vocabulary.words, np.asarray(corpus.vocabulary.counts).tolist())
    splits = {split: np.asarray(corpus.split(split)).tolist() for split in corpus.splits}
    roles = (corpus.boundary, corpus.padding, corpus.unknown)
    return Reading((corpus.manifest, vocabulary, splits, roles))


def list_run(folder: Path) -> Reading:
    """Return what `zloss runs` and `zloss plot` show of a run."""
    run = Run.open(folder / "run")
    return Reading((run_row(run) | {"run": ""}, run.metrics()))


def apply_run(folder: Path) -> Reading:
    """Return what `zloss predict` and `zloss evaluate` show of a run."""
    told = changed_keys(folder / "run")
    model = TrainedModel.load(folder / "run")
    scores = model.evaluate("valid").to_record()
    return Reading((model.predict("the cat sat", 5), scores), to_table(model.experiment), (*told,))


def resume_run(folder: Path) -> Reading:
    """Return everything that a run holds, read as by `zloss train --resume`."""
    run = Run.open(folder / "run")
    config, told = resumed(run.folder), changed_keys(run.folder)
    checkpoints = {}
    for step in run.steps():
        loaded = run.load(step)
        tensors = {
            name: (
                str(tensor.dtype),
                tuple(tensor.shape),
                bytes(tensor.reshape(-1).view(torch.uint8)),
            )
            for name, tensor in loaded.tensors.items()
        }
        checkpoints[step] = (to_table(loaded.state), tensors)
    run.forget_after(run.steps()[-1])
    return Reading((checkpoints, run.metrics()), to_table(config), (*told,))


def read_study(folder: Path) -> Reading:
    """Return everything that a study holds, without the name of the folder."""
    study = TuningStudy.open(folder / "study")
    return Reading(([replace(trial, seconds=None) for trial in study.trials()], study.plan))


def read_records_again(folder: Path) -> Reading:
    """Return the records of a file."""
    return Reading(read_records_as(Measured, folder / "records" / "a.jsonl"))


# Each reader has to notice damage by itself: commands differ in what they look at.
READERS: Mapping[str, tuple[Reader, ...]] = {
    "corpus": (read_corpus,),
    "run": (list_run, apply_run, resume_run),
    "study": (read_study,),
    "records": (read_records_again,),
}
