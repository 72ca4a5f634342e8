"""The command `zloss`, and `python -m zloss.lab`: the command line, or how to get what it needs."""

import importlib
import sys


def main() -> None:
    """Run the command line of the lab."""
    try:
        cli = importlib.import_module("zloss.lab.cli")
    except ModuleNotFoundError as error:
        sys.exit(f"the lab needs {error.name}, which is not installed: pip install 'zloss[lab]'")
    cli.main()


if __name__ == "__main__":
    main()
