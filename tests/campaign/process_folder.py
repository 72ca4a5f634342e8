"""A folder for what all attempts of a process share. It ends with the process."""

import functools
import os
import tempfile
from pathlib import Path

from zloss_lab.corpora.verification import CACHE_VARIABLE

_PREFIX = "zloss-campaign-"


@functools.cache
def process_folder() -> Path:
    """Return the folder. From then on the process and its commands have their cache there, and not in the user's."""
    folder = Path(_kept().name)
    os.environ[CACHE_VARIABLE] = str(folder / "cache")
    return folder


@functools.cache
def _kept() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)
