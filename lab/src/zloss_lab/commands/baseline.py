"""The command `zloss baseline`."""

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from zloss_lab.command_options import AsJson
from zloss_lab.corpora.corpus import Corpus
from zloss_lab.evaluation import constant_classifier, finite
from zloss_lab.kneser_ney import KneserNey, evaluate_counts
from zloss_lab.ngrams import Mode, NgramBatches, Ngrams
from zloss_lab.progress_bars import byte_bar, count_bar
from zloss_lab.score_table import evaluation_table
from zloss_lab.terminal import console, errors


def baseline(
    folder: Annotated[Path, typer.Argument(help="folder of a prepared corpus")],
    split: Annotated[str, typer.Option(help="train, valid or test")] = "test",
    order: Annotated[
        int, typer.Option(min=2, max=5, help="number of words in an n-gram, with the predicted one")
    ] = 3,
    mode: Annotated[
        Mode, typer.Option(help="running: across the ends of sentences; sentence: within one")
    ] = "running",
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="largest number of examples; a random sample, the same every time",
            show_default="the number that takes about half a minute",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Count n-grams of the training text, and show the scores that a network has to beat.

    The n-gram model has interpolated Kneser-Ney smoothing. Beside it stands a guess by word frequency. For a sample, ±
    is half the width of the 95 % confidence interval.
    """
    with byte_bar(errors) as watch:
        corpus = Corpus.open(folder, progress=watch)
    manner: dict[str, Any] = {
        "context": order - 1,
        "mode": mode,
        "boundary": corpus.boundary,
        "padding": corpus.padding,
    }
    tested = NgramBatches(corpus.split(split), batch_size=1024, shuffle=False, **manner)
    ngrams = Ngrams(corpus.split("train"), **manner)
    with count_bar(errors, "counting words") as count_watch:
        model = KneserNey.count(ngrams, len(corpus.vocabulary), progress=count_watch)
    with count_bar(errors, "examples") as watch_examples:
        counted = evaluate_counts(model, tested, limit=limit, progress=watch_examples)
    results = {
        f"{order}-grams": counted,
        "most frequent words": constant_classifier(
            torch.tensor(corpus.vocabulary.counts), tested, limit=counted.examples
        ),
    }
    if as_json:
        print(json.dumps({name: finite(result.to_record()) for name, result in results.items()}))
    else:
        console.print(evaluation_table(results))
