"""The real corpora have the published counts. The variable ZLOSS_DATA names a folder with their files."""

import os
from pathlib import Path

import pytest

from zloss_lab.corpora import CATALOGUE, Corpus, CorpusError, prepare
from zloss_lab.corpora.locating import named_files

DATA = os.environ.get("ZLOSS_DATA")
QUICK = ("ptb", "sotu", "fil8", "text8", "wikitext-2")  # in seconds
LONG = ("epd48", "wikitext-103", "lm1b")


def source_of(name: str, downloads: Path) -> Path | None:
    """Return the folder of a corpus, or skip; None for an installed package."""
    if DATA is None and CATALOGUE[name].package is None:
        pytest.skip("ZLOSS_DATA names no folder with corpora")
    source = None if CATALOGUE[name].package else Path(str(DATA))
    try:
        named_files(name, source, downloads, lambda *_: None)
    except CorpusError as error:
        pytest.skip(str(error))
    return source


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in LONG)]
)
def test_counts(name: str, tmp_path: Path) -> None:
    corpus = prepare(name, tmp_path / "out", source=source_of(name, tmp_path), downloads=tmp_path)
    expected = CATALOGUE[name]
    assert (
        expected.expected_words.items()
        <= {split: len(corpus.split(split)) for split in corpus.splits}.items()
    )
    assert len(corpus.vocabulary) == expected.expected_vocabulary
    assert corpus.vocabulary.counts.sum() == len(corpus.split("train"))
    assert max(int(corpus.split(split).max()) for split in corpus.splits) < len(corpus.vocabulary)
    Corpus.open(corpus.folder, verify=True)
