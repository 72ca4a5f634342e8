"""The wheels, installed into empty environments: what they hold, and the library with torch alone."""

import zipfile
from collections.abc import Iterator
from pathlib import Path

from tests.installed_wheels import first_example, run

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
