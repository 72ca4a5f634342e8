"""Measure n-gram models that only count, on prepared corpora.

    zloss data prepare ptb --to data/ptb
    zloss data prepare fil8 --from my/folder --to data/fil8
    python -m benchmarks.ngrams data/ptb data/fil8      writes records/ngrams.cpu.jsonl

A text with lines is read within its sentences too, and the record says which of both it is. On a large corpus the
scores are of a sample, as `zloss baseline` takes it.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.baseline_records import NgramRecord
from benchmarks.training_records import Scores
from zloss_lab.configuration import from_table
from zloss_lab.corpora import Corpus
from zloss_lab.evaluation import finite
from zloss_lab.kneser_ney import KneserNey, evaluate_counts
from zloss_lab.ngrams import Mode, NgramBatches, Ngrams
from zloss_lab.records import provenance, write_records

RECORDS = Path(__file__).parent / "records"


def measured(corpus: Corpus, orders: Sequence[int]) -> Iterator[NgramRecord]:
    """Yield the scores of n-gram models of these orders on the test split."""
    modes: tuple[Mode, ...] = ("running",) if corpus.boundary is None else ("running", "sentence")
    for mode, order in ((mode, order) for mode in modes for order in orders):
        manner: dict[str, Any] = {
            "context": order - 1,
            "mode": mode,
            "boundary": corpus.boundary,
            "padding": corpus.padding,
        }
        model = KneserNey.count(Ngrams(corpus.split("train"), **manner), len(corpus.vocabulary))
        tested = NgramBatches(corpus.split("test"), batch_size=1024, shuffle=False, **manner)
        scores = from_table(Scores, finite(evaluate_counts(model, tested).to_record()))
        yield NgramRecord(
            corpus=corpus.name,
            mode=mode,
            order=order,
            classes=len(corpus.vocabulary),
            scores=scores,
            seed=0,
            **provenance(torch.device("cpu")),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("corpora", type=Path, nargs="+", help="folders of prepared corpora")
    parser.add_argument("--orders", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--output", type=Path, default=RECORDS / "ngrams.cpu.jsonl")
    arguments = parser.parse_args()
    records = []
    for folder in arguments.corpora:
        for record in measured(Corpus.open(folder), arguments.orders):
            records.append(record)
            write_records(arguments.output, records)
            print(record.corpus, record.mode, record.order, record.scores)


if __name__ == "__main__":
    main()
