"""The entry point of the command `zloss` and of `python -m zloss_lab`. It names a package that is missing."""

import importlib
import sys


def main() -> None:
    """Run the command line of the lab, or say how to install a package that is missing."""
    try:
        cli = importlib.import_module("zloss_lab.cli")
    except ModuleNotFoundError as error:
        sys.exit(f"the lab needs {error.name}, which is not installed: pip install zloss-lab")
    except KeyboardInterrupt:  # the imports take a second, in which a user may press Ctrl-C
        print("interrupted", file=sys.stderr)
        sys.exit(130)  # 128 + SIGINT, as in shells
    cli.main()


if __name__ == "__main__":
    main()
