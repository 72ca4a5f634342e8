"""What a study is asked to do, as it stands in `study.json`, and the experiment that hyper-parameters make of it.

An experiment is a preset, over it what the space fixes, over that the user's settings, and over all of them the
hyper-parameters of the trial. A key that the user sets is searched no more.
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
from zloss_lab.configuration import ConfigError, from_table, overridden, to_table
from zloss_lab.corpora import Corpus
from zloss_lab.durable import write_file
from zloss_lab.evaluation import require_score
from zloss_lab.experiments import build_table, parse_settings
from zloss_lab.runs import RunError
from zloss_lab.training import Experiment, batches_of, device_of
from zloss_lab.tuning.space import Space

FILE = "study.json"
# What may differ between the workers of a study, or change while it goes on.
_OF_A_WORKER = ("corpus", "trials", "storage", "name")


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """What is asked of a study."""

    corpus: str  # folder of a prepared corpus
    space: dict[str, Any]  # the table of a space
    score: str  # of the validation: top_K_error, mean_rank, perplexity, or mrr, which alone is made large
    preset: str
    settings: list[str]  # KEY=VALUE
    trials: int
    seed: int
    prunes: bool  # whether trials that lie behind are stopped
    first: (
        int | None
    )  # steps after which each trial ends with its only validation, or None for whole trainings
    storage: str | None  # an Optuna URL; None for SQLite in the folder of the study
    name: str  # of the study in its storage

    @cached_property
    def searched(self) -> Space:
        """The space, without what the user has set."""
        return Space.parse(self.space).without(parse_settings(self.settings))

    def experiment(self, hyper_parameters: Mapping[str, Any]) -> Experiment:
        """The whole training that these settings by dotted keys define."""
        table = build_table(self.preset, [self.searched.fixed], parse_settings(self.settings))
        table = overridden(table, {**hyper_parameters, "training.score": self.score})
        return from_table(Experiment, {**table, "corpus": self.corpus})

    def trial(self, hyper_parameters: Mapping[str, Any]) -> Experiment:
        """The training that a trial gets: the whole one, validated where it is to be broken off."""
        whole = self.experiment(hyper_parameters)
        if self.first is None:
            return whole
        return dataclasses.replace(
            whole, training=dataclasses.replace(whole.training, validate_every=self.first)
        )

    def identity(self) -> dict[str, Any]:
        """What all workers of a study must have been asked, wherever they run."""
        asked = {
            name: value
            for name, value in dataclasses.asdict(self).items()
            if name not in _OF_A_WORKER
        }
        return asked | {"vocabulary": Corpus.open(self.corpus).vocabulary_sha256}

    def check(self) -> None:
        """Refuse what cannot work before anything is written."""
        for name in ("trials", "first"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise ConfigError(f"--{name} must be at least 1, got {number}")
        self._check_keys()
        examples = [self.experiment(settings) for settings in self.searched.examples()]
        device_of(examples[0].device)  # that of all: it cannot be searched
        self._check_data(examples)

    def _check_keys(self) -> None:
        settings = parse_settings(self.settings)
        if "score" in overridden(self.searched.fixed, settings).get("training", {}):
            raise ConfigError(
                "training.score does not belong there: a study has its own, named by --score"
            )
        table = build_table(self.preset, [self.searched.fixed], settings)
        known = list(_known_keys(from_table(Experiment, {**table, "corpus": self.corpus})))
        for key in self.searched.search:
            try:
                check_name("key in [search]", key, known)
            except ValueError as error:
                raise ConfigError(str(error)) from error

    def _check_data(self, examples: Sequence[Experiment]) -> None:
        """Whether there is something to validate on, and all heads have the score."""
        corpus = Corpus.open(self.corpus)
        if "valid" not in corpus.splits:
            raise RunError(
                f"{corpus.folder} has no validation split, and trials are judged by nothing else"
            )
        counts, checked = torch.tensor(corpus.vocabulary.counts), list[HeadConfig]()
        for config in (example.network.head for example in examples):
            if config not in checked:
                # One unit wide: enough to know what the head can tell.
                head = config.build(1, len(corpus.vocabulary), counts=counts)
                require_score(self.score, is_likelihood=head.is_likelihood)
                checked.append(config)

    def check_text(self) -> None:
        """Refuse contexts and batches that the text has too few words or no sentences for."""
        corpus = Corpus.open(self.corpus)
        examples = map(self.experiment, self.searched.examples())
        # Most differ in what the text does not see, and to look for sentences in a long one takes a while.
        differing = {
            (one.network.context, one.training.batch_size, one.training.mode): one
            for one in examples
        }
        for example in differing.values():
            for split in ("train", "valid"):
                batches_of(corpus, split, example, torch.device("cpu"), shuffle=split == "train")

    # ---- in its folder -----------------------------------------------------------------------------------------------

    def write(self, folder: Path) -> None:
        """Put it into the folder of its study."""
        write_file(folder / FILE, json.dumps(dataclasses.asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> "StudyPlan":
        """That of the study in a folder."""
        path = folder / FILE
        if not path.is_file():
            raise RunError(f"{folder} is not a study: there is no {FILE} in it")
        try:
            return from_table(cls, json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise RunError(f"{path} cannot be read: {error}") from error


def _known_keys(experiment: Experiment) -> Iterator[str]:
    """All keys of an experiment that can be searched, those of its head among them."""
    head = experiment.network.head
    for table, keys in to_table(experiment).items():
        if isinstance(keys, dict):
            yield from (f"{table}.{key}" for key in keys if key != "score")
    yield from ("network.head.head", "network.head.loss")
    yield from (
        f"network.head.{option}"
        for option in (*HEADS[head.head].options, *LOSSES[head.loss].options)
    )
