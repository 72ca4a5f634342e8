"""The command line `python -m reproduction` as a user types it, in this process."""

import shlex
import sys
from unittest.mock import patch

import pytest

from reproduction.__main__ import main


def typed(line: str) -> list[str]:
    """Return the arguments of a command as a shell finds them in a line."""
    return shlex.split(line)


def reproduction(*arguments: object) -> int:
    """Return the exit code of a command."""
    with (
        patch.object(sys, "argv", ["reproduction", *map(str, arguments)]),
        pytest.raises(SystemExit) as end,
    ):
        main()
    code = end.value.code
    return code if isinstance(code, int) else 0


def run(*arguments: object) -> int:
    """Return the exit code of `python -m reproduction run`."""
    return reproduction("run", *arguments)
