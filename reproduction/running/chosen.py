"""Settings that were chosen for a training: the experiment that they make, and the settings that were tuned or set."""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from zloss_lab.configuration import differing, dotted, from_table, overridden, to_table
from zloss_lab.corpora.manifest import read_manifest
from zloss_lab.training import Experiment

# The key of the text, whose value is its name and not its folder. The same settings on another text are another choice.
CORPUS = "corpus"
# A result does not depend on these.
_WITHOUT_EFFECT = (
    "training.log_every",
    "training.checkpoint_every",
    "training.keep",
    "training.graph",
)
# These are not settings of a choice: the machine, the seed, and whatever has no effect.
_NO_SETTINGS = ("device", "training.seed", *_WITHOUT_EFFECT)


@dataclass(frozen=True)
class Chosen:
    """An experiment, and its settings that were tuned or set, by dotted keys."""

    experiment: Experiment
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, experiment: Experiment, keys: Iterable[str]) -> "Chosen":
        """Return an experiment that was tuned or set at these keys."""
        chosen = set(keys).difference([*_NO_SETTINGS, CORPUS])
        settings = {key: value for key, value in dotted(to_table(experiment)) if key in chosen}
        return cls(experiment, {CORPUS: read_manifest(Path(experiment.corpus))["name"], **settings})

    @cached_property
    def digest(self) -> str:
        """A digest of all settings that affect the result, except the seed.

        The values of presets and the words of the text are part of it.
        """
        manifest = read_manifest(Path(self.experiment.corpus))
        table = {
            key: value
            for key, value in dotted(to_table(self.experiment))
            if key not in _NO_SETTINGS
        }
        table |= {CORPUS: [manifest["name"], manifest["vocabulary"]["sha256"]]}
        return digest_of(table)

    def changed(self, settings: Mapping[str, Any]) -> "Chosen":
        """Return the same with other values at dotted keys. A value that stays the same does not count as set."""
        experiment = from_table(Experiment, overridden(to_table(self.experiment), settings))
        return self.of(
            experiment,
            [*self.settings, *differing(to_table(self.experiment), to_table(experiment))],
        )

    def seeded(self, seed: int) -> Experiment:
        """Return the experiment with a seed."""
        training = dataclasses.replace(self.experiment.training, seed=seed)
        return dataclasses.replace(self.experiment, training=training)


def digest_of(table: Mapping[str, Any]) -> str:
    """Return a short name for the content of a table. The order of the keys does not matter."""
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:12]
