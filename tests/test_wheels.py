"""The wheels, installed into empty environments: the library with torch alone, and the lab beside it."""

import importlib.metadata
import os
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_torch_alone import packages_of

ROOT = Path(__file__).parents[1]
SITE_PACKAGES = Path(str(importlib.metadata.distribution("torch").locate_file(""))).resolve()

ONE_STEP = """
layer = zloss.FactoredLinear(4, 50)
optimizer = zloss.FactoredSGD(layer, lr=1.0)
before = layer.weight()
loss = zloss.ZLoss(a=0.1, b=10)(layer(torch.randn(3, 4), torch.tensor([0, 49, 7])))
loss.backward()
optimizer.step()
assert not torch.equal(layer.weight(), before)
"""
NOTHING_ELSE = """
import importlib.util
for name in ("zloss_lab", "reproduction", "numpy", "rich", "typer"):
    assert importlib.util.find_spec(name) is None, name
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheels of both distributions, by name."""
    folder = tmp_path_factory.mktemp("wheels")
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT, ROOT / "lab")
    return {path.name.partition("-")[0]: path for path in folder.glob("*.whl")}


@pytest.fixture(scope="module")
def library_alone(tmp_path_factory: pytest.TempPathFactory, wheels: dict[str, Path]) -> Path:
    """The Python of an environment that has the library, and torch with what torch needs."""
    python = environment(tmp_path_factory.mktemp("library") / "env", wheels["zloss"])
    own_packages = site_packages(python)
    for name in packages_of("torch") - packages_of("pip"):
        for path in [*SITE_PACKAGES.glob(name), *SITE_PACKAGES.glob(f"{name}.*")]:
            if not (own_packages / path.name).exists():
                (own_packages / path.name).symlink_to(path)
    return python


@pytest.fixture(scope="module")
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
    # Without the paths of this checkout, which pytest and its caller may have set.
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, *map(str, arguments)],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def first_example() -> str:
    """Return the first Python code of README.md."""
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert found
    return found[1]


def packages_in(wheel: Path) -> Iterator[str]:
    for name in zipfile.ZipFile(wheel).namelist():
        top, _, rest = name.partition("/")
        if rest and not top.endswith(".dist-info"):
            yield top


def test_each_wheel_holds_its_own_package_alone(wheels: dict[str, Path]) -> None:
    assert {name: set(packages_in(path)) for name, path in wheels.items()} == {
        "zloss": {"zloss"},
        "zloss_lab": {"zloss_lab"},
    }


def test_the_wheel_of_the_library_needs_torch_alone(wheels: dict[str, Path]) -> None:
    with zipfile.ZipFile(wheels["zloss"]) as files:
        metadata = next(name for name in files.namelist() if name.endswith("/METADATA"))
        lines = files.read(metadata).decode().splitlines()
    needed = [
        line for line in lines if line.startswith("Requires-Dist:") and "extra ==" not in line
    ]
    assert needed == ["Requires-Dist: torch>=2.6"]


def test_the_first_example_runs_with_the_library_alone(library_alone: Path, tmp_path: Path) -> None:
    code = "import torch\nimport zloss\n" + NOTHING_ELSE + ONE_STEP + first_example()
    code += "\nprint(zloss.__file__)"
    file = Path(run(library_alone, "-c", code, folder=tmp_path).strip())
    assert file.is_relative_to(library_alone.parents[1])


def test_the_lab_trains_from_its_wheel(library_and_lab: Path, tmp_path: Path) -> None:
    text = tmp_path / "words.txt"
    text.write_text("the cat sat on the mat\nthe dog sat on the log\n" * 200)
    lab = ("-m", "zloss_lab")
    run(library_and_lab, *lab, "data", "prepare", text, "--to", tmp_path / "data", folder=tmp_path)
    settings = ("training.steps=3", "network.hidden=[8]", "network.embedding=4")
    run(
        library_and_lab,
        *(*lab, "train", tmp_path / "run", "--corpus", tmp_path / "data"),
        *(part for setting in settings for part in ("--set", setting)),
        folder=tmp_path,
    )
    told = run(library_and_lab, *lab, "evaluate", tmp_path / "run", folder=tmp_path)
    assert "most frequent words" in told
