"""Shared code of the examples: options of the command line, the optimizer of a head, and errors about files."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import torch

import zloss

_Data = TypeVar("_Data")


def positive(text: str) -> int:
    """Return a whole number from the command line; a number below 1 is an error."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be 1 at least")
    return number


def add_training_options(parser: argparse.ArgumentParser, *, example: str) -> None:
    """Add the options of a training; `example` is the plural name of an example of a batch."""
    parser.add_argument(
        "--head", default="factored", help="a head of zloss.HeadConfig (%(default)s)"
    )
    parser.add_argument("--loss", default="z_loss", help="a loss of this head (%(default)s)")
    parser.add_argument(
        "--lr",
        type=float,
        help="learning rate of the head (30 for the factored head, 0.1 for others)",
    )
    parser.add_argument(
        "--decay", type=float, help="factor of all learning rates after each epoch (%(default)s)"
    )
    parser.add_argument("--epochs", type=positive, help="passes over the data (%(default)s)")
    parser.add_argument(
        "--batch", type=positive, default=100, help=f"{example} in a step (%(default)s)"
    )
    parser.add_argument(
        "--width", type=positive, default=256, help="width of all layers (%(default)s)"
    )
    parser.add_argument("--dropout", type=float, help="share of activations to drop (%(default)s)")
    parser.add_argument("--k", type=positive, help="number of recommendations (%(default)s)")
    here = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda", "mps"),
        default=here,
        help="where to train (%(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of random numbers (%(default)s)")


def parse(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None, *files: str
) -> argparse.Namespace:
    """Return the options. Wrong options end the program. The options in `files` must be given together."""
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
    """Return the contents of the files. A wrong format ends the program with a message."""
    try:
        return read(*files)
    except (ValueError, IndexError) as error:
        raise SystemExit(
            f"{' or '.join(map(str, files))} is not as --help has it: {error}"
        ) from error


def optimizer_of(head: zloss.Head, lr: float | None) -> torch.optim.Optimizer:
    """Return exact SGD for the factored head, else Adagrad, which supports dense and row-sparse gradients."""
    if isinstance(head, zloss.SphericalOutput) and isinstance(head.layer, zloss.FactoredLinear):
        return head.sgd(lr=lr or 30.0)
    return torch.optim.Adagrad(head.parameters(), lr=lr or 0.1)
