"""Command line of the examples: options of a training, optimizer of a head, errors for files that cannot be read."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import torch

import zloss

_Data = TypeVar("_Data")


def positive(text: str) -> int:
    """Return a number of things; a number below 1 is an error."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be 1 at least")
    return number


def add_training_options(parser: argparse.ArgumentParser, *, of: str) -> None:
    """Add the options of a training; `of` names the things that a batch consists of."""
    parser.add_argument("--head", default="factored", help="any of zloss.HeadConfig (%(default)s)")
    parser.add_argument("--loss", default="z_loss", help="one that the head takes (%(default)s)")
    parser.add_argument(
        "--lr", type=float, help="of the head (30 for the factored one, 0.1 for others)"
    )
    parser.add_argument(
        "--decay", type=float, help="of all learning rates after an epoch (%(default)s)"
    )
    parser.add_argument("--epochs", type=positive, help="(%(default)s)")
    parser.add_argument("--batch", type=positive, default=100, help=f"{of} a step (%(default)s)")
    parser.add_argument("--width", type=positive, default=256, help="of all layers (%(default)s)")
    parser.add_argument("--dropout", type=float, help="(%(default)s)")
    parser.add_argument("--k", type=positive, help="how many are given (%(default)s)")
    here = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument(
        "--device", choices=("cpu", "cuda", "mps"), default=here, help="(%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")


def parse(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None, *files: str
) -> argparse.Namespace:
    """Return the options. A mistake ends the program, and so does one of `files` without the others."""
    options = parser.parse_args(arguments)
    paths: list[Path | None] = [getattr(options, name) for name in files]
    if len({path is None for path in paths}) > 1:
        parser.error(f"{' and '.join(f'--{name}' for name in files)} belong together")
    for path in filter(None, paths):
        if not path.is_file():
            parser.error(f"there is no file {path}")
    try:
        zloss.HeadConfig(head=options.head, loss=options.loss)
    except ValueError as error:
        parser.error(str(error))
    return options


def read_or_exit(read: Callable[..., _Data], *files: Path) -> _Data:
    """Return the contents of the files. Files of another kind end the program with a message."""
    try:
        return read(*files)
    except (ValueError, IndexError) as error:
        raise SystemExit(
            f"{' or '.join(map(str, files))} is not as --help has it: {error}"
        ) from error


def optimizer_of(head: zloss.Head, lr: float | None) -> torch.optim.Optimizer:
    """Return exact SGD for the factored head, and Adagrad for others, as it takes dense and row-sparse gradients."""
    if isinstance(head, zloss.SphericalOutput) and isinstance(head.layer, zloss.FactoredLinear):
        return head.sgd(lr=lr or 30.0)
    return torch.optim.Adagrad(head.parameters(), lr=lr or 0.1)
