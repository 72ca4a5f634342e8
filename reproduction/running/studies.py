"""The searches for settings on Penn Treebank, one for each loss, and the settings that were best by any score.

A folder of studies has a study with the name of every loss, as `zloss tune run FOLDER/z_loss --space z_loss` makes it.
Every trial keeps all scores, so one study is enough for all of them. A loss may have more studies, each for one score,
such as `z_loss-mrr`. The best settings are then taken from all of its studies.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reproduction.running.chosen import Chosen
from reproduction.scores import PAPER_SCORES, top
from zloss_lab.configuration import dotted, overridden
from zloss_lab.experiments import parse_settings
from zloss_lab.runs import RunError
from zloss_lab.tuning.plan import PLAN_FILE, StudyPlan
from zloss_lab.tuning.space import PRESET_OF_SPACES, space_table
from zloss_lab.tuning.study import TuningStudy
from zloss_lab.tuning.trials import Trial, cost, ranked

SCORE = top(10)  # of a search, unless a user asks for another


@dataclass(frozen=True, kw_only=True)
class SearchedLoss:
    """A loss with the trials of its studies, and changes over the best settings."""

    loss: str
    tried: Sequence[tuple[StudyPlan, Trial]]
    # Replaces the folder of the text in the studies, which may be of another machine.
    corpus: Path | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)  # by dotted keys

    @classmethod
    def read(
        cls,
        studies: Path,
        loss: str,
        *,
        corpus: Path | None = None,
        changes: Mapping[str, Any] | None = None,
    ) -> "SearchedLoss":
        """Read all trials that have ended."""
        opened = [TuningStudy.open(folder) for folder in _folders(studies, loss)]
        tried = [(study.plan, trial) for study in opened for trial in study.trials()]
        ended = [
            (plan, trial) for plan, trial in tried if trial.state not in ("running", "interrupted")
        ]
        return cls(loss=loss, tried=ended, corpus=corpus, changes=changes or {})

    def best(self, score: str) -> Chosen:
        """Return the settings that validated best by a score."""
        plan, trial = self._best(score)
        corpus = plan.corpus if self.corpus is None else str(self.corpus.resolve())
        # All networks are trained by one score, so that networks for different scores can stand in one stack.
        experiment = dataclasses.replace(plan, corpus=corpus, score=SCORE).experiment(
            trial.settings
        )
        if experiment.network.head.loss != self.loss:
            raise RunError(
                f"the study {plan.name} is one of {experiment.network.head.loss}, not of {self.loss}"
            )
        keys = dotted(
            overridden(plan.searched.fixed, parse_settings(plan.settings) | trial.settings)
        )
        return Chosen.of(experiment, ["training.epochs", *(key for key, _ in keys)]).changed(
            self.changes
        )

    def trials(self, score: str) -> int:
        """Return the number of settings that were tried, which is the same for all scores."""
        return len(self.tried)

    def _best(self, score: str) -> tuple[StudyPlan, Trial]:
        judged = [(plan, trial) for plan, trial in self.tried if ranked([trial], score)]
        if not judged:
            raise RunError(
                f"no trial of {self.loss} has been judged by {score} yet: go on with its search"
            )
        return min(judged, key=lambda one: cost(one[1].best(score) or {}, score))


def search_plan(
    loss: str,
    *,
    corpus: Path,
    score: str,
    trials: int,
    settings: Sequence[str],
    seed: int,
    prunes: bool,
) -> StudyPlan:
    """Return the plan of the study of a loss."""
    return StudyPlan(
        corpus=str(corpus.resolve()),
        space=space_table(loss),
        score=score,
        preset=PRESET_OF_SPACES,
        settings=list(settings),
        trials=trials,
        seed=seed,
        prunes=prunes,
        first=None,
        storage=None,
        name=study_name(loss, score),
    )


def study_name(loss: str, score: str) -> str:
    """Return the name of a study, which is the name of its folder.

    >>> study_name("z_loss", "top_10_error"), study_name("z_loss", "mrr")
    ('z_loss', 'z_loss-mrr')
    """
    return loss if score == SCORE else f"{loss}-{score}"


def has_study(studies: Path, loss: str) -> bool:
    """Return whether a folder of studies has one of a loss."""
    return bool(_folders(studies, loss))


def _folders(studies: Path, loss: str) -> list[Path]:
    folders = [studies / study_name(loss, score) for score in PAPER_SCORES]
    return [folder for folder in folders if (folder / PLAN_FILE).is_file()]
