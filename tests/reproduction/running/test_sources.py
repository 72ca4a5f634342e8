"""Settings from studies or from records: records make a search unnecessary."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from reproduction.paper_figures import CURVE_ERRORS, FIGURE_LOSSES
from reproduction.running import collecting
from reproduction.running.sources import SettingsPlaces, SettingsSource
from reproduction.running.stacks import TrainedNetwork
from reproduction.running.studies import SearchedLoss
from reproduction.scores import PAPER_SCORES
from tests.reproduction.report import made_up
from tests.reproduction.running.command_line import run, typed
from tests.reproduction.running.small import flags, lines, small_corpus
from zloss_lab.corpora.manifest import read_manifest, write_manifest
from zloss_lab.records import Record, write_records
from zloss_lab.training import Experiment

COMMITTED = Path(__file__).parents[3] / "reproduction" / "records"
OF_PROVENANCE = ("device", "versions", "commit")


@pytest.fixture(scope="session")
def ptb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small text by the name of that of the committed records, most of which have no digest of its words."""
    folder = small_corpus(tmp_path_factory.mktemp("stand_in"))
    write_manifest(folder, read_manifest(folder) | {"name": "ptb"})
    return folder


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Experiment]:
    """The experiments that would be trained. Here all of them diverge."""
    noted: list[Experiment] = []

    def diverging(stack: Sequence[Experiment], *more: Any) -> list[TrainedNetwork]:
        noted.extend(stack)
        return [TrainedNetwork(experiment, [], {}, {}, diverged=True) for experiment in stack]

    monkeypatch.setattr(collecting, "train_stack", diverging)
    return noted


def found(figure: int, loss: str, scores: Sequence[str], **places: Any) -> SettingsSource:
    (source,) = SettingsPlaces(**places).find(figure, [loss], scores, lambda _: None)
    return source


def without_provenance(records: Path, name: str) -> list[Record]:
    return [
        {key: value for key, value in line.items() if key not in OF_PROVENANCE}
        for line in lines(records, name)
    ]


# ---- the records that come with the sources --------------------------------------------------------------------------


@pytest.mark.parametrize("figure", [2, 3, 4, 5])
def test_only_the_missing_seed_is_trained(
    figure: int, ptb: Path, tmp_path: Path, begun: list[Experiment]
) -> None:
    name = f"figure{figure}"
    there = [line for line in lines(COMMITTED, name) if line["digest"] is None]
    missing = [line for line in there if line["seed"] == 1]
    write_records(tmp_path / f"{name}.jsonl", [line for line in there if line["seed"] != 1])
    asked = ("--studies", tmp_path / "none", "--records", tmp_path, "--corpus", ptb, "--seeds", 3)
    assert run(name, *asked) == 1, "it came to nothing"
    assert {experiment.training.seed for experiment in begun} == {1}
    rates = {(experiment.training.lr, experiment.training.output_lr) for experiment in begun}
    assert rates == {
        (one["settings"]["training.lr"], one["settings"]["training.output_lr"]) for one in missing
    }
    assert {experiment.training.epochs for experiment in begun} == {12}
    assert not list(tmp_path.glob("*.replaced.jsonl")), "what is there stays"


# ---- studies and records say the same --------------------------------------------------------------------------------


@pytest.mark.parametrize("figure", [2, 5])
def test_records_give_the_choice_that_they_were_made_with(
    figure: int, studies: Path, corpus: Path, tmp_path: Path
) -> None:
    """Every loss for every score: the same training to the last setting, so the same digest."""
    searched = {loss: SearchedLoss.read(studies, loss) for loss in FIGURE_LOSSES[figure]}
    made_with: list[Record] = []
    for line in made_up.tuned(figure, seeds=1):
        chosen = searched[line["loss"]].best(line["tuned_for"])
        choice = {"settings": dict(chosen.settings), "digest": chosen.digest, "trials": 7}
        made_with.append(line | choice)
    write_records(tmp_path / f"figure{figure}.jsonl", made_with)
    places = {"studies": tmp_path / "none", "records": tmp_path, "corpus": corpus}
    changes = {"training.lr": 0.5}
    for loss in FIGURE_LOSSES[figure]:
        recorded, changed = (
            found(figure, loss, PAPER_SCORES, changes=some, **places) for some in ({}, changes)
        )
        for score in PAPER_SCORES:
            chosen = searched[loss].best(score)
            assert recorded.best(score) == chosen
            assert recorded.best(score).digest == chosen.digest
            assert recorded.trials(score) == 7
            assert changed.best(score) == chosen.changed(changes)


def test_records_are_made_anew_with_the_settings_of_others(
    studies: Path, corpus: Path, tmp_path: Path
) -> None:
    """Figure by figure; what a folder does not have of a figure itself, it has of figure 2."""
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    commands = {
        "figure2": ("--losses", "z_loss,softmax", "--scores", ",".join(CURVE_ERRORS)),
        "figure3": ("--a", "0.1,0.5", "--b", "14"),
        "figure4": (),
        "figure5": ("--losses", "softmax", "--scores", "top_1_error"),
    }
    for name, options in commands.items():
        of_studies = ("--studies", studies, "--records", first, "--seeds", 1)
        assert run(name, *options, *of_studies) == 0
    of_first = ("--settings-of", first, "--corpus", corpus, "--seeds", 1)
    for name, options in commands.items():
        assert run(name, *options, *of_first, "--records", second) == 0
        assert without_provenance(second, name) == without_provenance(first, name)
    for name in ("figure3", "figure4", "figure5"):
        (first / f"{name}.jsonl").unlink()
        assert run(name, *commands[name], *of_first, "--records", third) == 0
        assert without_provenance(third, name) == without_provenance(second, name)


def test_the_own_records_of_a_figure_count_first(
    folders: list[object], corpus: Path, tmp_path: Path
) -> None:
    asked = [*folders, "--seeds", 1]
    assert run("figure2", "--losses", "z_loss", *asked, *flags("training.steps=20")) == 0
    assert run("figure4", *asked, *flags("training.steps=40")) == 0
    places = {"studies": tmp_path / "none", "records": tmp_path, "corpus": corpus}
    steps = {
        figure: found(figure, "z_loss", CURVE_ERRORS, **places).best("top_1_error")
        for figure in (2, 3, 4, 5)
    }
    assert {figure: chosen.experiment.training.steps for figure, chosen in steps.items()} == {
        2: 20,
        3: 20,
        4: 40,
        5: 20,
    }


# ---- which of them ---------------------------------------------------------------------------------------------------


def test_studies_win_and_the_command_says_where_settings_come_from(
    studies: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records, some = tmp_path / "records", tmp_path / "some"
    one_seed = typed("figure2 --scores mrr --seeds 1")
    asked = [*one_seed, "--records", records, "--losses", "softmax,z_loss"]
    assert run(*asked, "--studies", studies, *flags("training.steps=20")) == 0
    assert f"settings: softmax, z_loss from the studies in {studies}\n" in capsys.readouterr().out
    shutil.copytree(studies / "z_loss", some / "z_loss")
    assert run(*asked, "--studies", some, "--corpus", corpus) == 0
    places = f"z_loss from the studies in {some}; softmax from the records in {records}"
    assert f"settings: {places}\n" in capsys.readouterr().out
    steps = {line["loss"]: line["settings"]["training.steps"] for line in lines(records, "figure2")}
    assert steps == {"softmax": 20, "z_loss": 60}
    anew = ("--records", tmp_path / "anew", "--losses", "z_loss", "--corpus", corpus)
    assert run(*one_seed, *anew, "--studies", some, "--settings-of", records) == 0
    assert f"settings: z_loss from the records in {records}\n" in capsys.readouterr().out, (
        "as it was asked"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("figure2", "--scores", "mrr", "--studies", "NONE"),
            "there are no settings of squared_error for mrr: no study in NONE and no record in reproduction/records. "
            "Name a folder of records that have them by --settings-of FOLDER, or search for them by "
            "`python -m reproduction run search --losses squared_error --studies NONE --corpus FOLDER`",
        ),
        (
            ("figure4", "--settings-of", "NONE"),
            "for top_1_error, top_5_error, top_10_error, top_50_error: no record in",
        ),
        (
            ("figure5", "--settings-of", "NO_DROPOUT", "--losses", "sigmoid"),
            "there are no settings of sigmoid for",
        ),
        (
            ("figure3", "--settings-of", "COMMITTED"),
            "do not say where their text lies: name it by --corpus FOLDER",
        ),
    ],
)
def test_missing_settings_end_with_one_line(
    arguments: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"COMMITTED": COMMITTED, "NO_DROPOUT": COMMITTED / "no_dropout"}
    assert run(*(places.get(word, word) for word in arguments)) == 1
    error = capsys.readouterr().err
    assert message in error.replace("\n", " ")
    assert "Traceback" not in error
    assert list(tmp_path.iterdir()) == []
