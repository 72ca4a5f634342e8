"""The command `zloss`, and `python -m zloss_lab`: the command line, or advice where a package is missing."""

import importlib
import sys


def main() -> None:
    """Run the command line of the lab, or say how to install what it needs."""
    try:
        cli = importlib.import_module("zloss_lab.cli")
    except ModuleNotFoundError as error:
        sys.exit(f"the lab needs {error.name}, which is not installed: pip install zloss-lab")
    except KeyboardInterrupt:  # the imports take a second
        print("interrupted", file=sys.stderr)
        sys.exit(130)  # 128 + SIGINT, as shells have it
    cli.main()


if __name__ == "__main__":
    main()
