"""The provenance of a benchmark: that of every record of the lab, with the driver and the versions of peers."""

import importlib.metadata
import subprocess

import torch

from zloss_lab.records import Record, provenance

_PACKAGES = ("triton", "liger-kernel", "cut-cross-entropy", "numpy")


def provenance_with_peers(device: torch.device) -> Record:
    """Return device, driver, commit and versions, with the versions of peers that are installed."""
    where = provenance(device)
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
