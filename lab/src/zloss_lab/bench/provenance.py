"""Where and with what a benchmark ran: what every record has, and the driver and the versions of all peers."""

import importlib.metadata
import subprocess

import torch

from zloss_lab import records
from zloss_lab.records import Record

_PACKAGES = ("triton", "liger-kernel", "cut-cross-entropy", "numpy")


def provenance(device: torch.device) -> Record:
    """Device, driver, versions and commit."""
    where = records.provenance(device)
    where["versions"] |= {
        package: version for package in _PACKAGES if (version := _version(package))
    }
    return where | ({"driver": _driver(device)} if device.type == "cuda" else {})


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _driver(device: torch.device) -> str:
    query = [
        "nvidia-smi",
        f"--id={device.index or 0}",
        "--query-gpu=driver_version",
        "--format=csv,noheader",
    ]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
