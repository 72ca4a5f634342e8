"""Attempts to damage a file that the lab has written: a flipped bit, another byte, a lost end, a block of zeros.

Whatever reads the file next has to refuse it in words, or to return the same content as before. If a
change is one that users may make in a config, the command has to print it.
"""

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from tests.campaign.attack import Attack, FellError
from tests.campaign.written_files import READERS, REFUSALS, works

_MOST_BYTES_OF_A_BLOCK = 4096


def attempt(chance: random.Random, folder: Path) -> None:
    """Damage a random file in a random way, and read it again."""
    made = works()
    kind = chance.choice(sorted(READERS))
    file = chance.choice([file for file in made.files if file.parts[0] == kind])
    made.copy(folder, kind)
    whole = (folder / file).read_bytes()
    how = chance.choice(sorted(DAMAGES))
    damaged = DAMAGES[how](chance, whole)
    if damaged == whole:
        return
    (folder / file).write_bytes(damaged)
    require_refused_or_same(folder, kind, f"{how} in {file}")


def require_refused_or_same(folder: Path, kind: str, what: str) -> None:
    """Raise `FellError` if files of a kind are read with another content, or end in an unclear error."""
    for reader in READERS[kind]:
        where = f"{what}, {reader.__name__}"
        try:
            reading = reader(folder)
        except REFUSALS[kind] as error:
            if not str(error).strip() or "\n" in str(error):
                raise FellError(f"{where}: the message is not one line: {error!r}") from error
        except Exception as error:
            raise FellError(f"{where}: {type(error).__name__}, {error}") from error
        else:
            if not reading.agrees_with(works().readings[reader]):
                raise FellError(f"{where}: it was read with another content, without a word")


def _flipped(chance: random.Random, data: bytes) -> bytes:
    bit = chance.randrange(8 * len(data))
    return _with(data, bit // 8, bytes([data[bit // 8] ^ 1 << bit % 8]))


def _other_byte(chance: random.Random, data: bytes) -> bytes:
    return _with(data, chance.randrange(len(data)), chance.randbytes(1))


def _cut(chance: random.Random, data: bytes) -> bytes:
    return data[: chance.randrange(len(data))]


def _with_zeros(chance: random.Random, data: bytes) -> bytes:
    start = chance.randrange(len(data))
    length = min(chance.randint(1, _MOST_BYTES_OF_A_BLOCK), len(data) - start)
    return _with(data, start, bytes(length))


def _with_a_block_twice(chance: random.Random, data: bytes) -> bytes:
    """Return the data with one block where another one was, as after a write to a wrong place of a disk."""
    length = chance.randint(1, min(_MOST_BYTES_OF_A_BLOCK, len(data)))
    place, other = (chance.randrange(len(data) - length + 1) for _ in range(2))
    return _with(data, place, data[other : other + length])


def _with(data: bytes, place: int, new: bytes) -> bytes:
    return data[:place] + new + data[place + len(new) :]


DAMAGES: dict[str, Callable[[random.Random, bytes], bytes]] = {
    "a flipped bit": _flipped,
    "another byte": _other_byte,
    "a lost end": _cut,
    "zeros": _with_zeros,
    "a block that is there twice": _with_a_block_twice,
}


def attempt_in_tables(chance: random.Random, folder: Path) -> None:
    """Change a random value in the database of a study, and read the study again.

    SQLite keeps its tables in order, so the files look whole.
    """
    works().copy(folder, "study")
    with closing(sqlite3.connect(folder / "study" / "study.db")) as database, database:
        table, column = chance.choice(_COLUMNS)
        rows = database.execute(f"SELECT rowid, {column} FROM {table}").fetchall()
        place, value = chance.choice(rows)
        with suppress(sqlite3.IntegrityError):  # SQLite refuses some values
            database.execute(
                f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (_changed(chance, value), place)
            )
    require_refused_or_same(folder, "study", f"another value in {table}.{column}")


# What Optuna goes by, without its keys of rows: SQLite itself notices when these no longer fit together.
_COLUMNS = [
    ("studies", "study_name"),
    ("study_directions", "direction"),
    ("trials", "number"),
    ("trials", "state"),
    ("trial_params", "param_name"),
    ("trial_params", "param_value"),
    ("trial_params", "distribution_json"),
    ("trial_values", "value"),
    ("trial_intermediate_values", "step"),
    ("trial_intermediate_values", "intermediate_value"),
    ("trial_user_attributes", "key"),
    ("trial_user_attributes", "value_json"),
]


def _changed(chance: random.Random, value: Any) -> Any:
    if isinstance(value, str):
        place = chance.randrange(len(value))
        return value[:place] + chance.choice("0123456789aZ{}[],\"'\\ ") + value[place + 1 :]
    return chance.choice([None, -1, 0, 1, 1e308, value * 1.0001 if value else 1])


ATTACKS = [
    Attack(key="damage", title="damaged files", attempt=attempt, tries_in_tests=60, weight=2.0),
    Attack(
        key="damaged_tables",
        title="damaged tables of studies",
        attempt=attempt_in_tables,
        tries_in_tests=15,
        weight=0.5,
    ),
]
