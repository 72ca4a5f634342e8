"""Starting a command line, which needs more than the library does."""

import importlib
import sys


def start(commands: str) -> None:
    """Run `main` of this module, or say how to get what it needs."""
    try:
        module = importlib.import_module(commands)
    except ModuleNotFoundError as error:
        sys.exit(f"the lab needs {error.name}, which is not installed: pip install 'zloss[lab]'")
    except KeyboardInterrupt:  # what there is to import takes a second
        print("interrupted", file=sys.stderr)
        sys.exit(130)  # 128 + SIGINT, as shells have it
    module.main()
