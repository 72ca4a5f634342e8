"""Works that make files from others: a corpus from a text, scores and a plot from a run."""

import json
from pathlib import Path

from tests.campaign.training_works import Training
from tests.campaign.works import Work, digests, require, text
from zloss_lab.corpora import Corpus, CorpusError

PREPARATIONS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "rare words": ("--min-count", "3"),
    "english": ("--tokenizer", "english"),
    "few words": ("--max-words", "8", "--fractions", "0.2", "0.1"),
}


class Preparing(Work):
    """A corpus, prepared from a text.

    Args:
        options: the key of the options in PREPARATIONS.
    """

    def __init__(self, options: str) -> None:
        super().__init__(f"data prepare {options}")
        self.options = PREPARATIONS[options]

    def first(self, folder: Path) -> list[str]:
        return ["data", "prepare", str(text()), "--to", str(folder / "corpus"), *self.options]

    def check_interrupted(self, folder: Path) -> None:
        try:
            Corpus.open(folder / "corpus")
        except CorpusError:
            return
        ours, theirs = digests(folder / "corpus"), digests(self.reference.folder / "corpus")
        require(ours == theirs, f"a partial corpus can be opened: {ours}")

    def check(self, folder: Path) -> None:
        ours, theirs = digests(folder), digests(self.reference.folder)
        require(ours == theirs, f"other files than those of the undisturbed command: {ours}")


class _Reading(Work):
    """A command that reads a run and leaves it as it is."""

    run = Training("factored")

    @property
    def run_folder(self) -> Path:
        return self.run.reference.folder / "run"

    def check_interrupted(self, folder: Path) -> None:
        self._check_run()

    def check(self, folder: Path) -> None:
        self._check_run()
        left = sorted(path.name for path in folder.iterdir())
        wanted = sorted(path.name for path in self.reference.folder.iterdir())
        require(left == wanted, f"the folder has {left}, it should have {wanted}")

    def _check_run(self) -> None:
        self.run.check(self.run_folder.parent)


class Evaluating(_Reading):
    """The scores of a run."""

    repeats_output = True

    def __init__(self) -> None:
        super().__init__("evaluate")

    def first(self, folder: Path) -> list[str]:
        return ["evaluate", str(self.run_folder), "--json"]


class Predicting(_Reading):
    """The most probable next words."""

    repeats_output = True

    def __init__(self) -> None:
        super().__init__("predict")

    def first(self, folder: Path) -> list[str]:
        return ["predict", str(self.run_folder), "the cat sat"]


class Plotting(_Reading):
    """A plot of a run, in place of an older file."""

    _OLD = b"an older plot"

    def __init__(self) -> None:
        super().__init__("plot")

    def prepare(self, folder: Path) -> None:
        (folder / "plot.png").write_bytes(self._OLD)

    def first(self, folder: Path) -> list[str]:
        return ["plot", str(self.run_folder), "--to", str(folder / "plot.png")]

    def check_interrupted(self, folder: Path) -> None:
        super().check_interrupted(folder)
        found = (folder / "plot.png").read_bytes()
        require(found in (self._OLD, self._new()), "the plot is neither the old nor the new one")

    def check(self, folder: Path) -> None:
        super().check(folder)
        require((folder / "plot.png").read_bytes() == self._new(), "the plot is another one")

    def _new(self) -> bytes:
        return (self.reference.folder / "plot.png").read_bytes()


class Configuring(Work):
    """A TOML file with the best settings of a study."""

    def __init__(self, searching: Work) -> None:
        super().__init__("tune best")
        self.searching = searching

    def first(self, folder: Path) -> list[str]:
        study = self.searching.reference.folder / "study"
        return ["tune", "best", str(study), "--json", "--to", str(folder / "best.toml")]

    def check_interrupted(self, folder: Path) -> None:
        if (folder / "best.toml").exists():
            self.check_file(folder)

    def check(self, folder: Path) -> None:
        self.check_file(folder)
        left = sorted(path.name for path in folder.iterdir())
        require(left == ["best.toml"], f"leftovers: {left}")

    def check_file(self, folder: Path) -> None:
        ours, theirs = digests(folder)["best.toml"], digests(self.reference.folder)["best.toml"]
        require(ours == theirs, json.dumps((folder / "best.toml").read_text()))
