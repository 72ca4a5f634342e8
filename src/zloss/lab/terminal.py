"""What the command lines share: two consoles, and how they end on a user's mistake or Ctrl-C."""

import sys
from collections.abc import Callable

from rich.console import Console

INTERRUPTED = 130  # 128 + SIGINT, as shells have it

console, errors = Console(), Console(stderr=True)


def run_commands(app: Callable[[], object]) -> None:
    """Run a command line; a user's mistake is a message, not a traceback."""
    try:
        app()
    except KeyboardInterrupt:
        errors.print("\ninterrupted")
        sys.exit(INTERRUPTED)
    except (ValueError, OSError) as error:
        errors.print("[red]error:[/red]", end=" ")
        errors.print(str(error), markup=False, highlight=False, soft_wrap=True)
        sys.exit(1)
