"""The plan of a study, as `study.json` has it, and the experiment that a choice of hyper-parameters defines.

An experiment is put together from four layers. Each layer overrides the one before:

1. the preset,
2. the fixed part of the space,
3. the settings of the user,
4. the hyper-parameters of the trial.

A key that the user sets is no longer searched.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from zloss.heads.config import HEADS, LOSSES, HeadConfig
from zloss.names import check_name
from zloss_lab.checksums import CHECKSUM, sealed, unsealed
from zloss_lab.configuration import ConfigError, from_table, overridden, to_table
from zloss_lab.corpora import Corpus
from zloss_lab.durable import write_file
from zloss_lab.evaluation import require_score
from zloss_lab.experiments import build_table, parse_settings
from zloss_lab.json_text import read_json_object
from zloss_lab.runs import RunError
from zloss_lab.training import Experiment, batches_of, device_of
from zloss_lab.tuning.space import Space

PLAN_FILE = "study.json"
# Fields that may differ between the workers of a study, or change while it goes on.
_OF_A_WORKER = ("corpus", "trials", "storage", "name")


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """The request that makes a study: the corpus, the space, the score to improve, and the number of trials."""

    corpus: str  # folder of a prepared corpus
    space: dict[str, Any]  # the table of a space
    score: str  # of the validation: mrr is maximized; top_K_error, mean_rank and perplexity are minimized
    preset: str
    settings: list[str]  # KEY=VALUE
    trials: int
    seed: int
    prunes: bool  # whether bad trials are stopped early
    # Steps after which each trial is validated once and ends. None for whole trainings.
    first: int | None
    storage: str | None  # an Optuna URL; None for SQLite in the folder of the study
    name: str  # of the study in its storage

    @cached_property
    def searched(self) -> Space:
        """The space, without the keys that the user has set."""
        return Space.parse(self.space).without(parse_settings(self.settings))

    def experiment(self, hyper_parameters: Mapping[str, Any]) -> Experiment:
        """Return the whole training that these hyper-parameters define, given by dotted keys."""
        table = build_table(self.preset, [self.searched.fixed], parse_settings(self.settings))
        table = overridden(table, {**hyper_parameters, "training.score": self.score})
        return from_table(Experiment, {**table, "corpus": self.corpus})

    def trial(self, hyper_parameters: Mapping[str, Any]) -> Experiment:
        """Return the training of a trial: the whole training, but validated after `first` steps if that is set."""
        whole = self.experiment(hyper_parameters)
        if self.first is None:
            return whole
        return dataclasses.replace(
            whole, training=dataclasses.replace(whole.training, validate_every=self.first)
        )

    def identity(self) -> dict[str, Any]:
        """Return the part of the plan that all workers of a study must agree in, wherever they run."""
        asked = {
            name: value
            for name, value in dataclasses.asdict(self).items()
            if name not in _OF_A_WORKER
        }
        return asked | {"vocabulary": Corpus.open(self.corpus).vocabulary_sha256}

    def check(self) -> None:
        """Raise an error for a plan that cannot work, before anything is written."""
        for name in ("trials", "first"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise ConfigError(f"--{name} must be at least 1, got {number}")
        self._check_keys()
        examples = [self.experiment(settings) for settings in self.searched.examples()]
        device_of(examples[0].device)  # the same for all: the device cannot be searched
        self._check_data(examples)

    def _check_keys(self) -> None:
        settings = parse_settings(self.settings)
        if "score" in overridden(self.searched.fixed, settings).get("training", {}):
            raise ConfigError(
                "training.score does not belong there, in the space or in --set: name the score by --score"
            )
        table = build_table(self.preset, [self.searched.fixed], settings)
        known = list(_known_keys(from_table(Experiment, {**table, "corpus": self.corpus})))
        for key in self.searched.search:
            try:
                check_name("key in [search]", key, known)
            except ValueError as error:
                raise ConfigError(str(error)) from error

    def _check_data(self, examples: Sequence[Experiment]) -> None:
        """Raise an error where the corpus has no validation split, or a head does not have the score."""
        corpus = Corpus.open(self.corpus)
        if "valid" not in corpus.splits:
            raise RunError(f"{corpus.folder} has no validation split, by which trials are compared")
        counts, checked = torch.tensor(corpus.vocabulary.counts), list[HeadConfig]()
        for config in (example.network.head for example in examples):
            if config not in checked:
                # A head that is one unit wide is enough to ask whether it gives probabilities.
                head = config.build(1, len(corpus.vocabulary), counts=counts)
                require_score(self.score, is_likelihood=head.is_likelihood)
                checked.append(config)

    def check_text(self) -> None:
        """Raise an error where the text has too few words or sentences for a context or a batch of the search."""
        corpus = Corpus.open(self.corpus)
        examples = map(self.experiment, self.searched.examples())
        # Most examples make the same batches. To look for sentences in a long text takes a while.
        differing = {
            (one.network.context, one.training.batch_size, one.training.mode): one
            for one in examples
        }
        for example in differing.values():
            for split in ("train", "valid"):
                batches_of(corpus, split, example, torch.device("cpu"), shuffle=split == "train")

    # ---- in its folder -----------------------------------------------------------------------------------------------

    def write(self, folder: Path) -> None:
        """Write the plan into the folder of its study."""
        write_file(
            folder / PLAN_FILE, json.dumps(sealed(dataclasses.asdict(self)), indent=2) + "\n"
        )

    @classmethod
    def read(cls, folder: Path) -> "StudyPlan":
        """Return the plan of the study in a folder."""
        path = folder / PLAN_FILE
        if not path.is_file():
            raise RunError(
                f"{folder} is not a study: there is no {PLAN_FILE} in it; name a folder that `zloss tune run` has made"
            )
        try:
            table = read_json_object(path)
            # The user may remove the checksum, together with a change on purpose.
            return from_table(cls, unsealed(table) if CHECKSUM in table else table)
        except (OSError, ValueError) as error:
            raise RunError(
                f"{path} cannot be read: {error}; whoever changes it on purpose removes its {CHECKSUM} too"
            ) from error


def _known_keys(experiment: Experiment) -> Iterator[str]:
    """Yield the keys of an experiment that can be searched, with the options of its head and its loss."""
    head = experiment.network.head
    for table, keys in to_table(experiment).items():
        if isinstance(keys, dict):
            yield from (f"{table}.{key}" for key in keys if key != "score")
    yield from ("network.head.head", "network.head.loss")
    yield from (
        f"network.head.{option}"
        for option in (*HEADS[head.head].options, *LOSSES[head.loss].options)
    )
