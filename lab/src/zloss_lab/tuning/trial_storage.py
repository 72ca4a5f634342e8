"""The storage of trials: SQLite in the folder of the study, or any database that Optuna can use."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
from optuna.pruners import NopPruner
from optuna.samplers import BaseSampler
from optuna.storages import RDBStorage
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from zloss_lab.evaluation import is_made_large
from zloss_lab.runs import RunError
from zloss_lab.tuning.plan import StudyPlan

DATABASE = "study.db"
_LOCK_TIMEOUT_S = 60  # for SQLite, which several workers write to
_OPENING_ATTEMPTS = 5
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
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # `study_display` shows the progress
    storage, pruner = _storage(folder, plan), NopPruner()  # see pruning.py
    if not makes:
        try:
            return optuna.load_study(
                storage=storage, study_name=plan.name, sampler=sampler, pruner=pruner
            )
        except KeyError as error:
            raise RunError(
                f"the trials of {folder} are gone: its storage has no study {plan.name!r}"
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
    url = URL.create("sqlite", database=str(folder / DATABASE)).render_as_string()
    escaped = url.replace("{", "{{").replace("}", "}}")  # Optuna formats the URL
    return _opened(escaped, {"connect_args": {"timeout": _LOCK_TIMEOUT_S}})


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
def explained(folder: Path) -> Iterator[None]:
    """Turn an error of the database or of Optuna into a `RunError` of one line."""
    try:
        yield
    except (SQLAlchemyError, optuna.exceptions.OptunaError) as error:
        reason = str(error.__cause__ or error).partition("\n")[0]
        raise RunError(f"the storage of the study {folder} cannot be used: {reason}") from error
