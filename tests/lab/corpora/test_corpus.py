"""Opening a prepared corpus: its content, and the damage that is noticed."""

from pathlib import Path

import numpy as np
import pytest

from tests.lab.corpora.definition import text_of, write
from zloss_lab.corpora import Corpus, CorpusError, prepare

TEXT = {"train.txt": "the cat sat\nthe dog\n", "valid.txt": "the cow sat\n", "test.txt": "a dog\n"}


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return prepare(write(tmp_path / "pets", TEXT), tmp_path / "out")


def test_what_it_gives(corpus: Corpus) -> None:
    assert (corpus.name, corpus.splits) == ("pets", ("train", "valid", "test"))
    assert corpus.vocabulary.words == ["<eos>", "the", "cat", "dog", "sat", "<unk>"]
    assert (corpus.boundary, corpus.padding, corpus.unknown) == (0, 0, 5)
    tokens = corpus.split("valid")
    assert tokens.dtype == np.uint16
    assert tokens.tolist() == [1, 5, 4, 0]
    assert isinstance(tokens, np.memmap)
    assert not tokens.flags.writeable
    assert " ".join(text_of(corpus, "train")) == "the cat sat <eos> the dog <eos>"
    assert corpus.encode("the purple dog") == [1, 5, 3]
    assert corpus.encode("the cat\n\nthe dog\n") == [1, 2, 0, 1, 3]
    assert corpus.encode("the cat <eos>") == [1, 2, 0], "one that was asked for stays"


def test_the_manifest_tells_all(corpus: Corpus) -> None:
    manifest = corpus.manifest
    assert (manifest["format"], manifest["dtype"], manifest["boundary"]) == (2, "uint16", "<eos>")
    assert {
        split: (told["words"], told["lines"]) for split, told in manifest["splits"].items()
    } == {
        "train": (7, 2),
        "valid": (4, 1),
        "test": (3, 1),
    }
    assert [source["name"] for source in manifest["sources"]] == [
        "train.txt",
        "valid.txt",
        "test.txt",
    ]
    assert manifest["vocabulary"]["words"] == 6
    assert manifest["options"]["min_count"] == 1


def test_a_split_that_is_not_there(corpus: Corpus) -> None:
    with pytest.raises(CorpusError, match="has no split 'dev', it has train, valid, test"):
        corpus.split("dev")


def test_no_corpus(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(
            CorpusError, match=r"is no prepared corpus: there is no manifest.json\. Make one"
        ):
            Corpus.open(folder)


def test_tokens_cut_short_or_missing(corpus: Corpus) -> None:
    path = corpus.folder / "valid.tokens"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(
        CorpusError, match=r"valid.tokens has 6 bytes, expected 8\. Remove the folder and prepare"
    ):
        Corpus.open(corpus.folder)
    path.unlink()
    with pytest.raises(CorpusError, match=r"valid.tokens is missing"):
        Corpus.open(corpus.folder)


def test_a_changed_vocabulary_is_noticed_always(corpus: Corpus) -> None:
    path = corpus.folder / "vocabulary.tsv"
    path.write_text(path.read_text().replace("cat", "kat"))
    with pytest.raises(CorpusError, match=r"vocabulary.tsv is not what was written"):
        Corpus.open(corpus.folder)
    path.unlink()
    with pytest.raises(CorpusError, match=r"there is no file .*vocabulary.tsv\. Remove the folder"):
        Corpus.open(corpus.folder)
