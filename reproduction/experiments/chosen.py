"""Settings that were chosen for a training: the experiment that they make, and what of it was tuned or set."""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from reproduction.report.records import LOOKS
from zloss_lab.configuration import differing, dotted, from_table, overridden, to_table
from zloss_lab.corpora.corpus import read_manifest
from zloss_lab.training import Experiment

# Neither is a setting of a choice: one is where it was trained, the other is what seeds of a choice differ in.
_NO_SETTINGS = ("device", "training.seed")
# By its name, not by the folder that it lies in: the same settings on another text are another choice.
CORPUS = "corpus"


@dataclass(frozen=True)
class Chosen:
    """An experiment, and what was tuned or set of it, by dotted keys."""

    experiment: Experiment
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, experiment: Experiment, keys: Iterable[str]) -> "Chosen":
        """An experiment that was tuned or set at these keys."""
        chosen = set(keys).difference([*_NO_SETTINGS, *LOOKS, CORPUS])
        settings = {key: value for key, value in dotted(to_table(experiment)) if key in chosen}
        return cls(experiment, {CORPUS: read_manifest(Path(experiment.corpus))["name"], **settings})

    @cached_property
    def digest(self) -> str:
        """Of all that decides what the training comes to but the seed: presets too, and the words of the text."""
        manifest = read_manifest(Path(self.experiment.corpus))
        table = {
            key: value
            for key, value in dotted(to_table(self.experiment))
            if key not in (*_NO_SETTINGS, *LOOKS)
        }
        table |= {CORPUS: [manifest["name"], manifest["vocabulary"]["sha256"]]}
        return digest_of(table)

    def changed(self, settings: Mapping[str, Any]) -> "Chosen":
        """With other values at dotted keys. What has its value already is not set by that."""
        experiment = from_table(Experiment, overridden(to_table(self.experiment), settings))
        return self.of(
            experiment,
            [*self.settings, *differing(to_table(self.experiment), to_table(experiment))],
        )

    def seeded(self, seed: int) -> Experiment:
        """The experiment of a seed."""
        training = dataclasses.replace(self.experiment.training, seed=seed)
        return dataclasses.replace(self.experiment, training=training)


def digest_of(table: Mapping[str, Any]) -> str:
    """A short name for what is in a table, in whatever order."""
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:12]
