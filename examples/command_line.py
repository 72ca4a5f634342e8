"""What the examples share: options of a training, the optimizer of a head, and words for files that cannot be read."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import torch

import zloss

_Data = TypeVar("_Data")


def positive(text: str) -> int:
    """A number of things."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be 1 at least")
    return number


def add_training_options(parser: argparse.ArgumentParser, *, of: str) -> None:
    """Those of any training; `of` is what a batch consists of."""
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
    """The options, of which these two files are given together or not at all; a mistake ends the program."""
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
    """What is in the files; where they are of another kind, the program ends with a word about them."""
    try:
        return read(*files)
    except (ValueError, IndexError) as error:
        raise SystemExit(
            f"{' or '.join(map(str, files))} is not as --help has it: {error}"
        ) from error


def optimizer_of(head: zloss.Head, lr: float | None) -> torch.optim.Optimizer:
    """The factored head takes exact steps of plain SGD; for others Adagrad takes dense and row-sparse gradients."""
    if isinstance(head, zloss.SphericalOutput) and isinstance(head.layer, zloss.FactoredLinear):
        return head.sgd(lr=lr or 30.0)
    return torch.optim.Adagrad(head.parameters(), lr=lr or 0.1)
