"""The library needs torch alone, and importing it is cheap."""

import importlib.metadata
import re
import subprocess
import sys

TRAIN_WITH_TORCH_ALONE = '''
import sys

class OnlyTorch:
    """A finder that does not find what is not allowed, as if it were not installed."""

    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        # _sysconfigdata_* belongs to the standard library too, under a name made up of the platform's.
        if name.partition(".")[0] in allowed or name.startswith("_sysconfigdata_"):
            return self.finder.find_spec(name, path, target)

allowed = set(sys.argv[1:])
sys.meta_path[:] = map(OnlyTorch, sys.meta_path)
try:
    import numpy
except ModuleNotFoundError:
    pass
else:
    sys.exit("numpy was not blocked")

import torch
import zloss

layer = zloss.FactoredLinear(4, 50)
optimizer = zloss.FactoredSGD(layer, lr=1.0)
loss = zloss.ZLoss(a=0.1, b=10)(layer(torch.randn(3, 4), torch.tensor([0, 49, 7])))
loss.backward()
optimizer.step()
print("stepped", layer.topk(torch.randn(3, 4), 2)[1].shape)
'''


def packages_of(distribution: str) -> set[str]:
    """The top-level packages of a distribution and of all that it needs, extras left out."""
    owners = importlib.metadata.packages_distributions()
    packages: set[str] = set()
    waiting, seen = [canonical(distribution)], set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        packages |= {package for package, names in owners.items() if name in map(canonical, names)}
        waiting += [canonical(requirement) for requirement in requirements(name)]
    return packages


def requirements(distribution: str) -> list[str]:
    try:
        declared = importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:  # needed on other platforms only
        return []
    return [
        requirement for requirement in declared if "extra ==" not in requirement.partition(";")[2]
    ]


def canonical(requirement: str) -> str:
    """`Typing_Extensions>=4` -> `typing-extensions`."""
    match = re.match(r"[\w.-]+", requirement)
    assert match, f"no name in the requirement {requirement!r}"
    return re.sub(r"[-_.]+", "-", match[0]).lower()


def test_torch_is_all_that_the_library_needs() -> None:
    allowed = set(sys.stdlib_module_names) | packages_of("torch") | {"zloss"}
    assert "torch" in allowed
    assert allowed.isdisjoint({"numpy", "rich", "pytest"})
    done = subprocess.run(
        [sys.executable, "-c", TRAIN_WITH_TORCH_ALONE, *sorted(allowed)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "stepped torch.Size([3, 2])\n"), done.stderr


def test_importing_the_library_brings_no_compiler() -> None:
    """Each takes seconds, and Triton asks once, when it is imported, whether it shall interpret."""
    code = "import sys, zloss; print([name for name in ('triton', 'torch._dynamo') if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "[]\n"
