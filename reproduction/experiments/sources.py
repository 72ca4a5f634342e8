"""Where the settings of a figure come from: studies of its losses, or else records that were made with such settings.

A search takes long, and records say what it has found. So whoever has records needs no studies to add seeds to them, or
to make them anew. Those of the figure itself count first, then those of figures 2 and 5, which have every loss.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from reproduction.experiments.chosen import CORPUS, Chosen
from reproduction.experiments.ledger import Entry, Ledger
from reproduction.experiments.studies import PRESET, SCORE, Searched, has_study
from zloss_lab.configuration import from_table, overridden
from zloss_lab.experiments import build_table
from zloss_lab.runs import RunError
from zloss_lab.training import Experiment

# What records leave unsaid: figures 3 and 4 are of this loss, and figure 3 has what is best for this score.
_UNSAID = {"loss": "z_loss", "tuned_for": SCORE}


class Source(Protocol):
    """What knows the best settings of a loss."""

    @property
    def loss(self) -> str:
        """Its name."""

    def best(self, score: str) -> Chosen:
        """The settings that validated best by a score."""

    def trials(self, score: str) -> int:
        """How many settings these were chosen from."""


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """The settings of a loss that records were made with, and what is to be changed of them."""

    loss: str
    entries: Mapping[str, Entry]  # by the score that it was tuned for
    corpus: Path
    changes: Mapping[str, Any]  # by dotted keys

    def best(self, score: str) -> Chosen:
        """The settings of the records. What they do not say is that of the preset of all searches."""
        _, result = self.entries[score]
        settings = {key: value for key, value in result.settings.items() if key != CORPUS}
        table = build_table(PRESET, [overridden({}, settings)], {})
        experiment = from_table(Experiment, {**table, "corpus": str(self.corpus.resolve())})
        return Chosen.of(experiment, settings).changed(self.changes)

    def trials(self, score: str) -> int:
        """How many settings these were chosen from; figures 3 and 4 do not say, nor do they ask."""
        record, _ = self.entries[score]
        return int(record["trials"])


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where to look for settings, and what is to be changed of them."""

    studies: Path
    records: Path  # those that are being made: where there is no study, they go on with their own settings
    settings_of: Path | None = None  # other records, in place of both
    corpus: Path | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)  # by dotted keys

    def find(
        self, figure: int, losses: Sequence[str], scores: Sequence[str], tell: Callable[[str], None]
    ) -> list[Source]:
        """The settings of some losses for some scores; tells where they come from."""
        searched = [loss for loss in losses if self._has_study(loss)]
        recorded = [loss for loss in losses if loss not in searched]
        sources: dict[str, Source] = {loss: self._searched(loss) for loss in searched}
        sources |= {loss: self._recorded(figure, loss, scores) for loss in recorded}
        places = {
            f"the studies in {self.studies}": searched,
            f"the records in {self._folder}": recorded,
        }
        tell(
            "settings: "
            + "; ".join(f"{', '.join(some)} from {place}" for place, some in places.items() if some)
        )
        return [sources[loss] for loss in losses]

    @property
    def _folder(self) -> Path:
        return self.records if self.settings_of is None else self.settings_of

    def _has_study(self, loss: str) -> bool:
        return self.settings_of is None and has_study(self.studies, loss)

    def _searched(self, loss: str) -> Searched:
        return Searched.read(self.studies, loss, corpus=self.corpus, changes=self.changes)

    def _recorded(self, figure: int, loss: str, scores: Sequence[str]) -> Recorded:
        entries = _entries(self._folder, figure, loss)
        if lacking := [score for score in scores if score not in entries]:
            no_study = f"no study in {self.studies} and " if self.settings_of is None else ""
            raise RunError(
                f"there are no settings of {loss} for {', '.join(lacking)}: {no_study}no record in {self._folder}. "
                "Name a folder of records that have them by --settings-of FOLDER, or search for them by "
                f"`zloss paper search --losses {loss} --studies {self.studies} --corpus FOLDER`"
            )
        if self.corpus is None:
            raise RunError(
                f"the records in {self._folder} do not say where their text lies: name it by --corpus FOLDER"
            )
        return Recorded(loss=loss, entries=entries, corpus=self.corpus, changes=self.changes)


def _entries(records: Path, figure: int, loss: str) -> dict[str, Entry]:
    """One for each score that a loss was tuned for: seeds of a choice have the same settings."""
    entries: dict[str, Entry] = {}
    for number in (figure, 2, 5):
        for record, result in Ledger(records, f"figure{number}").entries():
            told = _UNSAID | record
            if told["loss"] == loss:
                entries.setdefault(told["tuned_for"], (record, result))
    return entries
