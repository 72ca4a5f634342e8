"""`python -m zloss.lab.bench output --device cuda`: `zloss bench` on its own, or how to get what it needs."""

import importlib
import sys


def main() -> None:
    """Run the command line of the benchmark."""
    try:
        commands = importlib.import_module("zloss.lab.bench.commands")
    except ModuleNotFoundError as error:
        sys.exit(f"the benchmark needs {error.name}, which is not installed: pip install 'zloss[lab]'")
    commands.main()


if __name__ == "__main__":
    main()
