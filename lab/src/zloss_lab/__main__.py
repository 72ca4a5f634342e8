"""The command `zloss`, and `python -m zloss_lab`: the command line, or how to get what it needs."""

from zloss_lab.starting import start


def main() -> None:
    """Run the command line of the lab."""
    start("zloss_lab.cli")


if __name__ == "__main__":
    main()
