"""The storage of trials: SQLite in the folder of the study, or any database that Optuna can use."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import optuna
from optuna.pruners import NopPruner
from optuna.samplers import BaseSampler
from optuna.storages import RDBStorage
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from zloss_lab.configuration import ConfigError
from zloss_lab.evaluation import is_made_large
from zloss_lab.runs import RunError
from zloss_lab.tuning.plan import StudyPlan

DATABASE = "study.db"
_LOCK_TIMEOUT_S = 60  # for SQLite, which several workers write to
_OPENING_ATTEMPTS = 5
_LONGEST_REASON = 300  # characters; SQLite shows the whole of a row
_RESTORE = "restore it, or begin a new study in another folder"
# Drivers whose distributions on PyPI have other names than their modules.
_PACKAGES = {
    "psycopg": "'psycopg[binary]'",
    "psycopg2": "psycopg2-binary",
    "MySQLdb": "mysqlclient",
}


def optuna_study(
    folder: Path, plan: StudyPlan, sampler: BaseSampler, *, makes: bool
) -> optuna.Study:
    """Return the study as Optuna has it. If `makes` is true, a missing one is made; else nothing is written."""
    # `study_display` shows the progress, and an error of the lab names a damaged row.
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage, pruner = _storage(folder, plan), NopPruner()  # see pruning.py
    if not makes:
        try:
            return optuna.load_study(
                storage=storage, study_name=plan.name, sampler=sampler, pruner=pruner
            )
        except KeyError as error:
            raise RunError(
                f"the trials of {folder} are gone: its storage has no study {plan.name!r}; restore it, or begin a new "
                "study in another folder"
            ) from error
    return optuna.create_study(
        storage=storage,
        study_name=plan.name,
        sampler=sampler,
        pruner=pruner,
        direction="maximize" if is_made_large(plan.score) else "minimize",
        load_if_exists=True,
    )


def independent_of_place(url: str) -> str:
    """Return the URL of a storage with the whole path of an SQLite file, so that it works from any folder.

    >>> independent_of_place("postgresql://host/trials")
    'postgresql://host/trials'
    """
    try:
        parsed = make_url(url)
    except ArgumentError:  # Optuna says what is wrong when it opens the storage
        return url
    if parsed.get_backend_name() != "sqlite":
        return url
    if parsed.database in (None, "", ":memory:"):
        raise RunError(
            f"the storage {url} is in memory, and gone with the worker: name a file, sqlite:///trials.db"
        )
    if parsed.database.startswith("file:"):  # SQLite's own kind of URL
        return url
    return parsed.set(database=str(Path(parsed.database).absolute())).render_as_string(
        hide_password=False
    )


def _storage(folder: Path, plan: StudyPlan) -> RDBStorage:
    if plan.storage is not None:
        return _opened(plan.storage, {})
    _require_whole(folder / DATABASE)
    url = URL.create("sqlite", database=str(folder / DATABASE)).render_as_string()
    escaped = url.replace("{", "{{").replace("}", "}}")  # Optuna formats the URL
    return _opened(escaped, {"connect_args": {"timeout": _LOCK_TIMEOUT_S}})


def _require_whole(database: Path) -> None:
    """Refuse an SQLite file whose tables and indices do not fit together: rows would be missing in silence."""
    if not database.exists():
        return
    try:
        with closing(sqlite3.connect(database, timeout=_LOCK_TIMEOUT_S)) as connection:
            faults = connection.execute("PRAGMA integrity_check(1)").fetchall()
    except sqlite3.Error as error:
        reason = " ".join(str(error).split())  # a statement in SQL may have several lines
        raise RunError(
            f"{database} cannot be read: {reason[:_LONGEST_REASON]}; {_RESTORE}"
        ) from error
    if faults != [("ok",)]:
        raise RunError(f"{database} is damaged: {' '.join(faults[0][0].split())}; {_RESTORE}")


def _opened(url: str, engine_options: dict[str, Any]) -> RDBStorage:
    """Open a storage, in several attempts: workers that begin at the same moment try to make the same tables."""
    for attempt in range(_OPENING_ATTEMPTS):
        try:
            return RDBStorage(url, engine_kwargs=engine_options)
        except DBAPIError as error:
            refused = error
            time.sleep(0.1 * 2**attempt)
        except ImportError as error:
            raise RunError(
                f"no driver for the storage {url.partition(':')[0]}: {_missing_driver(error)}"
            ) from error
    raise refused


def _missing_driver(error: ImportError) -> str:
    """Return the message of an import error, with the package to install if the error names a module."""
    cause = error.__cause__ or error
    name = getattr(cause, "name", None)
    return (
        f"{cause}"
        if name is None
        else f"{cause}. Get it with: pip install {_PACKAGES.get(name, name)}"
    )


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Turn whatever Optuna raises for values that it cannot have stored into a `RunError`."""
    try:
        yield
    except (SQLAlchemyError, optuna.exceptions.OptunaError) as error:
        raise RunError(_storage_fault(folder, error)) from error
    except (ArithmeticError, AssertionError, AttributeError, LookupError) as error:
        raise _damaged(folder, repr(error)) from error
    except (TypeError, ValueError) as error:
        if isinstance(error, RunError | ConfigError):
            raise
        raise _damaged(folder, error) from error


def _damaged(folder: Path, why: object) -> RunError:
    reason = " ".join(str(why).split())
    return RunError(f"the trials of {folder} are damaged: {reason}; {_RESTORE}")


def _storage_fault(folder: Path, error: Exception) -> str:
    reason = str(error.__cause__ or error).partition("\n")[0][:_LONGEST_REASON]
    return f"the storage of the study {folder} cannot be used: {reason}"


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turn an error of the database or of Optuna into a `RunError` of one line."""
    try:
        yield
    except (SQLAlchemyError, optuna.exceptions.OptunaError) as error:
        raise RunError(_storage_fault(folder, error)) from error
