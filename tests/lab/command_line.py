"""`zloss` as a user types it, in this process."""

import sys
from unittest.mock import patch

import pytest

from zloss_lab import cli


def zloss(*arguments: object) -> int:
    """The exit code of a command."""
    with (
        patch.object(sys, "argv", ["zloss", *map(str, arguments)]),
        pytest.raises(SystemExit) as end,
    ):
        cli.main()
    code = end.value.code
    return code if isinstance(code, int) else 0
