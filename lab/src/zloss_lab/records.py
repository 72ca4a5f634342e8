"""Records of measurements: one JSON object a line, with everything needed to judge the numbers.

Tables in the documentation are rendered from such files and never typed in.
"""

import json
import os
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

import zloss
from zloss_lab.durable import write_file

Record = dict[str, Any]


def provenance(device: torch.device) -> Record:
    """Where and with what a measurement was made."""
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "zloss": zloss.__version__,
    }
    if device.type == "cuda":
        versions["cuda"] = str(torch.version.cuda)
        return {
            "device": torch.cuda.get_device_name(device),
            "versions": versions,
            "commit": _commit(),
        }
    where = f"{_cpu_name()}, {torch.get_num_threads()} threads"
    return {"device": where, "versions": versions, "commit": _commit()}


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Replace the file at once, so that an interrupted run never leaves half of one."""
    write_file(path, "".join(json.dumps(record) + "\n" for record in records))


def read_records(path: Path) -> list[Record]:
    """All records of a file, in order."""
    return [
        _read_line(path, number, line)
        for number, line in enumerate(path.read_bytes().splitlines(), start=1)
    ]


def _read_line(path: Path, number: int, line: bytes) -> Record:
    try:
        record = json.loads(line)
    except (
        ValueError,
        RecursionError,
    ) as error:  # what is no UTF-8, has a number without end or is nested too deep
        raise ValueError(
            f"line {number} of {path} is no JSON, {error}: restore or delete the line"
        ) from error
    if not isinstance(record, dict):
        raise ValueError(
            f"line {number} of {path} is no record, {line[:40].decode()}: restore or delete the line"
        )
    return record


def _commit() -> str:
    """The commit that is measured, `+` where files differ from it; `ZLOSS_COMMIT` names it outside a checkout.

    An installed copy may lie in a repository of others, whose commits say nothing of it: git has to know this file.
    """
    if named := os.environ.get("ZLOSS_COMMIT"):
        return named
    try:
        _git("ls-files", "--error-unmatch", Path(__file__).name)
        but_records = (
            ":(top)",
            ":(top,exclude)benchmarks/records",
            ":(top,exclude)reproduction/records",
        )
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", *but_records)
        new = _git("ls-files", "--others", "--exclude-standard", "--", ":(top)src")
        return _git("rev-parse", "--short", "HEAD") + ("+" if changed or new else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
