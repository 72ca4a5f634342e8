"""Language models with the factored Z-loss: what an epoch costs beside a dense softmax, and what is learnt.

    python benchmarks/language_model.py --part speed --corpus data/ptb     an epoch, by turns with dense softmax
    python benchmarks/language_model.py --part ptb --corpus data/ptb       a training run, and its scores on the test
    python benchmarks/language_model.py --part fil8 --corpus data/fil8     both, with 213,271 classes

Corpora are prepared by `zloss data prepare`. Each part replaces its own records in records/language_model.DEVICE.jsonl
and leaves those of the others alone. Training runs lie in the folder that --runs names; what was interrupted goes on.

Time is that of whole training steps, from the tokens to the updated weights, in bursts by turns, so that a slow minute
of the machine hits both heads. Medians count; the ratio of all time spent stands beside theirs, because a median may
leave out the refactors of the factored layer. Nothing is reported for a head whose loss does not fall meanwhile. The
machine must have nothing else to do.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track

import zloss
from zloss_lab.configuration import to_table
from zloss_lab.corpora import Corpus
from zloss_lab.evaluation import finite
from zloss_lab.experiments import build_experiment
from zloss_lab.inspection.trained_model import TrainedModel
from zloss_lab.progress_bars import training_bar
from zloss_lab.records import Record, provenance, read_records, write_records
from zloss_lab.runs import Run
from zloss_lab.training import Experiment, Trainer, fit

RECORDS = Path(__file__).parent / "records"
SUITE = "language_model"
PRESET = "ptb"
SOFTMAX = zloss.HeadConfig(head="dense", loss="softmax")
SOFTMAX_LR = 0.1  # of all layers; it has no influence on time


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is measured."""

    turns: int = 30
    burst: int = 10  # steps at a time
    epochs: int = 6  # of the run of part ptb, if its schedule does not end before
    steps: int = 4000  # of the run of part fil8
    validations: int = 8  # on the way
    validation_examples: int = 2000  # all classes have to be scored for each
    settings: tuple[str, ...] = ()  # over the preset, as for `zloss train --set`

    def experiment(self, part: str, corpus: Path, device: str) -> Experiment:
        """The preset, as long as the part wants it."""
        settings = [f"device={device}"]
        if part == "ptb":
            settings += [f"training.epochs={self.epochs}"]
        if part == "fil8":
            settings += [
                f"training.steps={self.steps}",
                f"training.validation_examples={self.validation_examples}",
            ]
            settings += [
                f"training.validate_every={max(1, self.steps // self.validations)}",
                "training.patience=2",
            ]
        return build_experiment(
            str(corpus.resolve()), preset_name=PRESET, settings=[*settings, *self.settings]
        )


# ---- time ------------------------------------------------------------------------------------------------------------


class Timed:
    """Training steps of an experiment, with their times."""

    def __init__(self, experiment: Experiment) -> None:
        self.trainer = Trainer(experiment, Run(Path("never written")), lambda _: None)
        self.times_ms: list[float] = []  # of a step, one for every burst
        self.losses: list[float] = []

    def burst(self, steps: int) -> None:
        """Take steps; with the last loss all of them have come to their end, on a GPU too."""
        start = time.perf_counter()
        for _ in range(steps):
            loss = self.trainer.take_step()
        self.losses.append(loss.item())
        self.times_ms.append(1000 * (time.perf_counter() - start) / steps)

    def forget_warm_up(self) -> None:
        del self.times_ms[0]

    def require_learning(self) -> None:
        half = len(self.losses) // 2
        before, after = statistics.mean(self.losses[:half]), statistics.mean(self.losses[half:])
        if not after < before:
            head = self.trainer.config.network.head.head
            raise SystemExit(
                f"{head}: the loss went from {before:.3f} to {after:.3f}; not measuring what does not learn"
            )

    def record(self) -> Record:
        epoch_steps = len(self.trainer.batches)
        median_ms = statistics.median(self.times_ms)
        return {
            "time_ms": round(median_ms, 4),
            "time_ms_range": [round(min(self.times_ms), 4), round(max(self.times_ms), 4)],
            "words_per_second": round(self.trainer.config.training.batch_size / median_ms * 1000),
            "epoch_steps": epoch_steps,
            "epoch_s": round(epoch_steps * median_ms / 1000, 2),  # steps alone, no validation
            "losses": [round(loss, 4) for loss in self.losses],
        }


def speed(part: str, experiment: Experiment, plan: Plan) -> list[Record]:
    """The experiment and the same with dense softmax, by turns."""
    training = replace(experiment.training, lr=SOFTMAX_LR, output_lr=SOFTMAX_LR)
    softmax = replace(
        experiment, network=replace(experiment.network, head=SOFTMAX), training=training
    )
    both = [Timed(experiment), Timed(softmax)]
    for _ in track(range(plan.turns + 1), "measuring by turns"):
        for timed in both:
            timed.burst(plan.burst)
    for timed in both:
        timed.forget_warm_up()
        timed.require_learning()
    factored = both[0]
    amount = {"turns": plan.turns, "burst": plan.burst}
    return [
        described(part, "speed", timed.trainer.config)
        | timed.record()
        | {
            "ratio_to_factored": _ratio(statistics.median, timed, factored),
            "ratio_of_all_time": _ratio(sum, timed, factored),
        }
        | amount
        for timed in both
    ]


def _ratio(measure: Callable[[list[float]], float], timed: Timed, other: Timed) -> float:
    return round(measure(timed.times_ms) / measure(other.times_ms), 4)


# ---- learning --------------------------------------------------------------------------------------------------------


def learning(part: str, experiment: Experiment, folder: Path) -> Record:
    """Train, or go on with a run; what it achieves on the test split, and the most frequent words beside it."""
    with training_bar(Console()) as watch:
        run = fit(experiment, folder, resume=(folder / "config.json").exists(), watch=watch)
    validations = [line for line in run.metrics() if line["kind"] == "validation"]
    score, trained = experiment.training.score, TrainedModel.load(folder)
    return (
        described(part, "learning", experiment)
        | {
            "steps": validations[-1]["step"],
            "epochs": round(validations[-1]["epoch"], 4),
            "best_step": run.best_step,
            "validation": [[line["step"], line[score]] for line in validations],
            "test": {
                name: finite(result.to_record())
                for name, result in trained.evaluate("test").items()
            },
        }
        | refactoring(run, trained)
    )


def refactoring(run: Run, trained: TrainedModel) -> Record:
    """How often the factors were renewed in a run, and what part of the time of its steps that makes."""
    layer = trained.network.head.layer
    assert isinstance(layer, zloss.FactoredLinear)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        layer.refactor()
        layer.condition()  # waits for it
        times.append(time.perf_counter() - start)
    refactor_s = min(times)  # the first one prepares things
    refactors = sum(line["refactors"] for line in run.metrics() if line["kind"] == "training")
    seconds = run.state()["seconds"]
    return {
        "seconds": round(seconds, 3),
        "refactors": refactors,
        "refactor_ms": round(1000 * refactor_s, 3),
        "refactor_share": round(refactors * refactor_s / seconds, 5),
    }


def described(part: str, what: str, experiment: Experiment) -> Record:
    """What was measured, without the place of the corpus on this machine."""
    corpus, config = Corpus.open(Path(experiment.corpus)), to_table(experiment)
    return {
        "suite": SUITE,
        "part": part,
        "what": what,
        "head": experiment.network.head.head,
        "loss": experiment.network.head.loss,
        "corpus": corpus.name,
        "classes": len(corpus.vocabulary),
        "training_words": corpus.manifest["splits"]["train"]["words"],
        "preset": PRESET,
        "network": config["network"],
        "training": config["training"],
        "seed": experiment.training.seed,
    }


# ---- all of it -------------------------------------------------------------------------------------------------------


def run(
    part: str, corpus: Path, *, plan: Plan, device: str, runs: Path, output: Path
) -> list[Record]:
    """Measure a part, and put its records in the place of those that were there."""
    where = provenance(torch.device(device))  # now: the checkout may change before the end
    experiment = plan.experiment(part, corpus, device)
    records: list[Record] = []
    if part in ("ptb", "fil8"):
        records.append(learning(part, experiment, runs / f"{part}-{device}"))
    if part in ("speed", "fil8"):
        records += speed(part, experiment, plan)
    records = [record | where for record in records]
    others = (
        [record for record in read_records(output) if record["part"] != part]
        if output.exists()
        else []
    )
    write_records(output, others + records)
    return records


def show(record: Record) -> None:
    if record["what"] == "speed":
        print(
            f"{record['head']:>8}, {record['classes']:,} classes: {record['words_per_second']:,} words/s, an epoch in "
            f"{record['epoch_s']:,.0f} s, {record['ratio_to_factored']:.3g} times the factored step"
        )
    else:
        for name, scores in record["test"].items():
            print(f"{name}: top 10 error {scores['top_10_error']:.1%} on the test split")


def main() -> int:
    default = Plan()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", required=True, choices=["speed", "ptb", "fil8"])
    parser.add_argument("--corpus", required=True, type=Path, help="folder of a prepared corpus")
    parser.add_argument(
        "--device", default="cpu", choices=["cpu"] + ["cuda"] * torch.cuda.is_available()
    )
    parser.add_argument(
        "--runs", type=Path, default=Path("runs") / SUITE, help="where training runs are kept"
    )
    parser.add_argument(
        "--output", type=Path, help=f"file to write; records/{SUITE}.DEVICE.jsonl by default"
    )
    parser.add_argument("--turns", type=int, default=default.turns)
    parser.add_argument(
        "--burst", type=int, default=default.burst, help="steps of a head at each turn"
    )
    parser.add_argument(
        "--epochs", type=int, default=default.epochs, help="of the run of part ptb, at most"
    )
    parser.add_argument("--steps", type=int, default=default.steps, help="of the run of part fil8")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="over the preset"
    )
    given = parser.parse_args()
    plan = Plan(
        turns=given.turns,
        burst=given.burst,
        epochs=given.epochs,
        steps=given.steps,
        settings=tuple(given.set),
    )
    output = given.output or RECORDS / f"{SUITE}.{given.device}.jsonl"
    try:
        records = run(
            given.part, given.corpus, plan=plan, device=given.device, runs=given.runs, output=output
        )
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on with a training run", file=sys.stderr)
        return 130
    except ValueError as error:
        parser.error(str(error))
    for record in records:
        show(record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
