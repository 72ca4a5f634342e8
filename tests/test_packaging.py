"""A source distribution is enough to do everything that the documentation says."""

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_a_source_distribution_has_what_make_and_the_tests_need() -> None:
    targets = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"][
        "targets"
    ]
    named = {
        name
        for name in re.findall(r"[\w.-]+", (ROOT / "Makefile").read_text())
        if (ROOT / name).is_file()
    }
    assert "demo-requirements.txt" in named
    needed = (named | {"Makefile", "conftest.py"}) - {
        "pyproject.toml"
    }  # which is there in any case
    given = {
        name
        for name in needed
        for pattern in targets["sdist"]["include"]
        if fnmatch(f"/{name}", pattern)
    }
    assert needed - given == set()
