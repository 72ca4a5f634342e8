"""Settings from studies or from records: whoever has records goes on without a search."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from reproduction.experiments import collecting
from reproduction.experiments.ledger import DIGEST
from reproduction.experiments.sources import Source, Sources
from reproduction.experiments.stacks import Trained
from reproduction.experiments.studies import Searched
from reproduction.report.records import CURVES, LOSSES
from reproduction.report.scores import SCORES
from tests.lab.command_line import zloss
from tests.reproduction.experiments.small import flags, small_corpus
from tests.reproduction.report import made_up
from zloss_lab.records import Record, read_records, write_records
from zloss_lab.training import Experiment

COMMITTED = Path(__file__).parents[3] / "benchmarks" / "paper"
OF_PROVENANCE = ("device", "versions", "commit")


@pytest.fixture(scope="session")
def ptb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small text by the name of that of the committed records, most of which have no digest of its words."""
    folder = small_corpus(tmp_path_factory.mktemp("stand_in"))
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"name": "ptb"}))
    return folder


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Experiment]:
    """What would be trained: here it comes to nothing."""
    noted: list[Experiment] = []

    def diverging(stack: Sequence[Experiment], *more: Any) -> list[Trained]:
        noted.extend(stack)
        return [Trained(experiment, [], {}, {}, diverged=True) for experiment in stack]

    monkeypatch.setattr(collecting, "train_stack", diverging)
    return noted


def found(figure: int, loss: str, scores: Sequence[str], **places: Any) -> Source:
    (source,) = Sources(**places).find(figure, [loss], scores, lambda _: None)
    return source


def without_provenance(records: Path, name: str) -> list[Record]:
    lines = read_records(records / f"{name}.jsonl")
    return [
        {key: value for key, value in line.items() if key not in OF_PROVENANCE} for line in lines
    ]


# ---- the records that come with the sources --------------------------------------------------------------------------


@pytest.mark.parametrize("figure", [2, 3, 4, 5])
def test_only_the_missing_seed_is_trained(
    figure: int, ptb: Path, tmp_path: Path, begun: list[Experiment]
) -> None:
    there = [
        record
        for record in read_records(COMMITTED / f"figure{figure}.jsonl")
        if DIGEST not in record
    ]
    missing = [record for record in there if record["seed"] == 1]
    write_records(
        tmp_path / f"figure{figure}.jsonl", [record for record in there if record["seed"] != 1]
    )
    asked = ("--studies", tmp_path / "none", "--records", tmp_path, "--corpus", ptb, "--seeds", 3)
    assert zloss("paper", f"figure{figure}", *asked) == 1, "it came to nothing"
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
    searched = {loss: Searched.read(studies, loss) for loss in LOSSES[figure]}
    lines = []
    for line in made_up.tuned(figure, seeds=1):
        chosen = searched[line["loss"]].best(line["tuned_for"])
        lines.append(line | {"settings": dict(chosen.settings), DIGEST: chosen.digest, "trials": 7})
    write_records(tmp_path / f"figure{figure}.jsonl", lines)
    places = {"studies": tmp_path / "none", "records": tmp_path, "corpus": corpus}
    changes = {"training.lr": 0.5}
    for loss in LOSSES[figure]:
        recorded, changed = (
            found(figure, loss, SCORES, changes=some, **places) for some in ({}, changes)
        )
        for score in SCORES:
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
        "figure2": ("--losses", "z_loss,softmax", "--scores", ",".join(CURVES)),
        "figure3": ("--a", "0.1,0.5", "--b", "14"),
        "figure4": (),
        "figure5": ("--losses", "softmax", "--scores", "top_1_error"),
    }
    for name, options in commands.items():
        assert (
            zloss("paper", name, *options, "--studies", studies, "--records", first, "--seeds", 1)
            == 0
        )
    of_first = ("--settings-of", first, "--corpus", corpus, "--seeds", 1)
    for name, options in commands.items():
        assert zloss("paper", name, *options, *of_first, "--records", second) == 0
        assert without_provenance(second, name) == without_provenance(first, name)
    for name in ("figure3", "figure4", "figure5"):
        (first / f"{name}.jsonl").unlink()
        assert zloss("paper", name, *commands[name], *of_first, "--records", third) == 0
        assert without_provenance(third, name) == without_provenance(second, name)


def test_the_own_records_of_a_figure_count_first(
    studies: Path, corpus: Path, tmp_path: Path
) -> None:
    losses, asked = (
        ("--losses", "z_loss"),
        ("--studies", studies, "--records", tmp_path, "--seeds", 1),
    )
    assert zloss("paper", "figure2", *losses, *asked, *flags("training.steps=20")) == 0
    assert zloss("paper", "figure4", *asked, *flags("training.steps=40")) == 0
    places = {"studies": tmp_path / "none", "records": tmp_path, "corpus": corpus}
    steps = {
        figure: found(figure, "z_loss", CURVES, **places).best("top_1_error")
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
    asked = (
        "paper",
        "figure2",
        "--scores",
        "mrr",
        "--seeds",
        1,
        "--records",
        records,
        "--losses",
        "softmax,z_loss",
    )
    assert zloss(*asked, "--studies", studies, *flags("training.steps=20")) == 0
    assert f"settings: softmax, z_loss from the studies in {studies}\n" in capsys.readouterr().out
    shutil.copytree(studies / "z_loss", some / "z_loss")
    assert zloss(*asked, "--studies", some, "--corpus", corpus) == 0
    told = f"settings: z_loss from the studies in {some}; softmax from the records in {records}\n"
    assert told in capsys.readouterr().out
    steps = {
        line["loss"]: line["settings"]["training.steps"]
        for line in read_records(records / "figure2.jsonl")
    }
    assert steps == {"softmax": 20, "z_loss": 60}
    anew = (*asked[:6], "--records", tmp_path / "anew", "--losses", "z_loss", "--corpus", corpus)
    assert zloss(*anew, "--studies", some, "--settings-of", records) == 0
    assert f"settings: z_loss from the records in {records}\n" in capsys.readouterr().out, (
        "as it was asked"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("figure2", "--scores", "mrr", "--studies", "NONE"),
            "there are no settings of squared_error for mrr: no study in NONE and no record in reproduction/records. "
            "Name a folder of records that have them by --settings-of FOLDER, or search for them by `zloss paper search "
            "--losses squared_error --studies NONE --corpus FOLDER`",
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
def test_what_is_missing_is_said_in_a_line(
    arguments: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"COMMITTED": COMMITTED, "NO_DROPOUT": COMMITTED / "no_dropout"}
    assert zloss("paper", *(places.get(word, word) for word in arguments)) == 1
    error = capsys.readouterr().err
    assert message in error.replace("\n", " ")
    assert "Traceback" not in error
    assert list(tmp_path.iterdir()) == []
