"""Manifests from somebody else: what does not fit is refused with one error, and no file outside is named."""

import copy
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.corpora.definition import text_of, write
from zloss_lab.corpora import Corpus, CorpusError, prepare
from zloss_lab.corpora.manifest import write_manifest

TEXT = {"train.txt": "the cat sat\nthe dog\n", "valid.txt": "the cow sat\n", "test.txt": "a dog\n"}


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return prepare(write(tmp_path / "pets", TEXT), tmp_path / "out")


def change(corpus: Corpus, **entries: Any) -> None:
    write_manifest(corpus.folder, {**corpus.manifest, **entries})


def test_another_format(corpus: Corpus) -> None:
    change(corpus, format=1)
    with pytest.raises(CorpusError, match="was prepared in format 1, this version reads format 2"):
        Corpus.open(corpus.folder)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1]",
        "{}",
        '{"format": 2}',
        '{"format": 2, "vocabulary": 3}',
        "[" * 10**5,
        '{"format": 2, "a": ' * 10**5,
        '{"format": 2, "splits": ' + "[" * 800 + "]" * 800 + "}",
        "9" * 10**4,
        "\ud800",
    ],
    ids=lambda text: text[:30],
)
def test_a_damaged_manifest(text: str, corpus: Corpus) -> None:
    (corpus.folder / "manifest.json").write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(
        CorpusError, match=r"manifest.json is damaged: .*prepare the corpus again"
    ) as caught:
        Corpus.open(corpus.folder)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({"dtype": "int7"}, "dtype must be 'uint16' or 'uint32', got 'int7'"),
        ({"dtype": "uint32"}, "dtype is 'uint32', expected 'uint16'"),
        ({"boundary": "<end>"}, "the boundary '<end>' is not in the vocabulary"),
        ({"unknown": "<what>"}, "the unknown word '<what>' is not in the vocabulary"),
        ({"splits": {}}, "splits must be train, and maybe valid and test"),
        ({"sources": [{"split": "train"}]}, "missing key: 'name'"),
        ({"options": {"text": {"tokenizer": "klingon"}}}, "there is no tokenizer 'klingon'"),
        (
            {"splits": {"train": {"file": "", "words": 0, "sha256": "", "lines": None}}},
            "words must be a number from 1 on, got 0",
        ),
        ({"colour": "red"}, "unknown key: 'colour'"),
    ],
)
def test_what_does_not_fit_is_named(entries: dict[str, Any], reason: str, corpus: Corpus) -> None:
    change(corpus, **entries)
    with pytest.raises(CorpusError, match=reason):
        Corpus.open(corpus.folder)


@pytest.mark.parametrize("name", ["../valid.tokens", "/etc/passwd", "inner/../valid.tokens", ""])
@pytest.mark.parametrize("entry", ["valid", "vocabulary"])
def test_files_outside_are_not_named(name: str, entry: str, corpus: Corpus) -> None:
    """Even if they have the right content."""
    manifest = copy.deepcopy(corpus.manifest)
    told = manifest["splits"]["valid"] if entry == "valid" else manifest["vocabulary"]
    own = corpus.folder / told["file"]
    (corpus.folder.parent / own.name).write_bytes(own.read_bytes())
    told["file"] = name
    change(corpus, **manifest)
    with pytest.raises(CorpusError, match=r"is damaged: .*it names the file .*, expected '"):
        Corpus.open(corpus.folder)


@pytest.mark.parametrize("name", ["valid.tokens", "vocabulary.tsv"])
def test_links_out_of_the_folder_are_refused(name: str, corpus: Corpus, tmp_path: Path) -> None:
    (corpus.folder / name).rename(tmp_path / "outside")
    (corpus.folder / name).symlink_to(tmp_path / "outside")
    with pytest.raises(CorpusError, match=r"is a link to .*outside, outside of the corpus: copy"):
        Corpus.open(corpus.folder)
    corpus.folder.rename(tmp_path / "moved")
    (tmp_path / "moved" / name).unlink()
    (tmp_path / "outside").rename(tmp_path / "moved" / name)
    (tmp_path / "link").symlink_to(tmp_path / "moved")
    assert Corpus.open(tmp_path / "link").splits == corpus.splits, "the folder may be a link"


@pytest.mark.skipif(os.name == "nt", reason="pipes of POSIX")
@pytest.mark.parametrize(
    "name", ["manifest.json", "vocabulary.tsv", "train.tokens", "valid.tokens"]
)
def test_links_to_themselves_and_pipes(name: str, corpus: Corpus) -> None:
    path = corpus.folder / name
    path.unlink()
    path.symlink_to(name)
    with pytest.raises(CorpusError, match=name):
        Corpus.open(corpus.folder)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CorpusError, match=name):
        Corpus.open(corpus.folder)


def test_no_flipped_bit_goes_unnoticed(corpus: Corpus) -> None:
    path = corpus.folder / "manifest.json"
    before = path.read_bytes()
    for seed in range(300):
        chance = random.Random(seed)
        content = bytearray(before)
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(content)
        with pytest.raises(CorpusError, match=r"manifest.json is damaged|was prepared in format"):
            Corpus.open(corpus.folder)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the keys that lead to each value of a JSON object."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in inner:
        yield (*path, key)
        if isinstance(part, dict | list):
            yield from places(part, (*path, key))


def nonsense(chance: random.Random) -> Any:
    return chance.choice(
        [None, True, -1, 2**70, 0.5, float("nan"), "", "..", "\ud800", "a" * 9999, [], [[]], {}]
    )


def test_no_edit_of_a_manifest_ends_in_anything_but_one_error(corpus: Corpus) -> None:
    """An edit that is accepted leaves the text as it is."""
    words = {split: text_of(corpus, split) for split in corpus.splits}
    paths, refused = list(places(corpus.manifest)), 0
    for seed in range(400):
        chance = random.Random(seed)
        manifest = copy.deepcopy(corpus.manifest)
        *above, key = chance.choice(paths)
        table: Any = manifest
        for one in above:
            table = table[one]
        if chance.random() < 0.2:
            del table[key]
        else:
            table[key] = nonsense(chance)
        write_manifest(corpus.folder, manifest)
        try:
            opened = Corpus.open(corpus.folder)
        except CorpusError:
            refused += 1
        else:
            edit = f"seed {seed}: {above} {key}"
            kept = set(words) if above or key != "splits" else set(opened.splits)
            assert all(text_of(opened, split) == words[split] for split in opened.splits), edit
            assert set(opened.splits) <= kept, edit
    assert refused > 200
