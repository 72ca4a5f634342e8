"""Renew the lock files from the requirements of the packages; `make lock` runs it.

    make lock                           # what the packages ask for has changed
    make lock UPGRADE=--upgrade         # newer versions of everything but torch
    make lock UPGRADE='--upgrade-package ruff'

Torch stays at the version of constraints.txt. `uv` decides for all systems and for all Pythons from 3.11.5 on, and
takes the hashes of all files of a release from the package index.
"""

import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from tests.supply_chain.lock_file import (
    CONSTRAINTS,
    INTEGRATIONS,
    LOCKED,
    ROOT,
    TOOLS,
    parse_pins,
    without_torch,
)

PROJECTS = (ROOT / "pyproject.toml", ROOT / "lab/pyproject.toml")
OLDEST_PYTHON = "3.11.5"  # of the packages that build the documentation

_HEADS = {
    LOCKED: "# What `make test` and `make demo` install, except torch. Made by `make lock`; do not edit.\n",
    TOOLS: "# The tools of `make lock` and `make audit`. Made by `make lock`; do not edit.\n",
    INTEGRATIONS: "# What `make integrations` installs, except torch. Made by `make lock`; do not edit.\n",
}


def requirements(projects: tuple[dict[str, Any], ...]) -> list[str]:
    """Return what the packages, their extras and their builds need, without the packages themselves."""
    needed = set[str]()
    own = tuple(table["project"]["name"] for table in projects)
    for table in projects:
        extras = table["project"]["optional-dependencies"].values()
        needed.update(table["project"]["dependencies"], table["build-system"]["requires"], *extras)
    return sorted(requirement for requirement in needed if not requirement.startswith(own))


def of_group(name: str, projects: tuple[dict[str, Any], ...]) -> list[str]:
    """Return what a dependency group of the library needs."""
    return list(projects[0]["dependency-groups"][name])


def read_projects() -> tuple[dict[str, Any], ...]:
    """Return the tables of both packages."""
    return tuple(tomllib.loads(path.read_text("utf-8")) for path in PROJECTS)


def resolve(needed: list[str], lock: Path, bounds: tuple[Path, ...], uv_options: list[str]) -> str:
    """Return the text of a lock file. It keeps the versions of the present one wherever they fit."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "pyproject").write_text("\n".join(needed), "utf-8")
        draft = Path(folder) / "lock.txt"
        draft.write_text(lock.read_text("utf-8") if lock.exists() else "", "utf-8")
        command = [str(Path(sys.executable).with_name("uv")), "pip", "compile", "pyproject"]
        command += ["--universal", "--fork-strategy", "fewest", "--generate-hashes", "--no-header"]
        command += ["--python", sys.executable, "--python-version", OLDEST_PYTHON]
        command += ["--no-python-downloads"]
        for bound in bounds:
            shutil.copy(bound, folder)  # uv writes the path into the lock
            command += ["--constraint", bound.name]
        command += ["--output-file", draft.name, *uv_options]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        return draft.read_text("utf-8")


def main(uv_options: list[str]) -> None:
    """Renew all lock files."""
    projects = read_projects()
    # All have the versions of the tests, so that each package has one version to audit.
    tasks = (
        (LOCKED, requirements(projects), (CONSTRAINTS,)),
        (TOOLS, of_group("supply-chain", projects), (LOCKED,)),
        (INTEGRATIONS, of_group("integrations", projects), (CONSTRAINTS, LOCKED, TOOLS)),
    )
    for lock, needed, bounds in tasks:
        try:
            text = without_torch(resolve(needed, lock, bounds, uv_options))
        except (subprocess.CalledProcessError, FileNotFoundError) as error:
            sys.exit(f"{lock.name} stays as it was: {error}")
        if not lock.exists() or lock.read_text("utf-8") != _HEADS[lock] + text:
            lock.write_text(_HEADS[lock] + text, "utf-8")  # else `make` would install it again
        print(f"{lock.name}: {len(parse_pins(text))} packages")


if __name__ == "__main__":
    main(sys.argv[1:])
