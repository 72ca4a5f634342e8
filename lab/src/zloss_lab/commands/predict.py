"""The command `zloss predict`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from zloss_lab.command_options import AsJson
from zloss_lab.inspection.trained_model import TrainedModel
from zloss_lab.terminal import console, errors, print_plainly, rows_table
from zloss_lab.training import changed_keys


def predict(
    folder: Annotated[Path, typer.Argument(help="folder of the run")],
    text: Annotated[str, typer.Argument(help="the words so far")],
    top: Annotated[int, typer.Option(help="largest number of words")] = 10,
    as_json: AsJson = False,
) -> None:
    """Show the most likely next words with their scores, best first.

    \b
        zloss predict runs/one "the company said it" --top 5
    """
    for change in changed_keys(folder):
        print_plainly(errors, change)
    words = TrainedModel.load(folder).predict(text, top)
    rows = [{"word": word, "score": round(score, 4)} for word, score in words]
    if as_json:
        print(json.dumps(rows))
    else:
        console.print(rows_table(rows))
