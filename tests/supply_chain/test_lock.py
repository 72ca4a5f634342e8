"""The lock files cover what the packages ask for, nothing else, and this environment is what they say."""

import importlib.metadata
import re
import sys
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement

from tests.supply_chain import lock
from tests.supply_chain.lock_file import (
    CONSTRAINTS,
    INTEGRATIONS,
    LOCKED,
    TEXT_OF_THE_DEMO,
    TOOLS,
    Pin,
    comes_with_torch,
    normalized,
    parse_pins,
    read_pins,
    without_torch,
)

MADE_BY_MAKE = (Path(sys.prefix) / ".ready").exists()
OWN = {"zloss", "zloss-lab"}
COMES_WITH_PYTHON = {"pip"}
GROUPS = {TOOLS: "supply-chain", INTEGRATIONS: "integrations"}
LOCKS = [LOCKED, *GROUPS]
SHA256 = re.compile(r"sha256:[0-9a-f]{64}")

SMALL = """\
# Made by hand.
one-package==1.0 \\
    --hash=sha256:00 \\
    --hash=sha256:11
    # via
    #   -r pyproject
    #   torch
other==2.0.post1 ; sys_platform == 'win32' \\
    --hash=sha256:22
    # via one-package
torch==2.0
nvidia-thing==1 ; sys_platform == 'linux' \\
    --hash=sha256:33
    # via torch
"""


def uncovered(requirements: list[str], pins: list[Pin]) -> list[str]:
    """Return the requirements without a pin that fits them."""
    versions = {pin.name: pin.version for pin in pins}
    parsed = map(Requirement, requirements)
    return [
        str(needed)
        for needed in parsed
        if normalized(needed.name) not in versions
        or not needed.specifier.contains(versions[normalized(needed.name)])
    ]


def unused(requirements: list[str], pins: list[Pin]) -> list[str]:
    """Return the pins that neither a requirement nor a used package needs, by what the lock says of itself."""
    named = {normalized(Requirement(needed).name) for needed in requirements} | {"torch"}
    used, added = set[str](), named
    while added:
        used |= added
        added = {pin.name for pin in pins if used & set(map(normalized, pin.sources))} - used
    return sorted({pin.name for pin in pins} - used)


def differences(installed: dict[str, str], pins: list[Pin]) -> list[str]:
    """Return how an environment differs from its lock: other versions, missing packages, packages too many."""
    wanted = {pin.name: pin for pin in pins}
    found = [
        f"{name} {version} is installed, the lock has {wanted[name].version if name in wanted else 'none'}"
        for name, version in installed.items()
        if not (name in wanted and wanted[name].version == version)
    ]
    missing = [
        f"{pin.name} {pin.version} is not installed"
        for pin in pins
        if pin.name not in installed and (not pin.marker or Marker(pin.marker).evaluate())
    ]
    return sorted(found + missing)


def installed_packages() -> dict[str, str]:
    found = {
        normalized(package.metadata["Name"]): package.version
        for package in importlib.metadata.distributions()
    }
    left_out = OWN | COMES_WITH_PYTHON | {pin.name for pin in read_pins(TEXT_OF_THE_DEMO)}
    return {
        name: version
        for name, version in found.items()
        if name not in left_out and not comes_with_torch(name)
    }


def requirements_of(file: Path) -> list[str]:
    projects = lock.read_projects()
    return lock.of_group(GROUPS[file], projects) if file in GROUPS else lock.requirements(projects)


@pytest.mark.parametrize("file", LOCKS, ids=lambda file: file.name)
def test_every_requirement_is_covered(file: Path) -> None:
    assert uncovered(requirements_of(file), read_pins(file, CONSTRAINTS)) == []


@pytest.mark.parametrize("file", LOCKS, ids=lambda file: file.name)
def test_every_package_is_needed(file: Path) -> None:
    assert unused(requirements_of(file), read_pins(file)) == []


@pytest.mark.parametrize("file", [*LOCKS, TEXT_OF_THE_DEMO], ids=lambda file: file.name)
def test_every_package_is_pinned_once_with_its_hashes(file: Path) -> None:
    pins = read_pins(file)
    assert len({pin.name for pin in pins}) == len(pins) > 0
    assert [pin.name for pin in pins if not pin.hashes] == []
    malformed = [one for pin in pins for one in pin.hashes if not SHA256.fullmatch(one)]
    assert malformed == []
    assert [pin.name for pin in pins if pin.marker and not Marker(pin.marker)] == []


def test_all_locks_have_the_same_versions() -> None:
    """An audit takes one version of each package."""
    pins = {(pin.name, pin.version) for pin in read_pins(*LOCKS, CONSTRAINTS)}
    assert len({name for name, _ in pins}) == len(pins)


def test_torch_has_a_version_and_no_hash() -> None:
    """Its builds differ by machine and index, so a hash would refuse the builds of other people."""
    (torch,) = read_pins(CONSTRAINTS)
    assert (torch.name, torch.hashes) == ("torch", ())
    assert [pin.name for pin in read_pins(*LOCKS) if comes_with_torch(pin.name)] == []


def test_what_torch_needs_has_hashes() -> None:
    """Pip finds it installed when it installs torch, and takes nothing without a hash."""
    declared = map(Requirement, importlib.metadata.requires("torch") or [])
    names = {
        normalized(needed.name)
        for needed in declared
        if needed.marker is None or needed.marker.evaluate({"extra": ""})
    }
    locked = {pin.name for pin in read_pins(LOCKED)}
    assert {name for name in names if not comes_with_torch(name)} <= locked


@pytest.mark.skipif(not MADE_BY_MAKE, reason="this environment was not made by `make`")
def test_this_environment_is_what_the_lock_says() -> None:
    assert differences(installed_packages(), read_pins(LOCKED)) == [], "run `make lint` to renew it"
    (torch,) = read_pins(CONSTRAINTS)
    assert importlib.metadata.version("torch").partition("+")[0] == torch.version


def test_the_makefile_installs_nothing_else() -> None:
    """Each call of pip takes hashes, or torch, or this checkout without what it needs."""
    makefile = (LOCKED.parent / "Makefile").read_text("utf-8")
    calls = re.findall(r"^\t.*\$\((INSTALL\w*)\)(.*)", makefile, re.MULTILINE)
    assert {name for name, _ in calls} == {"INSTALL", "INSTALL_LOCKED"}
    without_hashes = [arguments for name, arguments in calls if name == "INSTALL"]
    assert len(without_hashes) == 3
    for arguments in without_hashes:
        assert ("--constraint constraints.txt torch " in arguments) != ("--no-deps" in arguments)
    assert "--require-hashes" in makefile
    assert len(re.findall(r"\binstall\b", makefile)) == 1, (
        "a call of pip that the test does not see"
    )


def test_a_lock_file_is_read() -> None:
    one, other, torch, thing = parse_pins(SMALL)
    assert one == Pin(
        name="one-package",
        version="1.0",
        hashes=("sha256:00", "sha256:11"),
        sources=("-r pyproject", "torch"),
    )
    assert (other.marker, other.sources) == ("sys_platform == 'win32'", ("one-package",))
    assert (torch.version, torch.hashes, thing.sources) == ("2.0", (), ("torch",))


def test_torch_and_its_parts_are_taken_out() -> None:
    assert [pin.name for pin in parse_pins(without_torch(SMALL))] == ["one-package", "other"]


def test_what_is_not_a_pin_is_refused() -> None:
    with pytest.raises(ValueError, match="expected NAME==VERSION"):
        parse_pins("numpy>=2\n")


def test_faults_are_seen() -> None:
    pins = parse_pins(SMALL)
    assert uncovered(["one-package>=1", "torch>=3", "missing"], pins) == ["torch>=3", "missing"]
    assert unused(["other>=1"], parse_pins("other==2\nlost==1 \\\n    # via gone\n")) == ["lost"]
    installed = {"one-package": "1.1", "torch": "2.0", "stray": "1"}
    assert differences(installed, pins[:1] + pins[2:3] + parse_pins("absent==3")) == [
        "absent 3 is not installed",
        "one-package 1.1 is installed, the lock has 1.0",
        "stray 1 is installed, the lock has none",
    ]


def test_requirements_leave_out_the_packages_themselves() -> None:
    library = {
        "project": {
            "name": "zloss",
            "dependencies": ["torch>=2"],
            "optional-dependencies": {"dev": ["zloss-lab[zstd]", "pytest"]},
        },
        "build-system": {"requires": ["hatchling"]},
    }
    assert lock.requirements((library,)) == ["hatchling", "pytest", "torch>=2"]
