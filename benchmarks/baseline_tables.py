"""Tables of baselines beside networks, and of where the mean rank of language models comes from."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.baseline_records import (
    TASK_TITLES,
    Band,
    BaselineRecord,
    MeanRankRecord,
    NgramRecord,
    Task,
)
from benchmarks.markdown_cells import markdown_table
from zloss_lab.documents.markdown import wrapped
from zloss_lab.evaluation import TOP_K
from zloss_lab.records import AnyRecordable, read_records_as
from zloss_lab.seed_intervals import Estimate, estimate

RECORDS = Path(__file__).parent / "records"
HEAD_TITLES = {
    "factored": "Z-loss, factored",
    "sampled": "sampled softmax",
    "dense": "full softmax",
}
MODEL_TITLES = {
    "most-frequent": "most frequent words",
    "trigram": "trigrams, Kneser-Ney",
    "sampled": "sampled softmax",
    "z_loss": "Z-loss",
}


def baselines_items() -> str:
    """Return the tables of next items, one for each shop that was measured."""
    measured = {record.task for record in _records(BaselineRecord, "baselines")}
    shops: tuple[Task, ...] = ("yoochoose", "diginetica")
    return "\n\n".join(_table_of(shop) for shop in shops if shop in measured)


def baselines_tags() -> str:
    """Return the table of tags."""
    return _table_of("citeulike-t")


def ngrams() -> str:
    """Return the scores of n-gram models."""
    columns = ["test error, %", *(f"top-{k}" for k in TOP_K), "MRR", "perplexity"]
    records = _records(NgramRecord, "ngrams")
    rows = [
        [
            f"{record.corpus}, {record.order}-grams",
            *(f"{100 * error:.2f}" for error in record.scores.top_errors),
            f"{record.scores.mrr:.4f}",
            "" if record.scores.perplexity is None else f"{record.scores.perplexity:.1f}",
        ]
        for record in records
    ]
    return f"{markdown_table(columns, rows)}\n\n{_source(records[0])}"


def mean_ranks() -> str:
    """Return top-k errors, and mean and median ranks by bands of word frequency."""
    records = _records(MeanRankRecord, "mean_rank")
    bands = records[0].bands
    columns = [
        "model",
        *(f"top-{k}, %" for k in records[0].top_errors),
        "all words",
        *(f"words {band.first:,} to {band.last:,} ({100 * band.share:.0f} %)" for band in bands),
    ]
    rows = [
        [
            _name(record),
            *(f"{100 * error:.1f}" for error in record.top_errors.values()),
            _mean_and_median(record),
            *map(_mean_and_median, record.bands),
        ]
        for record in records
    ]
    return f"{markdown_table(columns, rows)}\n\n{_source(records[0])}"


def _mean_and_median(ranks: MeanRankRecord | Band) -> str:
    return f"{ranks.mean_rank:,.0f} / {ranks.median_rank:,.0f}"


def _name(record: MeanRankRecord) -> str:
    weights = f", weights f^-{record.beta:g}" if record.beta else ""
    return f"{MODEL_TITLES[record.model]}{weights}"


def _table_of(task: Task) -> str:
    """Return a table with a row for each method and a column for each score, under a note."""
    records = [one for one in _records(BaselineRecord, "baselines") if one.task == task]
    scores = list(records[0].scores)
    found: dict[str, list[BaselineRecord]] = {}
    for record in records:
        found.setdefault(record.method, []).append(record)
    means = {
        method: [estimate([one.scores[score] for one in own]) for score in scores]
        for method, own in found.items()
    }
    best = [max(one.mean for one in column) for column in zip(*means.values(), strict=True)]
    rows = [
        [HEAD_TITLES.get(method, method), *map(_cell, own, best)] for method, own in means.items()
    ]
    return f"{_note(records)}\n\n{markdown_table([TASK_TITLES[task], *scores], rows)}"


def _cell(value: Estimate, best: float) -> str:
    width = "" if value.half_width is None else f" ± {100 * value.half_width:.1f}"
    text = f"{100 * value.mean:.1f}{width}"
    return f"**{text}**" if value.mean == best else text


def _note(records: Sequence[BaselineRecord]) -> str:
    """Return what was measured, for how long and how often."""
    first = records[0]
    epochs = [one.epochs for one in records if one.epochs is not None]
    seeds = len({one.seed for one in records if one.is_network})
    what = f"{TASK_TITLES[first.task]}: {first.classes:,} classes, {first.examples:,} examples."
    sentences = [what, "Scores are in %."]
    if epochs:
        sentences.append(
            f"The factored head had {epochs[0]:.0f} epochs, and other heads had its time."
        )
    if seeds == 1:
        sentences.append("The networks have one seed, which is a hint.")
    elif seeds > 1:
        sentences.append(f"± is half of the 95 % interval over {seeds} seeds.")
    else:
        sentences.append("No network was measured.")
    return wrapped(" ".join(sentences))


def _records(kind: type[AnyRecordable], suite: str) -> Sequence[AnyRecordable]:
    return read_records_as(kind, RECORDS / f"{suite}.cpu.jsonl")


def _source(first: NgramRecord | MeanRankRecord) -> str:
    return wrapped(
        f"Measured on {first.device}, torch {first.versions['torch']}. Records: `benchmarks/records`."
    )
