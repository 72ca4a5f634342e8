"""The storage of trials: shared ones, wrong ones, and missing ones."""

import re
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import optuna
import pytest

from tests.lab.tuning.tiny import MadeUp, distance, made_up, tiny_plan
from zloss_lab.runs import RunError
from zloss_lab.tuning.study import TuningStudy


def test_a_storage_that_is_shared(corpus: Path, tmp_path: Path) -> None:
    """Two folders, as on two machines, share one database, as on a server."""
    storage = f"sqlite:///{tmp_path / 'shared.db'}"
    made_up(corpus, tmp_path / "one", trials=3, storage=storage)
    assert len(made_up(corpus, tmp_path / "other", trials=5, storage=storage).trials()) == 5
    with pytest.raises(
        RunError, match="'tiny' in the storage was begun with another score: choose another --name"
    ):
        made_up(corpus, tmp_path / "third", storage=storage, score="mrr")
    assert (
        len(
            made_up(corpus, tmp_path / "fourth", storage=storage, score="mrr", name="mine").trials()
        )
        == 4
    )


@pytest.mark.parametrize(
    "storage", ["sqlite:////nowhere/at/all.db", "nonsense", "postgresql+nothing://host/db"]
)
def test_a_storage_that_cannot_be_used(storage: str, corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="storage"):
        TuningStudy.begin(tmp_path / "studies" / "it", tiny_plan(corpus, storage=storage))
    assert list(tmp_path.iterdir()) == [], "no empty folder stays"


@pytest.mark.parametrize(
    ("module", "package"),
    [("psycopg2", "psycopg2-binary"), ("psycopg", "'psycopg[binary]'"), ("pymysql", "pymysql")],
)
def test_a_driver_that_is_missing(
    module: str, package: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    storage = f"{'mysql' if module == 'pymysql' else 'postgresql'}+{module}://host/db"
    with pytest.raises(RunError, match=re.escape(f"Get it with: pip install {package}") + "$"):
        TuningStudy.begin(tmp_path / "it", tiny_plan(corpus, storage=storage))
    TuningStudy.begin(tmp_path / "it", tiny_plan(corpus))  # no half-made study is in the way


def test_a_study_without_its_trials_is_not_taken_for_a_new_one(
    corpus: Path, tmp_path: Path
) -> None:
    TuningStudy.begin(tmp_path / "it", tiny_plan(corpus))
    (tmp_path / "it" / "study.db").unlink()
    with pytest.raises(RunError, match=r"the trials of .* are gone: restore its study\.db"):
        TuningStudy.open(tmp_path / "it")
    assert not (tmp_path / "it" / "study.db").exists()


def test_looking_at_a_study_writes_nothing(corpus: Path, tmp_path: Path) -> None:
    """A study in a read-only folder can be read."""
    TuningStudy.begin(tmp_path / "it", tiny_plan(corpus)).run(MadeUp(distance))
    before = (tmp_path / "it" / "study.db").read_bytes()
    assert len(TuningStudy.open(tmp_path / "it").trials()) == 4
    assert (tmp_path / "it" / "study.db").read_bytes() == before


def test_a_storage_without_the_study_is_no_new_one(corpus: Path, tmp_path: Path) -> None:
    shared = f"sqlite:///{tmp_path}/shared.db"
    TuningStudy.begin(tmp_path / "it", tiny_plan(corpus, storage=shared))
    optuna.delete_study(study_name="tiny", storage=shared)
    with pytest.raises(RunError, match="its storage has no study 'tiny'"):
        TuningStudy.open(tmp_path / "it")


@pytest.mark.parametrize("way", ["empty file", "no study", "no file"])
def test_a_study_does_not_begin_anew_where_its_trials_are_gone(
    way: str, corpus: Path, tmp_path: Path
) -> None:
    """`zloss tune run --resume` opens a study in this way."""
    made_up(corpus, tmp_path / "it", trials=2)
    database = tmp_path / "it" / "study.db"
    if way == "no study":
        optuna.delete_study(study_name="tiny", storage=f"sqlite:///{database}")
    else:
        database.unlink()
    if way == "empty file":
        database.touch()
    with pytest.raises(RunError, match=r"the trials of .*it are gone: .* begin a new study"):
        TuningStudy.begin(tmp_path / "it", tiny_plan(corpus, trials=5))


DAMAGE = {
    "curve": "UPDATE trial_user_attributes SET value_json = replace(value_json, '0.', '0.1')",
    "lost curve": "DELETE FROM trial_user_attributes WHERE key = 'curve'",
    "choice": "UPDATE trial_params SET param_value = param_value * 1.01",
    "name of a choice": "UPDATE trial_params SET param_name = 'training.lt' WHERE param_id = 1",
    "range": "UPDATE trial_params SET distribution_json = replace(distribution_json, '0.01', '0.02')",
    "no range": "UPDATE trial_params SET distribution_json = '{'",
    "value": "UPDATE trial_values SET value = value * 1.01",
    "report": "UPDATE trial_intermediate_values SET intermediate_value = 0.125",
    "state": "UPDATE trials SET state = 'COMPLETF' WHERE trial_id = 1",
    "other state": "UPDATE trials SET state = 'PRUNED' WHERE trial_id = 1",
    "lost trial": "DELETE FROM trials WHERE number = 0",
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_trials_are_no_basis_of_a_search(case: str, corpus: Path, tmp_path: Path) -> None:
    made_up(corpus, tmp_path / "it", trials=3)
    with closing(sqlite3.connect(tmp_path / "it" / "study.db")) as database, database:
        assert database.execute(DAMAGE[case]).rowcount > 0
    told = r"the trials of .*it are damaged: .*; restore it, or begin a new study in another folder"
    with pytest.raises(RunError, match=told):
        TuningStudy.open(tmp_path / "it").trials()
    with pytest.raises(RunError, match=told):
        TuningStudy.begin(tmp_path / "it", tiny_plan(corpus, trials=5)).run(MadeUp(distance))


def test_a_row_that_is_no_text_is_told_in_a_line(
    corpus: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made_up(corpus, tmp_path / "it", trials=3)
    with closing(sqlite3.connect(tmp_path / "it" / "study.db")) as database, database:
        database.execute(
            "UPDATE trial_user_attributes SET value_json = CAST(CAST(value_json AS BLOB) || X'FF' AS TEXT)"
        )
    capfd.readouterr()
    with pytest.raises(RunError, match=r"it cannot be used: .*not decode to UTF-8") as caught:
        TuningStudy.open(tmp_path / "it").trials()
    assert len(str(caught.value)) < 300 + 2 * len(str(tmp_path)) + 100
    assert capfd.readouterr().err == ""
