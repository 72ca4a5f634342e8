"""The whole way from texts to records, and from records to a report."""

import dataclasses
import math
import tarfile
from pathlib import Path

import pytest

from reproduction.large_text_models import CONSTANT
from reproduction.report.evidence import VARIANTS
from reproduction.running.large_texts.chosen_models import (
    DEFAULT_MODELS,
)
from tests.lab.command_line import zloss
from tests.lab.corpora.catalogue_entries import (
    HELD_OUT_SHARD,
    LM1B,
    TRAINING_SHARD,
    enter,
    offered,
)
from tests.lab.corpora.definition import write
from tests.reproduction.running.command_line import reproduction, run, typed
from tests.reproduction.running.small import MODEL, flags, lines, results, small_text
from zloss_lab.corpora import CATALOGUE, Corpus


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
    asked = typed("table2 --corpus lm1b --budget 0.2 --seeds 2 --records reproduction/records")
    assert run(*asked, *MODEL) == 0
    found = results(tmp_path / "reproduction" / "records")
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
    assert run(*asked, *MODEL) == 0
    hint = "see them with: python -m reproduction report --records reproduction/records"
    assert hint in capsys.readouterr().out
    assert reproduction("report", "--records", "reproduction/records", "--to", "report.html") == 0
    page = (tmp_path / "report.html").read_text()
    assert f"lm1b, {len(corpus.vocabulary):,} classes, 0.2 s of training each" in page
    assert not (tmp_path / "runs").exists(), "runs are needed no longer"


def test_the_hint_at_the_end_works(
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A user can copy it, even if the name of the folder has a space."""
    monkeypatch.chdir(tmp_path)
    asked = typed("table2 --budget 0.1 --models constant --seeds 1 --records 'of mine'")
    assert run(*asked, "--corpus", corpus, *MODEL) == 0
    said = capsys.readouterr().out
    hint = "python -m reproduction report --records 'of mine'"
    assert f"all records are in of mine; see them with: {hint}\n" in said
    assert reproduction(*typed(hint)[3:]) == 0
    assert reproduction("report", "--records", "nowhere") == 1


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
        assert run(name, *one_seed) == 0
    for name, variant in VARIANTS.items():
        changed = ("--set", variant.setting, "--records", f"reproduction/records/{name}")
        assert run("figure2", *one_seed, *changed, "--scores", "mrr") == 0
    assert run("figure3", *one_seed, "--a", "0.1,1") == 0
    table2 = ("table2", "--corpus", corpus, "--seeds", 1, *MODEL)
    compared = ("--models", "hierarchical_softmax_net1,z_loss_net1,z_loss_net2")
    assert run(*table2, "--budget", 0.1) == 0
    converged = flags("training.validate_every=10", "training.stop_after=1")
    assert run(*table2, "--converged", *compared, *converged) == 0
    capsys.readouterr()
    assert reproduction("report", "--to", "report.html", "--figures", "figures") == 0
    assert len(list((tmp_path / "figures").iterdir())) == 6
    page = (tmp_path / "report.html").read_text()
    for name in ("figure2", "figure3", "figure4", "figure5", "table2"):
        assert f"python -m reproduction run {name}" not in page, "it is run"
    assert "3 trials" in page
    for line in lines(tmp_path / "reproduction" / "records", "figure2"):
        assert math.isfinite(line["test"]["scores"]["mean_rank"])


def test_table_1_is_timed_by_other_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("table1", "--device", "cpu") == 0
    assert capsys.readouterr().out.splitlines() == [
        "zloss bench model --networks net1 --device cpu --output benchmarks/records/model.cpu.jsonl",
        "zloss bench output --device cpu --output benchmarks/records/output.cpu.jsonl",
    ]
