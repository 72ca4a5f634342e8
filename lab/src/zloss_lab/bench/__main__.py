"""`python -m zloss_lab.bench output --device cuda`: `zloss bench` on its own, or how to get what it needs."""

from zloss_lab.starting import start


def main() -> None:
    """Run the command line of the benchmark."""
    start("zloss_lab.bench.commands")


if __name__ == "__main__":
    main()
