"""The wheels of the library and of the lab, built once, and installed into empty environments."""

import importlib.metadata
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.test_torch_alone import packages_of

ROOT = Path(__file__).parents[1]
SITE_PACKAGES = Path(str(importlib.metadata.distribution("torch").locate_file(""))).resolve()


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheels of both distributions, by name."""
    folder = tmp_path_factory.mktemp("wheels")
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT, ROOT / "lab")
    return {path.name.partition("-")[0]: path for path in folder.glob("*.whl")}


@pytest.fixture(scope="session")
def library_alone(tmp_path_factory: pytest.TempPathFactory, wheels: dict[str, Path]) -> Path:
    """The Python of an environment that has the library, and torch with what torch needs."""
    python = environment(tmp_path_factory.mktemp("library") / "env", wheels["zloss"])
    own_packages = site_packages(python)
    for name in packages_of("torch") - packages_of("pip"):
        for path in [*SITE_PACKAGES.glob(name), *SITE_PACKAGES.glob(f"{name}.*")]:
            if not (own_packages / path.name).exists():
                (own_packages / path.name).symlink_to(path)
    return python


@pytest.fixture(scope="session")
def library_and_lab(tmp_path_factory: pytest.TempPathFactory, wheels: dict[str, Path]) -> Path:
    """The Python of an environment that has both wheels, and sees what the lab depends on."""
    python = environment(tmp_path_factory.mktemp("lab") / "env", *wheels.values())
    # A plain line adds a folder to the path. Editable installations in it, such as our own checkout, stay unseen.
    (site_packages(python) / "dependencies.pth").write_text(f"{SITE_PACKAGES}\n")
    return python


def environment(folder: Path, *wheels: Path) -> Path:
    """Make an environment with these wheels and nothing else, and return its Python."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    pip("--python", python, "install", "--no-deps", "--no-index", *wheels)
    return python


def site_packages(python: Path) -> Path:
    found = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    return Path(found.strip())


def pip(*arguments: object) -> None:
    run(Path(sys.executable), "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments)


def run(python: Path, *arguments: object, folder: Path = ROOT.parent) -> str:
    done = subprocess.run(
        [python, *map(str, arguments)],
        cwd=folder,
        env=own_variables(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def own_variables() -> dict[str, str]:
    """Return the environment without the paths of this checkout, which pytest and its caller may have set."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def first_example() -> str:
    """Return the first Python code of README.md."""
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert found
    return found[1]
