"""The starts of a run: on which machine, with which versions, and from which step on it was trained.

    starts.jsonl              a JSON object on each line, one for the beginning and one for each resume

Each line has a checksum. The file is only shown, and a run goes on without it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from zloss_lab.checksums import sealed, unsealed
from zloss_lab.durable import append_to_file
from zloss_lab.json_text import parse_json
from zloss_lab.records import Record, Recordable, provenance

_FILE = "starts.jsonl"


@dataclass(frozen=True, kw_only=True)
class RunStart(Recordable):
    """A start of a run."""

    step: int  # number of steps before it
    device: str
    versions: Mapping[str, str]
    commit: str


def note_start(folder: Path, step: int, device: torch.device) -> None:
    """Add the start of a training in this process to the file of a run."""
    start = RunStart(step=step, **_provenance(device))
    append_to_file(folder / _FILE, (json.dumps(sealed(start.to_record())) + "\n").encode())


def starts_of(folder: Path) -> list[RunStart]:
    """Return the starts of a run; none for a run of an earlier version. `ValueError` names a line that is damaged."""
    path = folder / _FILE
    if not path.exists():
        return []
    if not path.is_file():
        raise ValueError(f"{path} is not an ordinary file: remove it")
    starts = []
    # A process that was killed may have left a last line without its end.
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            table = parse_json(line)
            if not isinstance(table, dict):
                raise ValueError("it is no JSON object")
            starts.append(RunStart.from_record(unsealed(table)))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}: delete the line") from error
    return starts


@cache
def _provenance(device: torch.device) -> Record:
    """Return the provenance of this process. To ask git takes a while, and searches train hundreds of runs."""
    return provenance(device)
