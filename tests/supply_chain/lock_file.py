"""Lock files: the versions and hashes of the packages that `make` installs, as pip reads them."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOCKED = ROOT / "locked-requirements.txt"  # for `make test` and `make demo`
TOOLS = ROOT / "tool-requirements.txt"  # for `make lock` and `make audit`
INTEGRATIONS = ROOT / "integration-requirements.txt"  # for `make integrations`
TEXT_OF_THE_DEMO = ROOT / "demo-requirements.txt"
CONSTRAINTS = ROOT / "constraints.txt"  # torch

# What builds of torch for NVIDIA's GPUs bring along. Their versions are part of the build.
COMES_WITH_TORCH = ("torch", "nvidia-", "cuda-")

_PIN = re.compile(r"([\w.-]+)==(\S+)(?:\s*;\s*(.*))?")
_HASH = re.compile(r"--hash=(\S*)")
_COMMENT = re.compile(r"(?:^|\s)#.*$", re.MULTILINE)
_FIRST_SOURCE = "# via"


@dataclass(frozen=True, kw_only=True)
class Pin:
    """One package of a lock file.

    Args:
        name: the normalized name.
        version: the only version to install.
        marker: the platforms and Pythons that need it, or nothing for all.
        hashes: the files that may be installed, such as `sha256:` with 64 digits.
        sources: the packages that need it, and the inputs that name it.
    """

    name: str
    version: str
    marker: str = ""
    hashes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


def parse_pins(text: str) -> list[Pin]:
    """Return the packages of a lock file or of constraints."""
    return [_parse_entry(entry) for entry in entries(text) if _COMMENT.sub("", entry).strip()]


def entries(text: str) -> list[str]:
    """Return the pieces of a lock file: each begins with a name, and has the indented lines behind it."""
    return re.split(r"\n(?=\S)", text.strip("\n"))


def _parse_entry(entry: str) -> Pin:
    required = _HASH.sub("", _COMMENT.sub("", entry)).replace("\\\n", " ")
    found = _PIN.fullmatch(" ".join(required.split()))
    if not found:
        raise ValueError(f"expected NAME==VERSION with hashes, not {entry.splitlines()[0]!r}")
    name, version, marker = found.groups()
    _, _, sources = entry.partition(_FIRST_SOURCE)
    return Pin(
        name=normalized(name),
        version=version,
        marker=marker or "",
        hashes=tuple(_HASH.findall(entry)),
        sources=tuple(line.strip(" #") for line in sources.splitlines() if line.strip(" #")),
    )


def read_pins(*files: Path) -> list[Pin]:
    """Return the packages of some lock files, in their order."""
    return [pin for file in files for pin in parse_pins(file.read_text("utf-8"))]


def normalized(name: str) -> str:
    """`Typing_Extensions` -> `typing-extensions`."""
    return re.sub(r"[-_.]+", "-", name).lower()


def comes_with_torch(name: str) -> bool:
    """Return whether a package is torch, or a part of a build of torch."""
    return name == COMES_WITH_TORCH[0] or name.startswith(COMES_WITH_TORCH[1:])


def without_torch(text: str) -> str:
    """Return a lock file without torch and the parts of its builds."""
    return "\n".join(one for one in entries(text) if not _is_of_torch(one)) + "\n"


def _is_of_torch(entry: str) -> bool:
    return any(comes_with_torch(pin.name) for pin in parse_pins(entry))
