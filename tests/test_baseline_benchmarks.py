"""The programs that measure baselines, on tiny data: their records, and the tables that are made of them."""

import random
import sys
import tarfile
from pathlib import Path

import pytest
import torch

from benchmarks import baseline_tables, baselines, mean_rank, ngrams
from benchmarks.baseline_records import BaselineRecord, MeanRankRecord, NgramRecord
from tests.lab.pets import pets_corpus
from zloss_lab.records import read_records_as


def run(program: object, monkeypatch: pytest.MonkeyPatch, *options: object) -> None:
    monkeypatch.setattr(sys, "argv", ["program", *map(str, options)])
    program.main()  # type: ignore[attr-defined]


@pytest.fixture
def one_thread() -> object:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def archive_of(folder: Path, files: dict[str, str]) -> Path:
    (folder / "data").mkdir()
    for name, content in files.items():
        (folder / "data" / name).write_text(content)
    with tarfile.open(folder / "data.tar.xz", "w:xz") as archive:
        archive.add(folder / "data", "data")
    return folder / "data.tar.xz"


@pytest.mark.usefixtures("one_thread")
def test_records_of_shops_and_papers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(0)
    lines = [" ".join(str(n % 7) for n in range(k, k + 4)) for k in range(30)]
    clicks = {
        "train_sessions.txt": "\n".join(lines),
        "test_examples.txt": "1 2\t3\n4\t5\n5\tunknown\n",
    }
    words = [chance.sample(range(12), k=4) for _ in range(60)]
    tags = [sorted(chance.sample(range(60), k=20)) for _ in range(6)]
    papers = {
        "mult.dat": "\n".join(f"4 {' '.join(f'{word}:1' for word in one)}" for one in words),
        "tag-item.dat": "\n".join(f"20 {' '.join(map(str, one))}" for one in tags),
    }
    output = tmp_path / "baselines.cpu.jsonl"
    for task, files in (("yoochoose", clicks), ("citeulike-t", papers), ("diginetica", clicks)):
        (tmp_path / task).mkdir()
        place = archive_of(tmp_path / task, files)
        monkeypatch.setitem(baselines.HEADS, task, ("factored", "sampled"))
        seeds = 0 if task == "diginetica" else 2
        run(baselines, monkeypatch, task, place, "--seeds", seeds, "--output", output)
    records = read_records_as(BaselineRecord, output)
    assert len(records) == 3 * 3 + 2 * 2 * 2
    shop = [one for one in records if one.task == "yoochoose"]
    assert {one.examples for one in shop} == {3}
    # One of three examples has an unknown item, which counts as not found.
    assert all(one.scores["recall@100"] == pytest.approx(2 / 3) for one in shop)
    times = {(one.method, one.seed): one.train_s for one in shop if one.is_network}
    assert times.keys() == {(head, seed) for head in ("factored", "sampled") for seed in (0, 1)}
    monkeypatch.setattr(baseline_tables, "RECORDS", tmp_path)
    assert "**66.7 ± 0.0**" in baseline_tables.baselines_items()
    assert "No network was measured." in baseline_tables.baselines_items()
    assert "over 2 seeds" in baseline_tables.baselines_tags()


def test_records_of_language_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = pets_corpus(tmp_path)
    monkeypatch.setattr(mean_rank, "BETAS", (0.0, 0.5))
    output = tmp_path / "mean_rank.cpu.jsonl"
    run(mean_rank, monkeypatch, corpus, "--epochs", 1, "--output", output)
    records = read_records_as(MeanRankRecord, output)
    assert [(one.model, one.beta) for one in records] == [
        ("most-frequent", None),
        ("trigram", None),
        ("sampled", 0.0),
        ("z_loss", 0.0),
        ("z_loss", 0.5),
    ]
    for record in records:
        weighted = sum(band.share * band.mean_rank for band in record.bands)
        assert weighted == pytest.approx(record.mean_rank)  # sums of shares in float64
    run(ngrams, monkeypatch, corpus, "--orders", 2, "--output", tmp_path / "ngrams.cpu.jsonl")
    counted = read_records_as(NgramRecord, tmp_path / "ngrams.cpu.jsonl")
    assert [one.order for one in counted] == [2]
    assert counted[0].scores.top_1_error < records[0].top_errors["1"]
    monkeypatch.setattr(baseline_tables, "RECORDS", tmp_path)
    assert "| Z-loss, weights f^-0.5 |" in baseline_tables.mean_ranks()
    assert ", 2-grams |" in baseline_tables.ngrams()
