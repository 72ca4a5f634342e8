"""The reader of JSON texts and the reader of TOML texts: a value, or one clear `ValueError`, whatever the text is."""

import json
import os
import random
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zloss_lab.configuration import ConfigError
from zloss_lab.experiments import parse_settings
from zloss_lab.json_text import MOST_BYTES, MOST_LEVELS, parse_json, read_json_object
from zloss_lab.toml_tables import parse_toml, read_toml

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(VALUES)
def test_what_python_writes_is_read(value: Any) -> None:
    assert parse_json(json.dumps(value)) == value
    assert parse_json(json.dumps(value, ensure_ascii=False).encode()) == value


@given(st.binary(max_size=60) | st.text(alphabet='{}[]",:\\ 10eE.-nulltrefas\n', max_size=60))
def test_any_text_is_read_or_refused_in_words(text: bytes | str) -> None:
    with suppress(ValueError):
        parse_json(text)


NO_JSON: dict[str, tuple[str | bytes, str]] = {
    "NaN": ('{"a": NaN}', "NaN is no JSON"),
    "infinity": ('{"a": -Infinity}', "-Infinity is no JSON"),
    "large": ('{"a": 1e999}', "the number 1e999 is too large"),
    "digits": ('{"a": ' + "9" * 5000 + "}", "digits"),
    "twice": ('{"a": 1, "b": {"c": 1, "c": 1}}', "the key 'c' is there twice"),
    "bytes": (b'{"a": "\xff"}', "no UTF-8: byte 7 is 0xff"),
    "deep": ("[" * 100_000, f"deeper than {MOST_LEVELS} levels"),
    "deep and whole": ('{"a": ' * 100_000 + "1" + "}" * 100_000, "deeper than"),
    "empty": ("", "no JSON"),
    "more": ("{} {}", "no JSON: Extra data"),
    "large text": (" " * (MOST_BYTES + 1), "at most 67,108,864 are read"),
}


@pytest.mark.parametrize("case", NO_JSON)
def test_no_text_ends_in_a_traceback_or_in_a_value_that_nobody_wrote(case: str) -> None:
    text, told = NO_JSON[case]
    with pytest.raises(ValueError, match=told):
        parse_json(text)


def test_brackets_in_texts_are_no_levels() -> None:
    assert parse_json(json.dumps(["[{" * 1000, '\\"[' * 1000])) == ["[{" * 1000, '\\"[' * 1000]
    assert parse_json("[" * MOST_LEVELS + "]" * MOST_LEVELS)
    assert len(parse_json("[" + "[]," * 1000 + "[]]")) == 1001


@pytest.mark.parametrize("part", ['"', '\\"', '"\\', "[", '["', "{", "0", "[]"])
def test_the_time_grows_with_the_length(part: str) -> None:
    """A text that is a million characters long takes a moment, whatever is repeated in it."""
    start = time.process_time()
    with pytest.raises(ValueError, match=r"."):
        parse_json("[" * (MOST_LEVELS + 1) + '"' + part * (1_000_000 // len(part)))
    assert time.process_time() - start < 5, (
        "a second on a slow machine; quadratic time would be hours"
    )


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="POSIX has named pipes")
def test_only_ordinary_files_are_read(tmp_path: Path) -> None:
    """A pipe without a writer would wait for ever."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(ValueError, match="not an ordinary file"):
            read_json_object(tmp_path / name)
        with pytest.raises(ConfigError, match="not an ordinary file"):
            read_toml(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        read_json_object(tmp_path / "missing")


NO_TOML = {
    "deep list": "a = " + "[" * 50_000,
    "deep table": "a = " + "{a = " * 20_000,
    "long key": "a." * 100 + "a = 1",
    "longer key": "a." * 20_000 + "a = 1",
    "long name": "[" + "a." * 500 + "a]",
    "long file": "# " + "a" * (1 << 18),
    "digits": "a = " + "9" * 5000,
    "twice": "a = 1\na = 2",
}


@pytest.mark.parametrize("case", NO_TOML)
def test_a_toml_file_has_limits_too(case: str, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(NO_TOML[case])
    with pytest.raises(ConfigError, match=r"a\.toml cannot be read as TOML: ."):
        read_toml(tmp_path / "a.toml")


@pytest.mark.parametrize(
    "setting", ["a=" + "[" * 50_000, "a." * 100 + "a=1", "a=" + "{a=" * 20_000]
)
def test_a_setting_has_limits_too(setting: str) -> None:
    with pytest.raises(ConfigError, match=r"levels|dots"):
        parse_settings([setting])


def test_a_setting_is_one_value() -> None:
    assert parse_settings(["a=1\nb=2"]) == {"a": "1\nb=2"}


def test_any_toml_is_read_or_refused_in_words() -> None:
    chance = random.Random(0)
    for _ in range(500):
        text = "".join(chance.choices("ab01=[]{}.,\"'# \n-einf", k=chance.randrange(40)))
        with suppress(ValueError):
            parse_toml(text)
