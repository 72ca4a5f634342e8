"""Tables of baselines beside networks, and of where the mean rank of language models comes from."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.baseline_records import (
    TASK_TITLES,
    BaselineRecord,
    MeanRankRecord,
    NgramRecord,
    Task,
)
from benchmarks.markdown_cells import markdown_table
from reproduction.report.intervals import estimate
from reproduction.report.markdown import wrapped
from zloss_lab.evaluation import TOP_K
from zloss_lab.records import AnyRecordable, read_records_as

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
    """Return the table of next items, over the two shops."""
    return "\n\n".join(_table_of(task) for task in ("yoochoose", "diginetica"))


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
    """Return top-k errors and ranks by bands of word frequency."""
    records = _records(MeanRankRecord, "mean_rank")
    bands = records[0].bands
    columns = [
        "model",
        *(f"top-{k}, %" for k in records[0].top_errors),
        "median rank",
        "mean rank",
        *(
            f"words {band.first:,} to {band.last:,}, {100 * band.share:.0f} % of the text"
            for band in bands
        ),
    ]
    rows = [
        [
            _name(record),
            *(f"{100 * error:.1f}" for error in record.top_errors.values()),
            f"{record.median_rank:,.0f}",
            f"{record.mean_rank:,.0f}",
            *(f"{band.mean_rank:,.0f}" for band in record.bands),
        ]
        for record in records
    ]
    return f"{markdown_table(columns, rows)}\n\n{_source(records[0])}"


def _name(record: MeanRankRecord) -> str:
    weights = f", weights f^-{record.beta:g}" if record.beta else ""
    return f"{MODEL_TITLES[record.model]}{weights}"


def _table_of(task: Task) -> str:
    records = [one for one in _records(BaselineRecord, "baselines") if one.task == task]
    scores = list(records[0].scores)
    means = {
        method: {
            score: estimate([one.scores[score] for one in records if one.method == method])
            for score in scores
        }
        for method in dict.fromkeys(one.method for one in records)
    }
    rows = []
    for method, found in means.items():
        cells = []
        for score in scores:
            best = max(other[score].mean for other in means.values())
            width = found[score].half_width
            text = f"{100 * found[score].mean:.1f}"
            text = text if width is None else f"{text} ± {100 * width:.1f}"
            cells.append(f"**{text}**" if found[score].mean == best else text)
        rows.append([HEAD_TITLES.get(method, method), *cells])
    first = records[0]
    networks = [one for one in records if one.is_network]
    seeds = len({one.seed for one in networks})
    note = (
        f"{TASK_TITLES[task]}: {first.classes:,} classes, {first.examples:,} examples, in %. "
        f"The factored head had {networks[0].epochs:.0f} epochs, and the other heads had its time. "
        + (
            f"± is half of the 95 % interval over {seeds} seeds."
            if seeds > 1
            else "One seed: a hint."
        )
    )
    return f"{wrapped(note)}\n\n{markdown_table(['', *scores], rows)}"


def _records(kind: type[AnyRecordable], suite: str) -> Sequence[AnyRecordable]:
    return read_records_as(kind, RECORDS / f"{suite}.cpu.jsonl")


def _source(first: NgramRecord | MeanRankRecord) -> str:
    return wrapped(
        f"Measured on {first.device}, torch {first.versions['torch']}. Records: `benchmarks/records`."
    )
