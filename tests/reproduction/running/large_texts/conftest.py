"""The command `table2` on a small text, with short trainings."""

from pathlib import Path
from typing import Any

import pytest

from reproduction.running.large_texts import run_folders
from tests.reproduction.running.small import MODEL
from zloss_lab.runs import Run
from zloss_lab.training import Experiment, fit


@pytest.fixture
def table2(corpus: Path, tmp_path: Path) -> list[object]:
    """A command for which a fifth of a second of training is enough."""
    folders = ("--records", tmp_path / "records", "--runs", tmp_path / "runs")
    return ["table2", "--corpus", corpus, *folders, *MODEL]


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> list[Experiment]:
    """The experiments that are trained, in order."""
    experiments: list[Experiment] = []

    def noted(experiment: Experiment, *more: Any, **options: Any) -> Run:
        experiments.append(experiment)
        return fit(experiment, *more, **options)

    monkeypatch.setattr(run_folders, "fit", noted)
    return experiments
