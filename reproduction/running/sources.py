"""Sources of the settings of a figure: studies of its losses, or else records that were made with such settings.

A search takes long, and records have the settings that it found. So a user with records needs no studies to add seeds,
or to make the records anew. The records of the figure itself come first, then figures 2 and 5, which have every loss.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from reproduction.results.schema import SweepPoint, TrainingResult, TunedResult
from reproduction.running.chosen import CORPUS, Chosen
from reproduction.running.ledger import Ledger
from reproduction.running.messages import Tell
from reproduction.running.studies import SCORE, SearchedLoss, has_study
from zloss_lab.configuration import from_table, overridden
from zloss_lab.experiments import build_table
from zloss_lab.runs import RunError
from zloss_lab.training import Experiment
from zloss_lab.tuning.space import PRESET_OF_SPACES


class SettingsSource(Protocol):
    """A source of the best settings of a loss."""

    @property
    def loss(self) -> str:
        """The key of the loss."""

    def best(self, score: str) -> Chosen:
        """Return the settings that validated best by a score."""

    def trials(self, score: str) -> int:
        """Return the number of settings that these were chosen from."""


@dataclass(frozen=True, kw_only=True)
class RecordedLoss:
    """A loss with the settings of records, and changes over them."""

    loss: str
    results: Mapping[str, TrainingResult]  # by the score that it was tuned for
    corpus: Path
    changes: Mapping[str, Any]  # by dotted keys

    def best(self, score: str) -> Chosen:
        """Return the settings of the records. The preset of all searches has the values that were not set."""
        recorded = self.results[score].settings
        settings = {key: value for key, value in recorded.items() if key != CORPUS}
        table = build_table(PRESET_OF_SPACES, [overridden({}, settings)], {})
        experiment = from_table(Experiment, {**table, "corpus": str(self.corpus.resolve())})
        return Chosen.of(experiment, settings).changed(self.changes)

    def trials(self, score: str) -> int:
        """Return the number of settings that these were chosen from. Only figures 2 and 5 need it, and have it."""
        result = self.results[score]
        assert isinstance(result, TunedResult)
        return result.trials


@dataclass(frozen=True, kw_only=True)
class SettingsPlaces:
    """The places to look for settings, and changes over the settings that are found."""

    studies: Path
    # The folder of the records that are being made. Without a study, their own settings are used again.
    records: Path
    settings_of: Path | None = None  # other records, in place of both
    corpus: Path | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)  # by dotted keys

    def find(
        self, figure: int, losses: Sequence[str], scores: Sequence[str], tell: Tell
    ) -> list[SettingsSource]:
        """Return a source for each loss, with settings for these scores, and report where they are from."""
        searched = [loss for loss in losses if self._has_study(loss)]
        recorded = [loss for loss in losses if loss not in searched]
        sources: dict[str, SettingsSource] = {loss: self._searched(loss) for loss in searched}
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

    def _searched(self, loss: str) -> SearchedLoss:
        return SearchedLoss.read(self.studies, loss, corpus=self.corpus, changes=self.changes)

    def _recorded(self, figure: int, loss: str, scores: Sequence[str]) -> RecordedLoss:
        results = _results_by_score(self._folder, figure, loss)
        if lacking := [score for score in scores if score not in results]:
            no_study = f"no study in {self.studies} and " if self.settings_of is None else ""
            raise RunError(
                f"there are no settings of {loss} for {', '.join(lacking)}: {no_study}no record in {self._folder}. "
                "Name a folder of records that have them by --settings-of FOLDER, or search for them by "
                f"`python -m reproduction run search --losses {loss} --studies {self.studies} --corpus FOLDER`"
            )
        if self.corpus is None:
            raise RunError(
                f"the records in {self._folder} do not say where their text lies: name it by --corpus FOLDER"
            )
        return RecordedLoss(loss=loss, results=results, corpus=self.corpus, changes=self.changes)


def _results_by_score(records: Path, figure: int, loss: str) -> dict[str, TrainingResult]:
    """Return a result for each score that a loss was tuned for. Seeds of a choice have the same settings."""
    results: dict[str, TrainingResult] = {}
    for number in (figure, 2, 5):
        for result in Ledger(records, f"figure{number}").results():
            # Figures 3 and 4 show the Z-loss, and figure 3 has the settings that are best for one score.
            found_loss = result.loss if isinstance(result, TunedResult) else "z_loss"
            if found_loss == loss:
                score = SCORE if isinstance(result, SweepPoint) else result.tuned_for
                results.setdefault(score, result)
    return results
