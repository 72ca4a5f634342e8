"""Table 2 by the command line: models on a large text, for a fixed time, for some epochs or until they converge."""

import dataclasses
import json
import math
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.multiprocessing.spawn import spawn

from reproduction.experiments import large_texts
from reproduction.experiments.models import (
    DEFAULT_MODELS,
    Budget,
    chosen_model,
    preset_of,
    with_rate,
)
from reproduction.report.evidence import VARIANTS, Evidence
from reproduction.report.final_scores import final_tables
from reproduction.report.records import CONSTANT, MODELS, PaperRecords, ScoredModel
from tests.lab.command_line import zloss
from tests.lab.corpora.definition import write
from tests.lab.corpora.test_catalogue import HELD_OUT_SHARD, LM1B, TRAINING_SHARD, enter, offered
from tests.reproduction.experiments.small import MODEL, flags, small_text
from zloss_lab import evaluation
from zloss_lab.corpora import CATALOGUE, Corpus, prepare
from zloss_lab.models import TrainedModel
from zloss_lab.records import read_records
from zloss_lab.runs import Run
from zloss_lab.training import DivergedError, Experiment, fit

NETWORKS = [model for model in MODELS if model != CONSTANT]


@pytest.fixture
def table2(corpus: Path, tmp_path: Path) -> list[object]:
    """A command for which a fifth of a second of training is enough."""
    folders = ("--records", tmp_path / "paper", "--runs", tmp_path / "runs")
    return ["paper", "table2", "--corpus", corpus, *folders, *MODEL]


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> list[Experiment]:
    """What is trained, in order."""
    experiments: list[Experiment] = []

    def noted(experiment: Experiment, *more: Any, **options: Any) -> Run:
        experiments.append(experiment)
        return fit(experiment, *more, **options)

    monkeypatch.setattr(large_texts, "fit", noted)
    return experiments


def results(folder: Path) -> dict[str, list[ScoredModel]]:
    found: dict[str, list[ScoredModel]] = {}
    for result in PaperRecords.read(folder / "paper").table2:
        found.setdefault(result.model, []).append(result)
    return found


# ---- models as data --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", NETWORKS)
def test_models_are_those_of_their_names(model: str, corpus: Path) -> None:
    chosen = chosen_model(model, Corpus.open(corpus), Budget(60.0), {"training.seed": 3})
    heads = {"softmax": "dense", "H-softmax": "hierarchical", "Z-loss": "factored"}
    kind, network = model.split()[0], model.split()[-1]
    head = chosen.experiment.network.head
    assert head.head == heads.get(kind, kind)
    assert head.loss == ("z_loss" if kind == "Z-loss" else "softmax")
    assert preset_of(model) == network
    assert chosen.experiment.network.hidden[-1] == {"net1": 512, "net2": 1024}[network]
    training = chosen.experiment.training
    tuned_for = re.search(r"top-(\d+)", model)
    assert training.score == f"top_{tuned_for[1] if tuned_for else 1}_error"
    assert (training.schedule, training.seconds, training.mode) == ("linear", 60.0, "sentence")
    assert chosen.settings["training.seconds"] == 60.0
    assert "training.seed" not in chosen.settings


def test_a_text_without_sentences_runs(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(small_text())
    corpus = prepare(tmp_path / "text.txt", tmp_path / "it", lines=False)
    assert (
        chosen_model("Z-loss net1", corpus, Budget(None), {}).experiment.training.mode == "running"
    )


def test_rates_keep_their_ratio(corpus: Path) -> None:
    chosen = chosen_model("Z-loss net1", Corpus.open(corpus), Budget(None), {"training.lr": 0.2})
    other = with_rate(chosen, 0.1)
    assert other.experiment.training.lr == other.settings["training.lr"] == 0.1
    assert other.settings["training.output_lr"] == chosen.settings["training.output_lr"] / 2
    assert chosen.experiment.training.schedule == "plateau"


# ---- from a text to records ------------------------------------------------------------------------------------------


def test_one_billion_word_in_miniature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From its archive to the report: all models, in the layout and with the words of its own."""
    files = {TRAINING_SHARD.format(shard): small_text(6, seed=shard) for shard in range(1, 100)}
    files |= {
        HELD_OUT_SHARD.format(shard): small_text(20, seed=1000 + shard) for shard in range(50)
    }
    archive = tmp_path / "own" / f"{LM1B}.tar.gz"
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(write(tmp_path / "in", files) / LM1B, LM1B)
    enter(
        monkeypatch, dataclasses.replace(CATALOGUE["lm1b"], downloads=(offered(archive),)), "lm1b"
    )
    monkeypatch.chdir(tmp_path)
    assert (
        zloss("data", "prepare", "lm1b", "--to", "lm1b", "--from", "own", "--no-check-counts") == 0
    )
    asked = (
        "paper",
        "table2",
        "--corpus",
        "lm1b",
        "--budget",
        0.2,
        "--seeds",
        2,
        "--records",
        "reproduction/records",
    )
    assert zloss(*asked, *MODEL) == 0
    found = results(tmp_path / "benchmarks")
    assert sorted(found) == sorted(DEFAULT_MODELS)
    corpus = Corpus.open("lm1b")
    assert {"<S>", "</S>", "<UNK>"} <= set(corpus.vocabulary.words)
    for model, seeds in found.items():
        assert {(one.corpus, one.classes) for one in seeds} == {("lm1b", len(corpus.vocabulary))}
        if model != CONSTANT:
            assert [one.seed for one in seeds] == [0, 1]
            assert all(0.2 <= (one.train_s or 0) < 2 and (one.epochs or 0) > 0 for one in seeds)
            assert {(one.network, one.budget, one.budget_s) for one in seeds} == {
                (model[-4:], "fixed", 0.2)
            }
    capsys.readouterr()
    assert zloss(*asked, *MODEL) == 0
    assert "see them with: zloss report --records benchmarks" in capsys.readouterr().out
    assert zloss("report", "--records", "benchmarks", "--to", "report.html") == 0
    page = (tmp_path / "report.html").read_text()
    assert f"lm1b, {len(corpus.vocabulary):,} classes, 0.2 s of training each" in page
    assert not (tmp_path / "runs").exists(), "runs are needed no longer"


def test_a_report_wants_records_in_a_folder_of_its_name(
    table2: list[object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is said at the end must work when it is typed."""
    monkeypatch.chdir(tmp_path)
    asked = [*table2, "--budget", 0.1, "--models", "constant", "--seeds", 1]
    assert zloss(*asked, "--records", "mine") == 0
    said = capsys.readouterr().out
    assert (
        "all records are in mine; `zloss report` shows those in a folder of the name paper" in said
    )
    assert zloss("report", "--records", ".") == 1


def test_what_is_there_is_not_trained_again(
    table2: list[object], tmp_path: Path, fitted: list[Experiment]
) -> None:
    asked = [*table2, "--budget", 0.1, "--models", "constant,Z-loss net1"]
    assert zloss(*asked, "--seeds", 1) == 0
    assert [experiment.training.seed for experiment in fitted] == [0]
    before = read_records(tmp_path / "paper" / "table2.jsonl")
    assert [line["model"] for line in before] == ["constant", "Z-loss net1"]
    fitted.clear()
    assert zloss(*asked, "--seeds", 1) == 0
    assert (fitted, read_records(tmp_path / "paper" / "table2.jsonl")) == ([], before)
    assert zloss(*asked, "--seeds", 2) == 0
    assert [experiment.training.seed for experiment in fitted] == [1]
    assert zloss(*asked[:-1], "H-softmax net1", "--seeds", 1) == 0
    assert {model: len(seeds) for model, seeds in results(tmp_path).items()} == {
        "constant": 1, "Z-loss net1": 2, "H-softmax net1": 1,
    }  # fmt: skip


def test_until_it_converges(table2: list[object], tmp_path: Path) -> None:
    settings = flags(
        "training.validate_every=20", "training.stop_after=2", "training.lr_factor=0.1"
    )
    asked = [*table2, "--seeds", 1, "--models", "Z-loss net1", "--keep-runs", *settings]
    assert zloss(*asked, "--converged") == 0
    assert zloss(*asked, "--budget", 0.1) == 0
    one, other = results(tmp_path)["Z-loss net1"]
    assert (one.budget, one.budget_s, other.budget, other.budget_s) == (
        "converged",
        None,
        "fixed",
        0.1,
    )
    runs = [Run.open(path.parent) for path in (tmp_path / "runs").rglob("config.json")]
    run = next(run for run in runs if run.config["training"]["schedule"] == "plateau")
    assert run.load().state["schedule"]["lowered"] == 2
    assert run.metrics()[-1]["epoch"] == one.epochs
    assert run.load().state["seconds"] == one.train_s
    scores = TrainedModel.load(run.folder).evaluate("test")["this run"]
    assert one.test == pytest.approx(
        {name: scores.score(name) for name in one.test}, rel=1e-5
    )  # six digits are kept


def test_for_some_epochs(table2: list[object], tmp_path: Path, fitted: list[Experiment]) -> None:
    """Few and many stand side by side: that is how to see whether more would help."""
    asked = [*table2, "--seeds", 1, "--models", "Z-loss net1"]
    assert zloss(*asked, "--epochs", 1) == 0
    assert zloss(*asked, "--epochs", 2, "--shared-device") == 0
    assert zloss(*asked, "--epochs", 1) == 0, "it is there"
    assert [experiment.training.schedule for experiment in fitted] == ["linear", "linear"]
    one, two = results(tmp_path)["Z-loss net1"]
    assert [(one.budget, one.epochs, one.alone), (two.budget, two.epochs, two.alone)] == [
        ("1 epoch", 1, True), ("2 epochs", 2, False),
    ]  # fmt: skip
    titles = [title for title, _ in final_tables(Evidence.read(tmp_path))]
    assert [title.split(", ", 2)[2] for title in titles] == [
        "1 epoch of training each",
        "2 epochs of training each",
    ]


def test_seeds_may_be_shared_out(
    table2: list[object],
    tmp_path: Path,
    fitted: list[Experiment],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Among commands that run at once, on one device too: then their times do not count."""
    settings = flags(
        "training.validate_every=20", "training.stop_after=1", "training.lr_factor=0.1"
    )
    asked = [*table2, "--models", "Z-loss net1", "--seeds", 1, *settings]
    assert zloss(*asked, "--converged", "--first-seed", 1, "--shared-device") == 0
    assert zloss(*asked, "--converged") == 0
    assert [experiment.training.seed for experiment in fitted] == [1, 0]
    found = {one.seed: one.alone for one in results(tmp_path)["Z-loss net1"]}
    assert found == {0: True, 1: False}
    capsys.readouterr()
    assert zloss(*asked, "--budget", 0.1, "--shared-device") == 1
    assert "depends on all that the device does" in capsys.readouterr().err


def test_an_interrupted_training_goes_on(
    table2: list[object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = [*table2, "--budget", 0.3, "--seeds", 1, "--models", "Z-loss net1", "--keep-runs"]
    asked += flags("training.checkpoint_every=5")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TrainedModel, "load", killed)  # when it has been trained
        assert zloss(*asked) == 130
    assert capsys.readouterr().err == "\nstopped; the same command goes on with what is missing\n"
    (config,) = (tmp_path / "runs").rglob("config.json")
    step = Run.open(config.parent).load().step
    assert zloss(*asked) == 0
    assert Run.open(config.parent).load().step == step
    assert len(results(tmp_path)["Z-loss net1"]) == 1


@pytest.mark.parametrize(
    ("begun", "resumed"), [(["--shared-device"], []), ([], ["--shared-device"])]
)
def test_the_time_of_a_training_that_was_alone_for_a_while_does_not_count(
    begun: list[str],
    resumed: list[str],
    table2: list[object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = [*table2, "--epochs", 1, "--seeds", 1, "--models", "Z-loss net1"]

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TrainedModel, "load", killed)
        assert zloss(*asked, *begun) == 130
    assert zloss(*asked, *resumed) == 0
    assert [one.alone for one in results(tmp_path)["Z-loss net1"]] == [False]
    assert not list((tmp_path / "runs").iterdir()), "nothing is left"


# ---- learning rates --------------------------------------------------------------------------------------------------


def test_the_rate_that_validates_best_is_taken(
    table2: list[object], tmp_path: Path, fitted: list[Experiment], opened: list[str]
) -> None:
    """Before the test split is opened; and what was taken stays."""
    asked = [
        *table2,
        "--budget",
        0.5,
        "--rates",
        "1e-9,0.3,1e30",
        "--try-for",
        0.2,
        "--models",
        "Z-loss net1",
    ]
    asked += flags("training.score=mean_rank")  # in which some steps make a difference
    assert zloss(*asked, "--seeds", 1) == 0
    assert [experiment.training.lr for experiment in fitted] == [1e-9, 0.3, 1e30, 0.3]
    assert [experiment.training.seconds for experiment in fitted] == [0.2, 0.2, 0.2, 0.5]
    assert fitted[0].training.output_lr == pytest.approx(1e-9 * 60)
    assert opened[-1] == "test"
    assert "test" not in opened[: 2 * len(fitted)]
    assert opened.count("test") == 1
    assert results(tmp_path)["Z-loss net1"][0].settings["training.lr"] == 0.3
    assert read_records(tmp_path / "paper" / "table2.jsonl")[0]["rates_tried"] == [1e-9, 0.3, 1e30]
    assert not (tmp_path / "runs").exists(), "none is needed any longer"
    fitted.clear()
    assert zloss(*asked, "--seeds", 2) == 0
    assert [(experiment.training.lr, experiment.training.seed) for experiment in fitted] == [
        (0.3, 1)
    ]


@pytest.mark.parametrize(("digest", "tried"), [("of another preset", 2), (None, 0)])
def test_the_rate_of_a_stale_record_is_not_taken(
    digest: str | None, tried: int, table2: list[object], tmp_path: Path, fitted: list[Experiment]
) -> None:
    """Its settings are the same, but a preset has changed since; early records have no digest, and count."""
    asked = [
        *table2,
        "--budget",
        0.1,
        "--rates",
        "0.1,0.2",
        "--try-for",
        0.1,
        "--models",
        "Z-loss net1",
    ]
    assert zloss(*asked, "--seeds", 1) == 0
    path = tmp_path / "paper" / "table2.jsonl"
    path.write_text(json.dumps(read_records(path)[0] | {"digest": digest}) + "\n")
    fitted.clear()
    assert zloss(*asked, "--seeds", 2) == 0
    assert [experiment.training.seed for experiment in fitted] == [0] * tried + (
        [0, 1] if tried else [1]
    )


def test_records_name_the_commit_that_was_trained(
    table2: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZLOSS_COMMIT", "before")

    def changing(*asked: Any, **options: Any) -> Run:
        monkeypatch.setenv("ZLOSS_COMMIT", "after")
        return fit(*asked, **options)

    monkeypatch.setattr(large_texts, "fit", changing)
    assert zloss(*table2, "--budget", 0.1, "--seeds", 1, "--models", "Z-loss net1") == 0
    assert [line["commit"] for line in read_records(tmp_path / "paper" / "table2.jsonl")] == [
        "before"
    ]


def test_a_model_that_diverges_leaves_the_others_alone(
    table2: list[object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*table2, "--budget", 0.2, "--seeds", 1, "--models", "H-softmax net1,Z-loss net1"]
    assert zloss(*asked, *flags("training.lr=1e30")) == 1
    error = capsys.readouterr().err
    assert "no record: table2, text, H-softmax net1, seed 0: step" in error
    assert "no record: table2, text, Z-loss net1, seed 0: step" in error
    assert zloss(*asked, "--rates", "1e30,1e35") == 1
    assert "Z-loss net1: it diverges with all learning rates" in capsys.readouterr().err
    assert not (tmp_path / "paper" / "table2.jsonl").exists()


def test_a_seed_that_diverges_leaves_the_others_alone(
    table2: list[object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As with --at-once."""

    def unlucky(experiment: Experiment, *more: Any, **options: Any) -> Run:
        if experiment.training.seed == 0:
            raise DivergedError("step 7: the loss is nan\nand more")
        return fit(experiment, *more, **options)

    monkeypatch.setattr(large_texts, "fit", unlucky)
    assert zloss(*table2, "--budget", 0.1, "--seeds", 2, "--models", "Z-loss net1") == 1
    assert (
        "no record: table2, text, Z-loss net1, seed 0: step 7: the loss is nan\n"
        in capsys.readouterr().err
    )
    assert [one.seed for one in results(tmp_path)["Z-loss net1"]] == [1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "say for how long to train, by one of --budget SECONDS, --epochs N or --converged"),
        (
            ("--budget", "1", "--converged"),
            "say for how long to train, by one of --budget SECONDS, --epochs N or --converged",
        ),
        (
            ("--epochs", "1", "--converged"),
            "say for how long to train, by one of --budget SECONDS, --epochs N or",
        ),
        (
            ("--epochs", "2", "--set", "training.epochs=3"),
            "training.epochs is not to be set here: use --budget",
        ),
        (("--budget", "0"), "seconds must be a finite number > 0, got 0.0"),
        (
            ("--budget", "1", "--models", "Z-loss net3"),
            "unknown model: 'Z-loss net3'; did you mean 'Z-loss net",
        ),
        (("--converged", "--rates", "0.1,1"), "--rates without --budget needs --try-for SECONDS"),
        (
            ("--budget", "1", "--rates", "0.1,high"),
            "--rates must be numbers above 0, separated by commas",
        ),
        (
            ("--budget", "1", "--rates", "0.1,nan"),
            "--rates must be numbers above 0, separated by commas",
        ),
        (
            ("--budget", "1", "--rates", "inf"),
            "--rates must be numbers above 0, separated by commas",
        ),
        (
            ("--budget", "1", "--rates", "1", "--try-for", "0"),
            "--try-for must be a finite number of seconds above 0",
        ),
        (
            ("--budget", "1", "--rates", "1", "--try-for", "-1"),
            "--try-for must be a finite number of seconds above 0",
        ),
        (
            ("--budget", "1", "--set", "training.steps=4"),
            "training.steps is not to be set here: use --budget",
        ),
        (
            ("--budget", "1", "--set", "training.seconds=4"),
            "use --budget SECONDS, --epochs N or --converged",
        ),
        (
            ("--budget", "1", "--set", "training={lr=2.0}"),
            "training is not to be set here: use --budget SECONDS",
        ),
        (
            ("--converged", "--set", "training.schedule=linear"),
            "use --budget SECONDS, --epochs N or --converged",
        ),
        (("--budget", "1", "--set", "training.lrr=1"), "did you mean 'lr'"),
        (("--budget", "1", "--set", "lr=1"), "unknown key: 'lr'; did you mean 'training.lr'?"),
        (("--budget", "1", "--set", "corpus=x"), "name the corpus by --corpus FOLDER"),
        (("--budget", "1", "--corpus", "NOWHERE"), "NOWHERE is no prepared corpus"),
    ],
)
def test_mistakes_end_with_a_line(
    arguments: tuple[str, ...],
    message: str,
    table2: list[object],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert zloss(*table2, *arguments) == 1
    error = capsys.readouterr().err
    assert message in error.replace("\n", " ")
    assert "Traceback" not in error
    assert list(tmp_path.iterdir()) == []


# ---- all of it -------------------------------------------------------------------------------------------------------


def test_all_records_make_a_report(
    studies: Path,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    one_seed = ("--studies", studies, "--seeds", 1, *flags("training.steps=20"))
    for name in ("figure2", "figure5", "figure4"):
        assert zloss("paper", name, *one_seed) == 0
    for name, variant in VARIANTS.items():
        changed = (
            "--set",
            variant.setting,
            "--records",
            f"reproduction/records/{name}",
            "--scores",
            "mrr",
        )
        assert zloss("paper", "figure2", *one_seed, *changed) == 0
    assert zloss("paper", "figure3", *one_seed, "--a", "0.1,1") == 0
    table2 = ("paper", "table2", "--corpus", corpus, "--seeds", 1, *MODEL)
    compared = ("--models", "H-softmax net1,Z-loss net1,Z-loss net2")
    assert zloss(*table2, "--budget", 0.1) == 0
    converged = flags("training.validate_every=10", "training.stop_after=1")
    assert zloss(*table2, "--converged", *compared, *converged) == 0
    capsys.readouterr()
    assert zloss("report", "--to", "report.html", "--figures", "figures") == 0
    assert len(list((tmp_path / "figures").iterdir())) == 6
    page = (tmp_path / "report.html").read_text()
    for name in ("figure2", "figure3", "figure4", "figure5", "table2"):
        assert f"zloss paper {name}" not in page, "it is run"
    assert "3 trials" in page
    for line in (tmp_path / "benchmarks" / "paper" / "figure2.jsonl").read_text().splitlines():
        assert math.isfinite(json.loads(line)["test"]["mean_rank"])


def test_table_1_is_timed_by_other_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert zloss("paper", "table1", "--device", "cpu") == 0
    assert capsys.readouterr().out.splitlines() == [
        "zloss bench model --networks net1 --device cpu --output benchmarks/records/model.cpu.jsonl",
        "zloss bench output --device cpu --output benchmarks/records/output.cpu.jsonl",
    ]


def test_records_of_another_text_of_the_name_are_no_match(
    table2: list[object], corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*table2, "--seeds", 1, "--models", "constant", "--budget", 0.1]
    assert zloss(*asked) == 0
    path = tmp_path / "paper" / "table2.jsonl"
    path.write_text(json.dumps(read_records(path)[0] | {"classes": 7}) + "\n")
    capsys.readouterr()
    assert zloss(*asked) == 1
    assert "with 7 classes, and" in capsys.readouterr().err


def test_another_number_of_test_examples_is_another_record(
    table2: list[object], tmp_path: Path
) -> None:
    asked = [*table2, "--seeds", 1, "--models", "Z-loss net1", "--budget", 0.1]
    for limit in (30, 50):
        assert zloss(*asked, "--limit", limit) == 0
        (line,) = read_records(tmp_path / "paper" / "table2.jsonl")
        assert line["test"]["examples"] == limit
    stamp = (tmp_path / "paper" / "table2.jsonl").stat().st_mtime_ns
    assert zloss(*asked, "--limit", 50) == 0
    assert (tmp_path / "paper" / "table2.jsonl").stat().st_mtime_ns == stamp


@pytest.mark.parametrize("model", ["Z-loss net1", "constant"])
def test_a_record_of_few_test_examples_is_not_one_of_all(
    model: str, table2: list[object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*table2, "--seeds", 1, "--models", model, "--budget", 0.1]
    path = tmp_path / "paper" / "table2.jsonl"
    assert zloss(*asked, "--limit", 30) == 0
    capsys.readouterr()
    assert zloss(*asked) == 0
    (line,) = read_records(path)
    assert line["test"]["examples"] == line["test"]["population"] > 30
    said = capsys.readouterr().out
    assert (
        f"{model}, the record of seed 0 is of 30 test examples, and {line['test']['examples']} are wanted"
        in said
    )
    assert [
        line["test"]["examples"]
        for line in read_records(tmp_path / "paper" / "table2.replaced.jsonl")
    ] == [30]
    stamp = path.stat().st_mtime_ns
    assert zloss(*asked) == 0
    assert path.stat().st_mtime_ns == stamp


def test_all_models_are_tested_on_as_many_examples(
    table2: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU too, where a network with probabilities takes twice as long, and frequencies no time at all."""
    monkeypatch.setattr(evaluation, "_LEAST_SAMPLE", 10)
    monkeypatch.setattr(evaluation, "_CPU_OPERATIONS", 4 * 1024 * 152 * 30)
    models = "constant,Z-loss net1,H-softmax net1,Z-loss net2"
    assert zloss(*table2, "--seeds", 1, "--models", models, "--budget", 0.1) == 0
    (examples,) = {
        line["test"]["examples"] for line in read_records(tmp_path / "paper" / "table2.jsonl")
    }
    assert examples < 60


# ---- what makes no difference ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        ["training.log_every=9"],
        ["training.keep=3", "training.graph=false"],
        ["training.lr=1.0"],
        ["x"],
    ],
)
@pytest.mark.parametrize("is_early", [False, True])
def test_a_setting_that_changes_nothing_makes_no_other_record(
    settings: list[str],
    is_early: bool,
    table2: list[object],
    tmp_path: Path,
    fitted: list[Experiment],
) -> None:
    asked = [*table2, "--seeds", 1, "--models", "Z-loss net1", "--budget", 0.1]
    assert zloss(*asked) == 0
    path = tmp_path / "paper" / "table2.jsonl"
    if is_early:
        (line,) = read_records(path)
        path.write_text(
            json.dumps(
                line | {"digest": None, "settings": line["settings"] | {"training.log_every": 5}}
            )
        )
    fitted.clear()
    changes = (
        ["training.patience=0", "network.dropout=0.0"] if settings == ["x"] else settings
    )  # as they are anyway
    assert zloss(*asked, *flags(*changes)) == 0
    assert fitted == []
    assert zloss(*asked, *flags("training.patience=1")) == 0
    assert len(fitted) == 1


def test_what_gives_way_is_told_first_and_kept(
    table2: list[object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*table2, "--models", "Z-loss net1", "--budget", 0.1, "--try-for", 0.1]
    assert zloss(*asked, "--seeds", 2, "--rates", "0.1") == 0
    assert "give way" not in capsys.readouterr().out
    before = read_records(tmp_path / "paper" / "table2.jsonl")
    assert zloss(*asked, "--seeds", 1, "--rates", "0.2") == 0
    said = capsys.readouterr().out
    assert said.index(
        "Z-loss net1, its records with other settings than are wanted now"
    ) < said.index("trying lr 0.2")
    assert read_records(tmp_path / "paper" / "table2.replaced.jsonl") == before
    assert [one.settings["training.lr"] for one in results(tmp_path)["Z-loss net1"]] == [0.2]


# ---- several processes -----------------------------------------------------------------------------------------------


def _seed_in_a_process(rank: int, arguments: list[object]) -> None:
    torch.set_num_threads(1)
    code = zloss(*arguments, "--first-seed", rank)
    assert code == 0, f"exit code {code}"


def test_two_commands_try_rates_at_once(table2: list[object], tmp_path: Path) -> None:
    settings = flags(
        "training.validate_every=20", "training.stop_after=1", "training.lr_factor=0.1"
    )
    asked = [
        *table2,
        "--models",
        "Z-loss net1",
        "--seeds",
        1,
        *settings,
        "--converged",
        "--shared-device",
    ]
    spawn(
        _seed_in_a_process, args=([*asked, "--rates", "0.3,0.1,0.2", "--try-for", 0.4],), nprocs=2
    )
    found = results(tmp_path)["Z-loss net1"]
    assert sorted(one.seed for one in found) == [0, 1]
    assert len({one.settings["training.lr"] for one in found}) == 1
    assert not list((tmp_path / "paper").glob("*.replaced.jsonl"))
    assert not list((tmp_path / "runs").glob("*")), "none is needed any longer"


def test_rates_that_were_not_tried_are_not_told(
    table2: list[object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second seed takes the rate of the first."""
    asked = [*table2, "--models", "Z-loss net1", "--budget", 0.1, "--try-for", 0.1]
    assert zloss(*asked, "--seeds", 1, "--rates", "0.1,0.2") == 0
    (line,) = read_records(tmp_path / "paper" / "table2.jsonl")
    assert zloss(*asked, "--seeds", 2, "--rates", f"0.05,{line['settings']['training.lr']}") == 0
    assert "no others are tried" in capsys.readouterr().out
    assert [line["rates_tried"] for line in read_records(tmp_path / "paper" / "table2.jsonl")] == [
        [0.1, 0.2]
    ] * 2


def test_a_digest_is_of_all_that_decides(corpus: Path) -> None:
    def digest(changes: dict[str, Any], seed: int = 0) -> str:
        chosen = chosen_model("Z-loss net1", Corpus.open(corpus), Budget(60.0), changes)
        return dataclasses.replace(chosen, experiment=chosen.seeded(seed)).digest

    same = digest({})
    assert (
        digest({}, seed=7) == digest({"training.log_every": 7}) == digest({"device": "cpu"}) == same
    )
    assert len({digest({"network.context": 3}), digest({"training.patience": 3}), same}) == 3
