"""The command line: `zloss data`, `train`, `evaluate`, `predict`, `runs`, `plot` and `demo`; `bench` and `tune`
come from packages of their own.

Nothing is computed here: commands read their arguments, call the lab and show what comes back. Mistakes of the user end
with one line that says what to do, and code 1; Ctrl-C with code 130.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from zloss_lab.bench.commands import bench
from zloss_lab.corpora import CATALOGUE, Corpus, prepare
from zloss_lab.demo import run_demo
from zloss_lab.display import (
    byte_bar,
    corpus_table,
    count_bar,
    evaluation_table,
    rows_table,
    run_row,
    runs_table,
    training_bar,
)
from zloss_lab.evaluation import finite
from zloss_lab.experiments import DEFAULT_PRESET, build_experiment, preset_names
from zloss_lab.models import TrainedModel
from zloss_lab.plotting import plot_runs
from zloss_lab.runs import Run, RunError
from zloss_lab.terminal import INTERRUPTED, console, errors, print_plainly, run_commands
from zloss_lab.training import Experiment, fit, resumed
from zloss_lab.tuning.commands import tune

app = typer.Typer(
    help="Classifiers with a huge number of classes: train and compare word-level language models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
data = typer.Typer(help="Prepare corpora and look at them.", no_args_is_help=True)
app.add_typer(data, name="data")
app.add_typer(bench, name="bench")
app.add_typer(tune, name="tune")

AsJson = Annotated[bool, typer.Option("--json", help="print JSON for scripts")]


def main() -> None:
    """Run the command line."""
    run_commands(app)


# ---- data ------------------------------------------------------------------------------------------------------------


@data.command("list")
def list_corpora(as_json: AsJson = False) -> None:
    """The corpora that the lab knows by name."""
    rows = [{"name": name, "what": entry.title} for name, entry in CATALOGUE.items()]
    if as_json:
        print(json.dumps(rows))
    else:
        console.print(rows_table(rows))


@data.command("prepare")
def prepare_corpus(
    corpus: Annotated[
        str, typer.Argument(help="a name from `zloss data list`, or a text file or folder of yours")
    ],
    folder: Annotated[Path, typer.Option("--to", help="where the prepared corpus goes")],
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="the folder that has the files or the archive of a named corpus; else a download",
        ),
    ] = None,
    valid: Annotated[
        Path | None, typer.Option(help="a file of yours to validate on; else the end of the text")
    ] = None,
    test: Annotated[
        Path | None, typer.Option(help="a file of yours to test on; else the end of the text")
    ] = None,
    fractions: Annotated[
        tuple[float, float] | None,
        typer.Option(
            metavar="VALID TEST",
            help="what part of your text is cut off its end to validate and to test on; 0 for none",
            show_default="0.05 0.05",
        ),
    ] = None,
    min_count: Annotated[
        int | None, typer.Option(help="rarer words become the unknown word")
    ] = None,
    max_words: Annotated[int | None, typer.Option(help="size of the vocabulary at most")] = None,
    whole_vocabulary: Annotated[
        bool | None,
        typer.Option(
            help="words of all splits are classes, as is customary for text8; else those of the training text"
        ),
    ] = None,
    lines: Annotated[
        bool | None,
        typer.Option(
            help="whether the end of a line in your text means something", show_default="lines"
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="whitespace, or english for plain text of yours", show_default="whitespace"
        ),
    ] = None,
    check_counts: Annotated[
        bool,
        typer.Option(
            help="refuse files of a named corpus that have more or fewer words than is known of it"
        ),
    ] = True,
) -> None:
    """Read a corpus once and write its words as numbers. Doing it twice does nothing.

    \b
    zloss data prepare ptb --to data/ptb                         # downloads it
    zloss data prepare ptb --to data/ptb --from my/folder        # which has its files
    zloss data prepare letters.txt.xz --to data/letters --tokenizer english --min-count 3
    """
    with byte_bar(console) as watch:
        prepared = prepare(
            corpus,
            folder,
            source=source,
            valid=valid,
            test=test,
            fractions=fractions,
            min_count=min_count,
            max_words=max_words,
            whole_vocabulary=whole_vocabulary,
            lines=lines,
            tokenizer=tokenizer,
            check_counts=check_counts,
            progress=watch,
        )
    console.print(corpus_table(prepared))


@data.command("info")
def corpus_info(
    folder: Annotated[Path, typer.Argument(help="folder of a prepared corpus")],
    as_json: AsJson = False,
) -> None:
    """What a prepared corpus holds."""
    corpus = Corpus.open(folder)
    if as_json:
        print(json.dumps(corpus.manifest))
    else:
        console.print(corpus_table(corpus))


# ---- runs ------------------------------------------------------------------------------------------------------------


@app.command()
def train(
    folder: Annotated[Path, typer.Argument(help="folder of the run")],
    corpus: Annotated[Path | None, typer.Option(help="folder of a prepared corpus")] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help=f"where to start from: {', '.join(preset_names())}", show_default=DEFAULT_PRESET
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="a TOML file over the preset")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="over both; as often as you like. docs/lab.md has all keys",
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="go on with the run in the folder, with the config that it has"
        ),
    ] = False,
) -> None:
    """Train a network, or go on with one. Ctrl-C saves first.

    \b
    zloss train runs/one --corpus data/ptb --preset ptb
    zloss train runs/two --corpus data/ptb --preset ptb --set network.head.a=0.3 --set training.lr=0.5
    zloss train runs/two --resume
    """
    given = {"--corpus": corpus, "--preset": preset, "--config": config, "--set": settings}
    experiment = (
        _resumed(folder, given)
        if resume
        else _new_experiment(corpus, preset, config, settings or [])
    )
    try:
        with training_bar(console) as watch:
            run = fit(experiment, folder, resume=resume, watch=watch)
    except KeyboardInterrupt:
        print_plainly(errors, f"\n{_how_to_go_on(folder)}")
        sys.exit(INTERRUPTED)
    console.print(runs_table([run_row(run)], console.width))


def _resumed(folder: Path, given: Mapping[str, object]) -> Experiment:
    if ignored := [option for option, value in given.items() if value]:
        raise RunError(
            f"--resume goes on with the config that the run has, in {folder / 'config.json'}: leave out "
            f"{' and '.join(ignored)}, or start a new run in another folder"
        )
    return resumed(folder)


def _new_experiment(
    corpus: Path | None, preset: str | None, config: Path | None, settings: list[str]
) -> Experiment:
    if corpus is None:
        raise RunError(
            "a new run needs --corpus FOLDER, a prepared corpus: see `zloss data prepare --help`"
        )
    # Resolved, so that the run can be used from another folder than it was started in.
    return build_experiment(
        str(corpus.resolve()), preset_name=preset or DEFAULT_PRESET, file=config, settings=settings
    )


def _how_to_go_on(folder: Path) -> str:
    """After Ctrl-C, which may have come before there was anything to save, or twice."""
    steps = Run(folder).steps()
    if not steps:
        return "stopped before anything was saved"
    return f"stopped; step {steps[-1]:,} is saved. Go on with: zloss train {quote(str(folder))} --resume"


@app.command("evaluate")
def evaluate_run(
    folder: Annotated[Path, typer.Argument(help="folder of the run")],
    split: Annotated[str, typer.Option(help="train, valid or test")] = "test",
    limit: Annotated[
        int | None,
        typer.Option(
            help="so many examples at most, drawn at random, the same ones every time",
            show_default="all on a GPU, on a CPU what takes about half a minute",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Scores of the best checkpoint, beside those of always predicting the most frequent words.

    Behind ± stands half the width of the 95 % confidence interval, where a sample was taken.
    """
    model = TrainedModel.load(folder)
    with count_bar(errors, "examples") as watch:
        results = model.evaluate(split, limit=limit, progress=watch)
    if as_json:
        print(json.dumps({name: finite(result.to_record()) for name, result in results.items()}))
    else:
        console.print(evaluation_table(results))


@app.command()
def predict(
    folder: Annotated[Path, typer.Argument(help="folder of the run")],
    text: Annotated[str, typer.Argument(help="the words so far")],
    top: Annotated[int, typer.Option(help="how many words at most")] = 10,
    as_json: AsJson = False,
) -> None:
    """The words that may well come next, best first, with their scores.

    \b
    zloss predict runs/one "the company said it" --top 5
    """
    words = TrainedModel.load(folder).predict(text, top)
    rows = [{"word": word, "score": round(score, 4)} for word, score in words]
    if as_json:
        print(json.dumps(rows))
    else:
        console.print(rows_table(rows))


@app.command("runs")
def list_runs(
    folders: Annotated[list[Path], typer.Argument(help="folders of runs, or folders full of them")],
    as_json: AsJson = False,
) -> None:
    """A table of runs to compare, each at its best validation. What cannot be read is named, with code 1."""
    found, faults = _readable(folders)
    rows = [row for _, row in found]
    if as_json:
        print(json.dumps(rows))
    elif rows:
        console.print(runs_table(rows, console.width))
    _leave_out(faults)


def _readable(folders: list[Path]) -> tuple[list[tuple[Run, dict[str, Any]]], list[str]]:
    """The runs that can be read, each with its row of the table, and what is wrong with the others."""
    runs, without = find_runs(folders)
    readable, faults = [], [f"there are no runs in {folder}" for folder in without]
    for run in runs:
        try:
            readable.append((run, run_row(run)))
        except RunError as error:
            faults.append(str(error))
        except OSError as error:  # a folder that others may not look into
            faults.append(f"{error.filename}: {error.strerror}")
    return readable, faults


def _leave_out(faults: list[str]) -> None:
    """Name what was left out, and end with code 1 if anything was."""
    for fault in faults:
        print_plainly(errors, f"left out: {fault}")
    if faults:
        raise typer.Exit(1)


@app.command()
def plot(
    folders: Annotated[list[Path], typer.Argument(help="folders of runs, or folders full of them")],
    output: Annotated[
        Path, typer.Option("--to", help="the file to write, .png, .svg or .pdf")
    ] = Path("runs.png"),
    metric: Annotated[
        str,
        typer.Option(
            help="top_K_error with K = 1, 5, 10, 20, 50, 100; mrr, mean_rank or perplexity"
        ),
    ] = "top_10_error",
) -> None:
    """Validation curves of runs. What cannot be read is named, with code 1."""
    found, faults = _readable(folders)
    runs = [run for run, _ in found]
    left_out = plot_runs(runs, output, metric) if runs else []
    if runs:
        print_plainly(console, f"wrote {output}")
    for run in left_out:
        print_plainly(console, f"left out, without {metric} so far: {run.folder}")
    _leave_out(faults)


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(help="where everything of the text goes")] = Path("demo"),
) -> None:
    """Train on real text for a few minutes, compare with guessing, and predict."""
    run_demo(folder, console)


def find_runs(folders: list[Path]) -> tuple[list[Run], list[Path]]:
    """The runs in these folders, or one level below them, each once; and the folders that have none."""
    found: dict[Path, Run] = {}
    without = []
    for folder in folders:
        places = [folder, *(sorted(folder.iterdir()) if folder.is_dir() else ())]
        runs = [Run.open(place) for place in places if (place / "config.json").is_file()]
        for run in runs:
            found.setdefault(run.folder.resolve(), run)
        if not runs:
            without.append(folder)
    if not found:
        raise RunError(f"no runs in {', '.join(map(str, folders))}")
    return list(found.values()), without
