"""`zloss` as a user types it, in this process."""

import os
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.lab.pets import pets_text
from zloss_lab import cli

NO_UTF_8 = os.fsdecode(b"\xff")  # a file name in Latin-1

# A training of a second, as options of `zloss train`.
SMALL = [
    "network.embedding=8",
    "network.hidden=[16]",
    "network.context=3",
    "network.head.b=2.0",
    "training.steps=40",
    "training.output_lr=0.05",
    "training.validate_every=20",
    "training.batch_size=20",
    "training.log_every=10",
]
SETTINGS = [word for setting in SMALL for word in ("--set", setting)]


def zloss(*arguments: object) -> int:
    """Return the exit code of a command."""
    with (
        patch.object(sys, "argv", ["zloss", *map(str, arguments)]),
        pytest.raises(SystemExit) as end,
    ):
        cli.main()
    code = end.value.code
    return code if isinstance(code, int) else 0


def prepared_run(folder: Path) -> Path:
    """Prepare a corpus and train a run on it with commands, and return the folder of the run."""
    text, corpus, run = folder / "text.txt", folder / "corpus", folder / "runs" / "one"
    text.write_text(pets_text(400))
    assert zloss("data", "prepare", text, "--to", corpus) == 0
    assert zloss("train", run, "--corpus", corpus, *SETTINGS) == 0
    return run
