"""Tables of training runs: precision after a long one, the time of an epoch, and what language models have learnt."""

from benchmarks.markdown_cells import markdown_table
from benchmarks.measurements import Measurements
from benchmarks.training_records import (
    LAYER_TITLES,
    SCORED_TITLES,
    LanguageModelRecord,
    Scores,
)
from reproduction.timed_parts import DEVICES, PLACES
from zloss_lab.evaluation import TOP_K


def accuracy(measured: Measurements) -> str:
    """Return the distance of float32 layers from dense float64 SGD after the long run."""
    columns = [
        "float32 weights after 20,000 steps against dense float64 SGD",
        "error of W",
        "error of the loss",
        "refactors",
    ]
    rows = [
        [
            f"{LAYER_TITLES[record.layer]}, {PLACES[device]}",
            f"{record.weight_error:.1e}",
            f"{record.largest_loss_error:.1e}",
            "" if record.refactors is None else str(record.refactors),
        ]
        for device in DEVICES
        for record in measured.long_runs(device)
    ]
    return f"{markdown_table(columns, rows)}\n\n{measured.source('long_run')}"


def epochs(measured: Measurements) -> str:
    """Return the time of an epoch, and how much longer it is with a dense softmax."""
    columns = [
        "corpus",
        "classes",
        "network",
        "on",
        "dense softmax / factored Z-loss",
        "an epoch with the factored Z-loss",
    ]
    speeds = [
        (record, record.speed) for record in _language_models(measured) if record.speed is not None
    ]
    rows = [
        [
            record.corpus,
            f"{record.classes:,}",
            record.network.title,
            record.device,
            f"{dense.ratio_to_factored:.3g}",
            f"{factored.epoch_s:.0f} s",
        ]
        for (record, factored), (_, dense) in zip(speeds[::2], speeds[1::2], strict=True)
    ]
    return f"{markdown_table(columns, rows)}\n\n{measured.source('language_model')}"


def learning(measured: Measurements) -> str:
    """Return the test scores of the runs, beside always predicting the most frequent words."""
    found: dict[str, Scores] = {}
    for record in _language_models(measured):
        if run := record.learning:
            label = f"{record.corpus}, {run.epochs:.2g} epochs of {record.network.title}"
            found.setdefault(label, run.test.run)
            # The most frequent words are the same for all runs.
            found.setdefault(f"{record.corpus}, {SCORED_TITLES['constant']}", run.test.constant)
    rows = [
        [
            label,
            *(f"{100 * error:.1f}" for error in scores.top_errors),
            f"{scores.mrr:.3f}",
        ]
        for label, scores in found.items()
    ]
    depths = [f"top-{k}" for k in TOP_K]
    table = markdown_table(["error on the test split, %", *depths, "MRR"], rows)
    return f"{table}\n\n{measured.source('language_model')}"


def _language_models(measured: Measurements) -> list[LanguageModelRecord]:
    return [record for device in DEVICES for record in measured.language_models(device)]
