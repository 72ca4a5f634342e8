"""The command line of the reproduction: `zloss paper search`, `figure2` to `figure5`, `table1` and `table2`.

Nothing is computed here: commands read their arguments, let a collector work and say what it has made.
"""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from reproduction.experiments.at_once import collect_at_once
from reproduction.experiments.collecting import Collector
from reproduction.experiments.large_texts import LargeText, Rates
from reproduction.experiments.losses import collect_losses
from reproduction.experiments.models import DEFAULT_MODELS, Budget
from reproduction.experiments.parameters import OTHER_B, collect_curves, collect_sweep, geometric
from reproduction.experiments.sources import Sources
from reproduction.experiments.stacks import fitting
from reproduction.experiments.studies import SCORE, search_plan, study_name
from reproduction.report.evidence import bench_command
from reproduction.report.records import CURVES, LOSSES, MODELS
from reproduction.report.scores import SCORES
from reproduction.report.timings import PARTS, Device
from zloss.heads.config import check_name
from zloss_lab.display import training_bar
from zloss_lab.durable import require_writable
from zloss_lab.experiments import DEFAULT_PRESET, build_table, parse_settings
from zloss_lab.runs import RunError
from zloss_lab.terminal import INTERRUPTED, console, errors, positive_numbers, print_plainly
from zloss_lab.training import device_of
from zloss_lab.tuning.display import summary, watching
from zloss_lab.tuning.evaluators import Together
from zloss_lab.tuning.plan import Plan
from zloss_lab.tuning.study import TuningStudy

ALL_LOSSES = tuple(dict.fromkeys(loss for losses in LOSSES.values() for loss in losses))
_LEAST_ROUNDS = 8  # of a search, which learns from one round for the next
_TRIED_SHARE = 0.1  # of the budget, for each learning rate
_BUDGETS = "--budget SECONDS, --epochs N or --converged"
# The table of a training, too: as a whole it takes the place of all that is in it.
_OF_BUDGET = (
    "training",
    "training.seconds",
    "training.epochs",
    "training.steps",
    "training.schedule",
)

paper = typer.Typer(
    help="Run the experiments of the paper and keep their records, for `zloss report`. What is there is not run again.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Studies = Annotated[
    Path, typer.Option(help="folder with a study for each loss, as `zloss paper search` makes them")
]
SettingsOf = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="folder of records to take the settings from, whatever studies there are",
        show_default="none: from the studies, or from --records where there are none",
    ),
]
OtherCorpus = Annotated[
    Path | None,
    typer.Option(
        "--corpus", help="folder of a prepared corpus", show_default="that of the studies"
    ),
]
Records = Annotated[
    Path, typer.Option(help="folder for the records; `zloss report` wants it to be called paper")
]
Seeds = Annotated[int, typer.Option(min=1, help="trainings of every choice, from seed 0 on")]
Epochs = Annotated[
    int | None, typer.Option(min=1, help="of a training", show_default="those of the studies")
]
DeviceName = Annotated[
    str | None, typer.Option("--device", help="auto, cpu or cuda", show_default="auto")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="over all else; as often as you like. docs/lab.md has all keys",
    ),
]
AtOnce = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="networks side by side",
        show_default="as many as there is memory for",
    ),
]
Losses = Annotated[str | None, typer.Option(help="separated by commas", show_default="all")]
Scores = Annotated[
    str | None,
    typer.Option(help=f"of {', '.join(SCORES)}; separated by commas", show_default="all"),
]

STUDIES, RECORDS = Path("studies/ptb"), Path("reproduction/records")


# ---- the search ------------------------------------------------------------------------------------------------------


@paper.command()
def search(
    corpus: Annotated[Path, typer.Option(help="folder of Penn Treebank, prepared")],
    studies: Studies = STUDIES,
    losses: Losses = None,
    scores: Annotated[
        str, typer.Option(help="a study for each; every one keeps all scores, so that one will do")
    ] = SCORE,
    trials: Annotated[int, typer.Option(min=1, help="of every study")] = 100,
    at_once: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="trials side by side",
            show_default="what there is memory for, in 8 rounds or more",
        ),
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="of a trial", show_default="20")] = None,
    seed: Annotated[int, typer.Option(min=0, help="of the search")] = 0,
    no_prune: Annotated[
        bool, typer.Option("--no-prune", help="let trials that lie behind go on")
    ] = False,
    device: DeviceName = None,
    settings: Settings = None,
) -> None:
    """Search for the settings of every loss, on the validation split. Ctrl-C keeps all trials but those that run.

    \b
    zloss paper search --corpus data/ptb --studies studies/ptb --trials 128 --set network.precision=tf32
    zloss paper search --corpus data/ptb --studies studies/ptb --trials 256 --set network.precision=tf32   # go on
    """
    fixed = [
        *(f"{key}={value}" for key, value in _changes(None, epochs, device).items()),
        *(settings or []),
    ]
    chosen = [
        (loss, score)
        for loss in _names(losses, ALL_LOSSES, "loss")
        for score in _names(scores, SCORES, "score")
    ]
    with _going_on():
        for loss, score in chosen:
            plan = search_plan(
                loss,
                corpus=corpus,
                score=score,
                trials=trials,
                settings=fixed,
                seed=seed,
                prunes=not no_prune,
            )
            _search(studies / study_name(loss, score), plan, at_once)


def _search(folder: Path, plan: Plan, at_once: int | None) -> None:
    evaluator = Together()
    study = TuningStudy.begin(folder, plan, evaluator)
    most = at_once or min(_fitting(plan), max(1, plan.trials // _LEAST_ROUNDS))
    console.print(
        f"{plan.name}: {study.missing()} of {plan.trials} trials to go, {most} at once",
        highlight=False,
    )
    with watching(study, console) as watch:
        study.run(evaluator, at_once=most, watch=watch)
    console.print(f"{plan.name}: {summary(study.trials(), plan.trials)}", highlight=False)


def _fitting(plan: Plan) -> int:
    return min(fitting(plan.trial(settings)) for settings in plan.searched.examples())


# ---- figures ---------------------------------------------------------------------------------------------------------


def _comparison(figure: int) -> Callable[..., None]:
    """The command of figure 2 or 5, which differ in their losses alone."""

    def compare(
        studies: Studies = STUDIES,
        settings_of: SettingsOf = None,
        corpus: OtherCorpus = None,
        losses: Losses = None,
        scores: Scores = None,
        seeds: Seeds = 3,
        epochs: Epochs = None,
        at_once: AtOnce = None,
        device: DeviceName = None,
        settings: Settings = None,
        records: Records = RECORDS,
    ) -> None:
        changes = _changes(settings, epochs, device)
        sources = Sources(
            studies=studies,
            records=records,
            settings_of=settings_of,
            corpus=corpus,
            changes=changes,
        )
        compared, by = (
            _names(losses, LOSSES[figure], f"loss of figure {figure}"),
            _names(scores, SCORES, "score"),
        )
        found = sources.find(figure, compared, by, _tell)
        make = _maker(records, range(seeds), at_once)
        make(lambda collector: collect_losses(figure, found, by, collector))

    return compare


_FIGURE_2 = """Every loss with the settings that its search has found best for each score, tested for that score.

\b
zloss paper figure2 --studies studies/ptb --seeds 5
zloss paper figure2 --studies studies/ptb --seeds 5 --losses z_loss,softmax
zloss paper figure2 --corpus data/ptb --seeds 5    # without studies: the settings of the records
zloss paper figure2 --corpus data/ptb --records mine/paper --settings-of reproduction/records
"""
_FIGURE_5 = "The same as figure 2 for losses with and without Z-normalisation. What figure 2 has of them is taken over."
paper.command("figure2", help=_FIGURE_2)(_comparison(2))
paper.command("figure5", help=_FIGURE_5)(_comparison(5))


@paper.command()
def figure3(
    studies: Studies = STUDIES,
    settings_of: SettingsOf = None,
    corpus: OtherCorpus = None,
    a: Annotated[
        str | None,
        typer.Option("--a", help="values, separated by commas", show_default="12 from 0.02 to 2"),
    ] = None,
    b: Annotated[
        str, typer.Option("--b", help="values beside 28, at the a that validates best")
    ] = ",".join(f"{b:g}" for b in OTHER_B),
    seeds: Seeds = 3,
    epochs: Epochs = None,
    at_once: AtOnce = None,
    device: DeviceName = None,
    settings: Settings = None,
    records: Records = RECORDS,
) -> None:
    """The Z-loss with b = 28 and many values of a, all else as it is best for the top-10 error."""
    values = geometric(0.02, 2.0, 12) if a is None else positive_numbers("a", a, float)
    other_b = positive_numbers("b", b, float)
    changes = _changes(settings, epochs, device)
    sources = Sources(
        studies=studies, records=records, settings_of=settings_of, corpus=corpus, changes=changes
    )
    (found,) = sources.find(3, ["z_loss"], [SCORE], _tell)
    make = _maker(records, range(seeds), at_once)
    make(lambda collector: collect_sweep(found, values, other_b, collector))


@paper.command()
def figure4(
    studies: Studies = STUDIES,
    settings_of: SettingsOf = None,
    corpus: OtherCorpus = None,
    seeds: Seeds = 3,
    epochs: Epochs = None,
    at_once: AtOnce = None,
    device: DeviceName = None,
    settings: Settings = None,
    records: Records = RECORDS,
) -> None:
    """Validation errors by epoch of the Z-loss with the settings that are best for top-1, 5, 10 and 50."""
    changes = _changes(settings, epochs, device)
    sources = Sources(
        studies=studies, records=records, settings_of=settings_of, corpus=corpus, changes=changes
    )
    (found,) = sources.find(4, ["z_loss"], CURVES, _tell)
    make = _maker(records, range(seeds), at_once)
    make(lambda collector: collect_curves(found, collector))


# ---- tables ----------------------------------------------------------------------------------------------------------


@paper.command()
def table1(
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    folder: Annotated[Path, typer.Option("--records", help="folder for the timings")] = Path(
        "benchmarks/records"
    ),
) -> None:
    """Say which commands time the steps that table 1 is made of. Leave the machine alone while they run."""
    kind: Device = "cuda" if device_of(device).type == "cuda" else "cpu"
    for part in PARTS:
        print(f"{bench_command(part, kind)} --output {folder / part}.{kind}.jsonl")


@paper.command()
def table2(
    corpus: Annotated[Path, typer.Option(help="folder of a prepared corpus with many words")],
    budget: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", min=0, help="of training for each model, validation not counted"
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="train each for so many, whatever time that takes"),
    ] = None,
    converged: Annotated[
        bool,
        typer.Option("--converged", help="train each until lower learning rates bring nothing"),
    ] = False,
    models: Annotated[
        str | None,
        typer.Option(
            help=f"of {', '.join(MODELS)}; separated by commas",
            show_default="all but the full softmax",
        ),
    ] = None,
    rates: Annotated[
        str | None,
        typer.Option(
            help="learning rates to try, separated by commas; the best on validation is taken"
        ),
    ] = None,
    try_for: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="for each rate", show_default="a tenth of the budget"),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="trainings of every model")] = 3,
    first_seed: Annotated[
        int, typer.Option(min=0, help="the others follow: for several commands at once")
    ] = 0,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="so many test examples at most",
            show_default="all on a GPU, on a CPU what takes about half a minute",
        ),
    ] = None,
    runs: Annotated[Path, typer.Option(help="folder for the runs while they are needed")] = Path(
        "runs/table2"
    ),
    keep_runs: Annotated[bool, typer.Option("--keep-runs", help="keep them")] = False,
    at_once: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="trainings at the same time, each in a process of its own, on a shared device",
        ),
    ] = 1,
    shared_device: Annotated[
        bool,
        typer.Option(
            "--shared-device", help="other work runs on it too: the scores count, the time does not"
        ),
    ] = False,
    device: DeviceName = None,
    settings: Settings = None,
    records: Records = RECORDS,
) -> None:
    """Models with many classes on a large text: what they come to in a fixed time, in some epochs or in the end.

    \b
    zloss paper table2 --corpus data/fil8 --budget 120 --rates 0.6,1,1.7
    zloss paper table2 --corpus data/fil8 --epochs 2
    zloss paper table2 --corpus data/fil8 --converged --seeds 1 --models "Z-loss net1,H-softmax net1"
    zloss paper table2 --corpus data/fil8 --epochs 1 --seeds 3 --models "Z-loss net1,H-softmax net1" --at-once 6
    """
    if (budget is not None) + (epochs is not None) + converged != 1:
        raise RunError(f"say for how long to train, by one of {_BUDGETS}")
    is_shared = shared_device or at_once > 1
    if is_shared and budget is not None:
        raise RunError(
            "what comes out in a fixed time depends on all that the device does: no --shared-device or --at-once then"
        )
    tried, changes = _rates(rates, try_for, budget), _changes(settings, None, device)
    for key in changes:
        if key in _OF_BUDGET:
            raise RunError(f"{key} is not to be set here: use {_BUDGETS}, which it would undo")

    def collect(collector: Collector) -> list[str]:
        text = LargeText(
            folder=corpus,
            budget=Budget(budget, epochs),
            collector=collector,
            runs=runs,
            keeps_runs=keep_runs,
            is_alone=not is_shared,
            rates=tried,
            changes=changes,
            limit=limit,
        )
        wanted = DEFAULT_MODELS if models is None else _names(models, MODELS, "model")
        return (
            text.collect(wanted)
            if at_once == 1
            else collect_at_once(text, wanted, at_once, console)
        )

    _maker(records, range(first_seed, first_seed + seeds), None)(collect)


def _rates(text: str | None, try_for: float | None, budget: float | None) -> Rates | None:
    if try_for is not None and not (math.isfinite(try_for) and try_for > 0):
        raise RunError(f"--try-for must be a finite number of seconds above 0, got {try_for:g}")
    if text is None:
        if try_for is not None:
            raise RunError("--try-for says for how long to try each of --rates: say which")
        return None
    if try_for is None and budget is None:
        raise RunError("--rates without --budget needs --try-for SECONDS, for each of them")
    return Rates(
        positive_numbers("rates", text, float),
        _TRIED_SHARE * (budget or 0.0) if try_for is None else try_for,
    )


# ---- what they share -------------------------------------------------------------------------------------------------

Maker = Callable[[Callable[[Collector], list[str]]], None]


def _maker(records: Path, seeds: Sequence[int], at_once: int | None) -> Maker:
    """What lets a collector work, and says at the end what could not be made: then with code 1."""

    def make(collect: Callable[[Collector], list[str]]) -> None:
        require_writable(records)
        with _going_on(), training_bar(console) as watch:
            collector = Collector(
                folder=records, seeds=seeds, at_once=at_once, watch=watch, tell=_tell
            )
            faults = collect(collector)
        for fault in faults:
            print_plainly(errors, f"no record: {fault}")
        if faults:
            raise typer.Exit(1)
        _tell(f"all records are in {records}; {_how_to_see(records)}")

    return make


def _how_to_see(records: Path) -> str:
    if records.resolve().name == RECORDS.name:
        return f"see them with: zloss report --records {quote(str(records.parent))}"
    return f"`zloss report` shows those in a folder of the name {RECORDS.name}"


def _tell(text: str) -> None:
    print_plainly(console, text)


@contextmanager
def _going_on() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        errors.print("\nstopped; the same command goes on with what is missing")
        sys.exit(INTERRUPTED)


def _changes(
    settings: Sequence[str] | None, epochs: int | None, device: str | None
) -> dict[str, Any]:
    """What the user has set, by dotted keys; refused where it is not for an experiment to set."""
    named = {"training.epochs": epochs, "device": device}
    changes = {key: value for key, value in named.items() if value is not None} | parse_settings(
        settings or []
    )
    build_table(DEFAULT_PRESET, [], changes)
    return changes


def _names(text: str | None, known: Sequence[str], what: str) -> list[str]:
    names = list(known) if text is None else [name.strip() for name in text.split(",")]
    for name in names:
        check_name(what, name, known)
    return list(dict.fromkeys(names))
