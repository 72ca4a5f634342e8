"""The command `zloss evaluate`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from zloss_lab.command_options import AsJson
from zloss_lab.evaluation import finite
from zloss_lab.inspection.trained_model import TrainedModel
from zloss_lab.progress_bars import count_bar
from zloss_lab.score_table import evaluation_table
from zloss_lab.terminal import console, errors, print_plainly
from zloss_lab.training import changed_keys


def evaluate(
    folder: Annotated[Path, typer.Argument(help="folder of the run")],
    split: Annotated[str, typer.Option(help="train, valid or test")] = "test",
    limit: Annotated[
        int | None,
        typer.Option(
            help="largest number of examples; a random sample, the same every time",
            show_default="all on a GPU; on a CPU the number that takes about half a minute",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the scores of the best checkpoint, and for comparison of a guess by word frequency.

    For a sample, ± is half the width of the 95 % confidence interval, or the longer side of it for errors.
    """
    for change in changed_keys(folder):
        print_plainly(errors, change)
    model = TrainedModel.load(folder)
    with count_bar(errors, "examples") as watch:
        results = model.compare(split, limit=limit, progress=watch)
    if as_json:
        print(json.dumps({name: finite(result.to_record()) for name, result in results.items()}))
    else:
        console.print(evaluation_table(results))
