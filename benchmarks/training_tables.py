"""Tables of training runs: precision after a long one, the time of an epoch, and what language models have learnt."""

from benchmarks.markdown_cells import markdown_table
from benchmarks.measurements import Measurements
from reproduction.timed_parts import DEVICES, PLACES
from zloss_lab.records import Record

_DEPTHS = (1, 5, 10, 20, 50, 100)


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
            f"{record['head']}, {PLACES[device]}",
            f"{record['weight_error']:.1e}",
            f"{record['largest_loss_error']:.1e}",
            str(record.get("refactors", "")),
        ]
        for device in DEVICES
        for record in measured.training_records("long_run", device)
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
    speeds = [record for record in _language_models(measured) if record["what"] == "speed"]
    rows = [
        [
            factored["corpus"],
            f"{factored['classes']:,}",
            _layers(factored["network"]),
            factored["device"],
            f"{dense['ratio_to_factored']:.3g}",
            f"{factored['epoch_s']:.0f} s",
        ]
        for factored, dense in zip(speeds[::2], speeds[1::2], strict=True)
    ]
    return f"{markdown_table(columns, rows)}\n\n{measured.source('language_model')}"


def learning(measured: Measurements) -> str:
    """Return the test scores of the runs, beside always predicting the most frequent words."""
    found: dict[str, Record] = {}
    for record in _language_models(measured):
        run = f"{record.get('epochs', 0):.2g} epochs of {_layers(record['network'])}"
        for name, scores in record.get("test", {}).items():
            label = f"{record['corpus']}, {run if name == 'this run' else name}"
            found.setdefault(label, scores)  # the most frequent words are the same for all runs
    rows = [
        [
            label,
            *(f"{100 * scores[f'top_{k}_error']:.1f}" for k in _DEPTHS),
            f"{scores['mrr']:.3f}",
        ]
        for label, scores in found.items()
    ]
    depths = [f"top-{k}" for k in _DEPTHS]
    table = markdown_table(["error on the test split, %", *depths, "MRR"], rows)
    return f"{table}\n\n{measured.source('language_model')}"


def _language_models(measured: Measurements) -> list[Record]:
    return [
        record
        for device in DEVICES
        for record in measured.training_records("language_model", device)
    ]


def _layers(network: Record) -> str:
    """Return the layers below the head, as the paper writes them."""
    widths = ", ".join(str(width) for width in network["hidden"])
    return f"[{network['context']} * {network['embedding']}, {widths}]"
