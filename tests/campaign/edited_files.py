"""Attempts to edit a JSON or TOML file by hand: keys are dropped, values retyped, numbers made absurd, texts nested.

Where a file has a checksum, it is made to fit, so that the reader of the content has to judge. Whatever uses the file
has to refuse it in words, or to do what the file now says.
"""

import json
import math
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.campaign.attack import Attack, FellError
from tests.campaign.written_files import READERS, REFUSALS, works
from zloss_lab.checksums import CHECKSUM, sealed
from zloss_lab.configuration import ConfigError, to_table
from zloss_lab.corpora import CorpusError
from zloss_lab.experiments import build_experiment
from zloss_lab.runs import Run, RunError
from zloss_lab.training import Trainer, resumed
from zloss_lab.tuning.recipe import toml_value

DEEP = 100_000
_NAMES = ["factor", "step", "steps", "loss", "", "a.b", "ü", "\x1b[31m", "__class__", "checksum"]
_STRANGE: list[Any] = [
    None, True, False, 0, -1, 1, 3, 2**31, 2**63, -(2**64), 10**400, 0.5, -0.0, 1e-320, 1e308, math.nan, math.inf,
    -math.inf, "", "none", "1", "NaN", "\ud800", "x" * 10_000, [], [1], [[]], {}, {"a": 1}, {"step": {"step": 1}},
]  # fmt: skip

Edit = Callable[[random.Random, Any], Any]


def attempt_json(chance: random.Random, folder: Path) -> None:
    """Edit a random JSON file, and use it as commands do."""
    kind, pattern = chance.choice(
        [
            ("run", "config.json"),
            ("run", "metrics.jsonl"),
            ("run", "checkpoints/000000004/state.json"),
            ("study", "study.json"),
            ("records", "a.jsonl"),
        ]
    )
    works().copy(folder, kind)
    path = folder / kind / pattern
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    place = chance.randrange(len(lines))
    content = json.loads(lines[place])
    is_sealed = content.pop(CHECKSUM, None) is not None and path.suffix == ".json"
    how, edited = edit(chance, content)
    if is_sealed and isinstance(edited, dict):
        with suppress(ValueError):  # a number that no JSON has
            edited = sealed(edited)
    lines[place] = _text(chance, edited)
    if path.suffix == ".jsonl":
        lines = _without_checksums(path, lines, place)
    path.write_bytes(("\n".join(lines) + "\n").encode(errors="surrogatepass"))
    require_clear(folder, kind, f"{how} in {kind}/{pattern}, now {lines[place][:300]}")


def _without_checksums(path: Path, lines: list[str], place: int) -> list[str]:
    """Return lines that their reader judges by their content: records without checksums, metrics after a checkpoint."""
    if path.name != "metrics.jsonl":
        bare = []
        for number, line in enumerate(lines):
            table = None if number == place else json.loads(line)
            bare.append(line if table is None else json.dumps(table | {CHECKSUM: None}))
        return [line.replace(f', "{CHECKSUM}": null', "") for line in bare]
    whole = path.read_text().splitlines()
    return [*whole, lines[place]]


def attempt_toml(chance: random.Random, folder: Path) -> None:
    """Edit a TOML file for `--config`, and make an experiment of it."""
    table = to_table(resumed(works().folder / "run"))
    del table["corpus"]
    how, edited = edit(chance, table)
    path = folder / "config.toml"
    if isinstance(edited, dict) and chance.random() < 0.9:
        text = "\n".join(
            f"{_toml_key(name)} = {_toml_text(value)}" for name, value in edited.items()
        )
    else:
        text = _text(chance, edited).replace("{", chance.choice("{[#="))
    path.write_bytes(text.encode(errors="surrogatepass"))
    corpus = str(works().folder / "corpus")
    try:
        made = build_experiment(corpus, file=path)
        Trainer(made, Run(folder / "new"), lambda _: None)
    except (ConfigError, RunError, CorpusError) as error:
        _require_words(error, f"{how} in TOML {text[:300]}")
    except ValueError as error:  # the library refuses sizes and options in its own words
        _require_words(error, f"{how} in TOML {text[:300]}")
    except (MemoryError, RuntimeError) as error:
        if "memory" not in str(error) and not isinstance(error, MemoryError):
            raise FellError(f"{how} in TOML {text[:300]}: {error!r}") from error
    except Exception as error:
        raise FellError(f"{how} in TOML {text[:300]}: {error!r}") from error


def require_clear(folder: Path, kind: str, what: str) -> None:
    """Raise `FellError` if the use of an edited file ends in anything but words of the lab."""
    for use in (*READERS[kind], *((_resume,) if kind == "run" else ())):
        try:
            use(folder)
        except REFUSALS[kind] as error:
            _require_words(error, what)
        except ValueError as error:
            if kind != "run":
                raise FellError(f"{what}: {error!r}") from error
            _require_words(error, what)
        except Exception as error:
            raise FellError(f"{what}: {error!r}") from error


def _resume(folder: Path) -> None:
    """Go on from the last checkpoint by a step, and require that everything that depends on numbers is finite."""
    run = Run.open(folder / "run")
    trainer = Trainer(resumed(run.folder), run, lambda _: None)
    trainer.restore(run.load())
    rates = [group["lr"] for optimizer in trainer.optimizers for group in optimizer.param_groups]
    if not all(math.isfinite(rate) and rate > 0 for rate in rates):
        raise FellError(f"the learning rates are {rates}")
    if trainer.step != 4 or not math.isfinite(trainer.take_step().item()):
        raise FellError("the run goes on from another step, or with a loss that is no number")


def _require_words(error: Exception, what: str) -> None:
    text = str(error)
    if len(text.split()) < 3 or len(text) > 20_000:
        raise FellError(f"{what}: no clear message: {error!r}") from error


# ---- edits -----------------------------------------------------------------------------------------------------------


def edit(chance: random.Random, content: Any) -> tuple[str, Any]:
    """Return what was done to a value from a file, and the value after that."""
    how = chance.choice(sorted(EDITS))
    paths = list(_paths(content))
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        content = _at(content, chance.choice(paths), lambda value: EDITS[how](chance, value))
        paths = list(_paths(content))
    return how, content


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if not isinstance(value, dict | list):
        return
    for key in value if isinstance(value, dict) else range(len(value)):
        one = value[key]
        yield from _paths(one, (*path, key))


def _at(value: Any, path: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    if not path:
        return change(value)
    copied = value.copy()
    copied[path[0]] = _at(value[path[0]], path[1:], change)
    return copied


def _dropped(chance: random.Random, value: Any) -> Any:
    if isinstance(value, dict) and value:
        gone = chance.choice(sorted(value))
        return {key: one for key, one in value.items() if key != gone}
    return value[1:] if isinstance(value, list | str) else None


def _added(chance: random.Random, value: Any) -> Any:
    if isinstance(value, dict):
        return value | {chance.choice(_NAMES): chance.choice(_STRANGE)}
    return [*value, chance.choice(_STRANGE)] if isinstance(value, list) else [value]


def _shifted(chance: random.Random, value: Any) -> Any:
    if isinstance(value, int | float):
        if abs(value) > 1e300:  # Python does not multiply such a whole number by a fraction
            return -value
        factor = chance.choice([-1, 2, 10, 1e-3, 1e9])
        return value * factor if chance.random() < 0.5 else value + chance.choice([-1, 1, 0.5])
    return chance.choice(_STRANGE)


EDITS: dict[str, Edit] = {
    "a key dropped": _dropped,
    "a key added": _added,
    "a number changed": _shifted,
    "another value": lambda chance, _: chance.choice(_STRANGE),
    "nested": lambda chance, value: _nested(chance, value),
}
_HOLE = "a hole for many brackets"


def _nested(chance: random.Random, value: Any) -> Any:
    """Return the value inside of a few lists, or a mark that `_text` replaces by many brackets."""
    if chance.random() < 0.7:
        return _HOLE
    for _ in range(chance.choice([1, 2, 60, 70])):
        value = [value] if chance.random() < 0.5 else {"a": value}
    return value


def _text(chance: random.Random, value: Any) -> str:
    """Return JSON, sometimes with a key twice, and with many brackets where there is a hole."""
    try:
        text = json.dumps(value)
    except ValueError:
        text = "9" * 5000  # Python does not write numbers of this length
    if chance.random() < 0.1 and text.startswith("{") and isinstance(value, dict) and value:
        first = chance.choice(sorted(value, key=str))
        text = f"{text[:-1]}, {json.dumps(first)}: {json.dumps(chance.choice([1, None, {}]))}}}"
    bracket, end = chance.choice([("[", "]"), ('{"a":', "}")])
    deep = bracket * DEEP + ("1" + end * DEEP if chance.random() < 0.5 else "")
    return text.replace(json.dumps(_HOLE), deep)


def _toml_key(name: object) -> str:
    return json.dumps(str(name))


def _toml_text(value: Any) -> str:
    if value == _HOLE:
        return "[" * DEEP
    text = toml_value(value)
    return text.replace(json.dumps(_HOLE), "[" * 500)


ATTACKS = [
    Attack(key="edited_json", title="edited JSON files", attempt=attempt_json, tries_in_tests=60),
    Attack(
        key="edited_toml",
        title="edited TOML files",
        attempt=attempt_toml,
        tries_in_tests=30,
        weight=0.5,
    ),
]
