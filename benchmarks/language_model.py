"""Measure language models with the factored Z-loss: the time of an epoch beside a dense softmax, and the test scores.

    python -m benchmarks.language_model --part speed --corpus data/ptb    the time of an epoch with both heads
    python -m benchmarks.language_model --part ptb --corpus data/ptb      a training run and its test scores
    python -m benchmarks.language_model --part fil8 --corpus data/fil8    both, with 213,271 classes

Prepare the corpora by `zloss data prepare`. Each part replaces its own records in records/language_model.DEVICE.jsonl
and keeps the records of other parts. Training runs lie in the folder `--runs`; an interrupted run is continued.

A time is that of whole training steps, from the tokens to the updated weights. The heads take bursts of steps by turns,
so that a slow minute of the machine affects both. A record has the ratio of the medians. It also has the ratio of all
time spent, because a median may leave out the refactors of the factored layer. If the loss of a head does not fall,
nothing is reported. The machine must have nothing else to do.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import torch
from rich.console import Console
from rich.progress import track

import zloss
from benchmarks.training_records import (
    ComparedScores,
    LanguageModelRecord,
    Learning,
    MeasuredNetwork,
    Part,
    Speed,
)
from zloss_lab.configuration import from_table, to_table
from zloss_lab.corpora import Corpus
from zloss_lab.experiments import build_experiment
from zloss_lab.inspection.trained_model import TrainedModel
from zloss_lab.progress_bars import training_bar
from zloss_lab.records import Record, provenance, read_records_as, write_records
from zloss_lab.runs import Run, is_run
from zloss_lab.terminal import INTERRUPTED
from zloss_lab.training import Experiment, Trainer, fit

RECORDS = Path(__file__).parent / "records"
SUITE = "language_model"
PRESET = "ptb"
SOFTMAX = zloss.HeadConfig(head="dense", loss="softmax")
SOFTMAX_LR = 0.1  # of all layers; the time does not depend on it


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The amount of work in a measurement."""

    turns: int = 30
    burst: int = 10  # steps at a time
    epochs: int = 6  # of the run of part ptb, unless its schedule ends before
    steps: int = 4000  # of the run of part fil8
    validations: int = 8  # during the run of part fil8
    validation_examples: int = 2000  # few, because each needs the scores of all classes
    settings: tuple[str, ...] = ()  # override the preset, as in `zloss train --set`

    def experiment(self, part: Part, corpus: Path, device: str) -> Experiment:
        """Return the experiment of a part: the preset with the length of its training."""
        length: dict[Part, list[str]] = {
            "speed": [],
            "ptb": [f"training.epochs={self.epochs}"],
            "fil8": [
                f"training.steps={self.steps}",
                f"training.validation_examples={self.validation_examples}",
                f"training.validate_every={max(1, self.steps // self.validations)}",
                "training.patience=2",
            ],
        }
        settings = [f"device={device}", *length[part], *self.settings]
        return build_experiment(str(corpus.resolve()), preset_name=PRESET, settings=settings)


# ---- time ------------------------------------------------------------------------------------------------------------


class Timed:
    """Training steps of an experiment, with their times."""

    def __init__(self, experiment: Experiment) -> None:
        self.trainer = Trainer(experiment, Run(Path("never written")), lambda _: None)
        self.times_ms: list[float] = []  # of a step, one for every burst
        self.losses: list[float] = []

    def burst(self, steps: int) -> None:
        """Take and time some steps. The value of the last loss is there when all of them are done, on a GPU too."""
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
                f"{head}: the loss went from {before:.3f} to {after:.3f}; not measuring a head that does not learn"
            )

    def speed(self, factored: "Timed", plan: Plan) -> Speed:
        """Return the time of a step, and its ratio to a step with the factored layer."""
        epoch_steps = len(self.trainer.batches)
        median_ms = statistics.median(self.times_ms)
        return Speed(
            time_ms=round(median_ms, 4),
            time_ms_range=(round(min(self.times_ms), 4), round(max(self.times_ms), 4)),
            words_per_second=round(self.trainer.config.training.batch_size / median_ms * 1000),
            epoch_steps=epoch_steps,
            epoch_s=round(epoch_steps * median_ms / 1000, 2),
            losses=tuple(round(loss, 4) for loss in self.losses),
            ratio_to_factored=_ratio(statistics.median, self, factored),
            ratio_of_all_time=_ratio(sum, self, factored),
            turns=plan.turns,
            burst=plan.burst,
        )


def speed(experiment: Experiment, plan: Plan) -> list[tuple[Experiment, Speed]]:
    """Return the speeds of an experiment and of the same with a dense softmax, which take turns."""
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
    return [(timed.trainer.config, timed.speed(both[0], plan)) for timed in both]


def _ratio(measure: Callable[[list[float]], float], timed: Timed, other: Timed) -> float:
    return round(measure(timed.times_ms) / measure(other.times_ms), 4)


# ---- learning --------------------------------------------------------------------------------------------------------


def learning(experiment: Experiment, folder: Path) -> Learning:
    """Train a network, or continue its run, and return its course with its scores on the test split."""
    with training_bar(Console()) as watch:
        run = fit(experiment, folder, resume=is_run(folder), watch=watch)
    validations = [line for line in run.metrics() if line["kind"] == "validation"]
    score, trained = experiment.training.score, TrainedModel.load(folder)
    return Learning(
        steps=validations[-1]["step"],
        epochs=round(validations[-1]["epoch"], 4),
        best_step=run.best_step,
        validation=tuple((line["step"], line[score]) for line in validations),
        test=ComparedScores.of(trained.compare("test")),
        **refactoring(run, trained),
    )


def refactoring(run: Run, trained: TrainedModel) -> dict[str, Any]:
    """Return the fields for the number of refactors in a run, and for their share of its time."""
    layer = trained.network.head.layer
    assert isinstance(layer, zloss.FactoredLinear)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        layer.refactor()
        layer.condition()  # waits for the refactor
        times.append(time.perf_counter() - start)
    refactor_s = min(times)  # the first refactor also prepares workspaces
    refactors = sum(line["refactors"] for line in run.metrics() if line["kind"] == "training")
    seconds = run.state().seconds
    return {
        "seconds": round(seconds, 3),
        "refactors": refactors,
        "refactor_ms": round(1000 * refactor_s, 3),
        "refactor_share": round(refactors * refactor_s / seconds, 5),
    }


# ---- records ---------------------------------------------------------------------------------------------------------


def recorded(
    measured: Speed | Learning, experiment: Experiment, part: Part, where: Record
) -> LanguageModelRecord:
    """Return the record of a measurement. It describes the experiment without the folder of the corpus."""
    corpus, config = Corpus.open(Path(experiment.corpus)), to_table(experiment)
    return LanguageModelRecord(
        part=part,
        head=experiment.network.head.head,
        loss=experiment.network.head.loss,
        corpus=corpus.name,
        classes=len(corpus.vocabulary),
        training_words=corpus.manifest["splits"]["train"]["words"],
        preset=PRESET,
        network=from_table(MeasuredNetwork, config["network"]),
        training=config["training"],
        seed=experiment.training.seed,
        speed=measured if isinstance(measured, Speed) else None,
        learning=measured if isinstance(measured, Learning) else None,
        **where,
    )


def run(
    part: Part, corpus: Path, *, plan: Plan, device: str, runs: Path, output: Path
) -> list[LanguageModelRecord]:
    """Measure a part, and replace its records in the file."""
    # Both now: the checkout may change before the end, and a file that cannot be read would cost the measurement.
    where = provenance(torch.device(device))
    existing = read_records_as(LanguageModelRecord, output) if output.exists() else []
    experiment = plan.experiment(part, corpus, device)
    measured: list[tuple[Experiment, Speed | Learning]] = []
    if part in ("ptb", "fil8"):
        measured.append((experiment, learning(experiment, runs / f"{part}-{device}")))
    if part in ("speed", "fil8"):
        measured += speed(experiment, plan)
    records = [recorded(one, config, part, where) for config, one in measured]
    write_records(output, [old for old in existing if old.part != part] + records)
    return records


def show(record: LanguageModelRecord) -> None:
    if speed := record.speed:
        print(
            f"{record.head:>8}, {record.classes:,} classes: {speed.words_per_second:,} words/s, an epoch in "
            f"{speed.epoch_s:,.0f} s, {speed.ratio_to_factored:.3g} times the factored step"
        )
    if learning := record.learning:
        for title, scores in learning.test.by_title.items():
            print(f"{title}: top 10 error {scores.top_10_error:.1%} on the test split")


def main() -> int:
    default = Plan()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", required=True, choices=get_args(Part))
    parser.add_argument("--corpus", required=True, type=Path, help="folder of a prepared corpus")
    parser.add_argument(
        "--device", default="cpu", choices=["cpu"] + ["cuda"] * torch.cuda.is_available()
    )
    parser.add_argument(
        "--runs", type=Path, default=Path("runs") / SUITE, help="folder of the training runs"
    )
    parser.add_argument(
        "--output", type=Path, help=f"file to write; records/{SUITE}.DEVICE.jsonl by default"
    )
    for name, text in (
        ("turns", "turns of each head"),
        ("burst", "steps of a head in each turn"),
        ("epochs", "most epochs of the run of part ptb"),
        ("steps", "steps of the run of part fil8"),
    ):
        parser.add_argument(f"--{name}", type=int, default=getattr(default, name), help=text)
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override the preset"
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
        print("\nstopped; the same command continues a training run", file=sys.stderr)
        return INTERRUPTED
    except ValueError as error:
        parser.error(str(error))
    for record in records:
        show(record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
