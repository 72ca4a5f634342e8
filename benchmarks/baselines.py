"""Measure the baselines of the examples beside their networks, on public data.

    python -m benchmarks.baselines yoochoose yoochoose1_64.tar.xz
    python -m benchmarks.baselines diginetica diginetica.tar.xz
    python -m benchmarks.baselines citeulike-t citeulike-t.tar.xz

Each command replaces the records of its data in records/baselines.cpu.jsonl. An archive of clicks has a folder with
`train_sessions.txt` and `test_examples.txt`, the one of citeulike-t has `mult.dat` and `tag-item.dat`.

The factored head trains for the epochs of the example. The other heads get the time that it took: processor time of
this process, on one thread, because other programs may be running. All examples of the test count.
"""

import argparse
import random
import tarfile
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch

from benchmarks.baseline_records import BaselineRecord, Task
from examples import next_item, tagger
from zloss_lab.records import provenance, read_records_as, write_records

RECORDS = Path(__file__).parent / "records" / "baselines.cpu.jsonl"
Scores = dict[str, float]


class Trained(NamedTuple):
    """The scores of a network, and how long it was trained."""

    scores: Scores
    epochs: float
    train_s: float


class Subject(NamedTuple):
    """Data with what is measured on it."""

    classes: int
    examples: int
    baselines: Mapping[str, Callable[[], Scores]]
    heads: Sequence[str]  # the first one sets the time of the others
    train: Callable[[str, float], Trained]  # a head, and the most seconds


def shop(folder: Path, heads: Sequence[str]) -> Subject:
    """Return what is measured on the clicks of a shop."""
    data = next_item.read(
        folder / "train_sessions.txt", folder / "test_examples.txt", next_item.Columns(), []
    )
    items = len(data.names)
    clicks = next_item.clicks_of(data.sessions, items)
    options = next_item.parsed([])

    def counted(make: Callable[..., next_item.Scorer]) -> Scores:
        ranks = next_item.counting_ranks(make(data.sessions, items), data.examples)
        return next_item.scores_of(ranks, data.unknown)

    def train(head: str, seconds: float) -> Trained:
        settings = next_item.Settings(head, "", None, options.width, options.dropout)
        model = settings.build(clicks)
        weight = next_item.target_weights(clicks, head)
        sessions = [session for session in data.sessions if len(session) > 1]
        steps = next_item.train(
            model,
            next_item.optimizers_of(model, head),
            sessions,
            weight,
            **manner(options, seconds),
        )
        epochs, train_s = timed(steps, len(sessions) / options.batch)
        ranks = next_item.network_ranks(model, data.examples)
        return Trained(next_item.scores_of(ranks, data.unknown), epochs, train_s)

    baselines = {
        name: (lambda make=make: counted(make)) for name, make in next_item.BASELINES.items()
    }
    return Subject(items, len(data.examples) + data.unknown, baselines, heads, train)


def papers(folder: Path, heads: Sequence[str]) -> Subject:
    """Return what is measured on the tags of papers. A tenth of the papers is the test, the same for all seeds."""
    random.seed(0)
    options = tagger.parsed(
        ["--texts", str(folder / "mult.dat"), "--tags", str(folder / "tag-item.dat")]
    )
    data = tagger.gathered(options, [], [])
    tags = len(data.tags)
    counts = (
        tagger.texts_with([text.words for text in data.trained], len(data.words)),
        tagger.texts_with([text.tags for text in data.trained], tags),
    )

    def build(head: str) -> tagger.Tagger:
        settings = tagger.Settings(
            head, "", None, options.width, options.dropout, len(data.trained)
        )
        return settings.build(*counts)

    idf = build(heads[0]).idf

    def train(head: str, seconds: float) -> Trained:
        model = build(head)
        steps = tagger.train(
            model, tagger.optimizers_of(model, head), data.trained, **manner(options, seconds)
        )
        epochs, train_s = timed(steps, len(data.trained) / options.batch)
        return Trained(
            tagger.precisions(tagger.network_proposer(model), data.tested), epochs, train_s
        )

    baselines = {
        name: (lambda make=make: tagger.precisions(make(data.trained, idf, tags), data.tested))
        for name, make in tagger.BASELINES.items()
    }
    return Subject(tags, len(data.tested), baselines, heads, train)


def manner(options: Namespace, seconds: float) -> dict[str, Any]:
    """Return the arguments of a training: the example's own epochs, or the seconds if they are finite."""
    is_limited = seconds < float("inf")
    return {
        "epochs": 1000 * options.epochs if is_limited else options.epochs,
        "batch": options.batch,
        "seconds": seconds,
        "clock": time.process_time,
    }


def timed(steps: Iterator[Any], steps_of_epoch: float) -> tuple[float, float]:
    """Take all steps, and return the epochs that they were and the processor time."""
    begun = time.process_time()
    taken = sum(1 for _ in steps)
    return taken / steps_of_epoch, time.process_time() - begun


HEADS = {
    "yoochoose": ("factored", "sampled", "dense"),
    "diginetica": ("factored", "sampled"),
    "citeulike-t": ("factored", "sampled"),
}


def measured(task: Task, folder: Path, seeds: int) -> Iterator[BaselineRecord]:
    """Yield the records of all methods. Baselines have no seed."""
    subject = (papers if task == "citeulike-t" else shop)(folder, HEADS[task])
    common: dict[str, Any] = {
        "task": task,
        "classes": subject.classes,
        "examples": subject.examples,
        **provenance(torch.device("cpu")),
    }
    for name, score in subject.baselines.items():
        yield BaselineRecord(method=name, is_network=False, scores=score(), seed=0, **common)
    for seed in range(seeds):
        seconds = float("inf")
        for head in subject.heads:
            random.seed(seed)
            torch.manual_seed(seed)
            found = subject.train(head, seconds)
            seconds = min(seconds, found.train_s)
            yield BaselineRecord(
                method=head, is_network=True, seed=seed, **found._asdict(), **common
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("task", choices=get_args(Task))
    parser.add_argument("archive", type=Path)
    parser.add_argument("--seeds", type=int, default=3, help="0 for baselines only (%(default)s)")
    parser.add_argument("--output", type=Path, default=RECORDS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    kept = read_records_as(BaselineRecord, arguments.output) if arguments.output.exists() else []
    records = [record for record in kept if record.task != arguments.task]
    with tempfile.TemporaryDirectory() as place, tarfile.open(arguments.archive) as archive:
        archive.extractall(place, filter="data")
        (folder,) = (path.parent for path in Path(place).rglob("*") if path.name in PROOF)
        for record in measured(arguments.task, folder, arguments.seeds):
            records.append(record)
            write_records(arguments.output, records)
            print(record.method, record.seed, record.scores, record.epochs, record.train_s)


PROOF = ("train_sessions.txt", "mult.dat")  # one of these files is in the folder of the data

if __name__ == "__main__":
    main()
