"""Measure n-gram models that only count, on prepared corpora.

    zloss data prepare ptb --to data/ptb
    zloss data prepare fil8 --from my/folder --to data/fil8
    python -m benchmarks.ngrams data/ptb data/fil8      writes records/ngrams.cpu.jsonl

Contexts go across the ends of sentences. An n-gram must fit into 64 bits, so that a large vocabulary allows 3 words
only. On a large corpus the scores are of a sample, as `zloss baseline` takes it.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from benchmarks.baseline_records import NgramRecord
from benchmarks.training_records import Scores
from zloss_lab.configuration import from_table
from zloss_lab.corpora import Corpus
from zloss_lab.evaluation import finite
from zloss_lab.kneser_ney import KneserNey, evaluate_counts
from zloss_lab.ngrams import NgramBatches, Ngrams
from zloss_lab.records import provenance, write_records

RECORDS = Path(__file__).parent / "records"


def measured(corpus: Corpus, orders: Sequence[int]) -> Iterator[NgramRecord]:
    """Yield the scores of n-gram models of the orders that fit, on the test split."""
    classes = len(corpus.vocabulary)
    for order in (order for order in orders if classes**order < 2**63):
        context = order - 1
        model = KneserNey.count(Ngrams(corpus.split("train"), context=context), classes)
        tested = NgramBatches(corpus.split("test"), context=context, batch_size=1024, shuffle=False)
        scores = from_table(Scores, finite(evaluate_counts(model, tested).to_record()))
        yield NgramRecord(
            corpus=corpus.name,
            order=order,
            classes=classes,
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
            print(record.corpus, record.order, record.scores)


if __name__ == "__main__":
    main()
