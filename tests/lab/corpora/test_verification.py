"""Tokens that are not what was written: they are found out once for every state of their file."""

import hashlib
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.lab.corpora.definition import write
from zloss_lab.corpora import Corpus, CorpusError, prepare, verification
from zloss_lab.corpora.manifest import write_manifest

TEXT = {
    "train.txt": "the cat sat\nthe dog\n" * 50,
    "valid.txt": "the cow sat\n",
    "test.txt": "a dog\n",
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file that remembers, in an empty cache. The files of these tests are new, and count as old."""
    monkeypatch.setenv("ZLOSS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(verification, "_SAME_TIME_NS", -(10**9))
    return tmp_path / "cache" / "verified.json"


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return prepare(write(tmp_path / "pets", TEXT), tmp_path / "out")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of the names of all files that are verified from now on."""
    names: list[str] = []
    verify = verification.TokenFile.verify

    def noted(file: Any, report: Any) -> None:
        names.append(file.path.name)
        verify(file, report)

    monkeypatch.setattr(verification.TokenFile, "verify", noted)
    return names


def flip(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


@pytest.mark.parametrize("verify", [False, True])
def test_no_flipped_bit_goes_unnoticed(verify: bool, corpus: Corpus) -> None:
    for seed in range(50):
        chance = random.Random(seed)
        path = corpus.folder / f"{chance.choice(corpus.splits)}.tokens"
        before = path.read_bytes()
        flip(path, chance)
        with pytest.raises(
            CorpusError,
            match=rf"{path.name} is not what was written \(its sha256 differs.*Remove the folder",
        ):
            Corpus.open(corpus.folder, verify=verify)
        path.write_bytes(before)
        Corpus.open(corpus.folder)


def test_a_file_is_verified_once(corpus: Corpus, read: list[str], cache: Path) -> None:
    Corpus.open(corpus.folder)
    assert read == [], "the preparation has verified all"
    reports: list[tuple[str, int, int]] = []
    Corpus.open(corpus.folder, verify=True, progress=lambda *report: reports.append(report))
    assert read == ["train.tokens", "valid.tokens", "test.tokens"]
    total = sum((corpus.folder / name).stat().st_size for name in read)
    assert reports[-1] == ("verify", total, total)
    read.clear()
    os.utime(corpus.folder / "valid.tokens", (1, 1))
    Corpus.open(corpus.folder)
    assert read == ["valid.tokens"]


def test_a_change_that_keeps_the_time_is_noticed(corpus: Corpus) -> None:
    """The time of the last change of the file's status cannot be set back."""
    path = corpus.folder / "train.tokens"
    before = path.stat()
    flip(path, random.Random(0))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(CorpusError, match="its sha256 differs"):
        Corpus.open(corpus.folder)


def test_a_file_that_changed_just_now_is_not_remembered(
    corpus: Corpus, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second change at the same moment would not change the time of the file."""
    monkeypatch.setattr(verification, "_SAME_TIME_NS", 10**12)
    os.utime(corpus.folder / "valid.tokens")
    for _ in range(2):
        Corpus.open(corpus.folder)
    assert read == ["valid.tokens"] * 2


@pytest.mark.parametrize(
    "content", ["", "{", "[1]", "[" * 10**5, '{"a": 1}', "\ud800", None, "folder", "link"]
)
def test_a_damaged_cache_only_means_verifying_again(
    content: str | None, corpus: Corpus, read: list[str], cache: Path, tmp_path: Path
) -> None:
    cache.unlink()
    if content == "folder":
        cache.mkdir()
    elif content == "link":
        (tmp_path / "precious").write_text("precious")
        cache.symlink_to(tmp_path / "precious")
    elif content is not None:
        cache.write_bytes(content.encode(errors="surrogatepass"))
    Corpus.open(corpus.folder)
    assert len(read) == 3
    Corpus.open(corpus.folder)
    assert len(read) == (6 if content == "folder" else 3)
    if content == "link":
        assert (tmp_path / "precious").read_text() == "precious"


def test_a_cache_that_cannot_be_written(
    corpus: Corpus, read: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ZLOSS_CACHE", str(tmp_path / "file" / "cache"))
    for times in (1, 2):
        Corpus.open(corpus.folder)
        assert len(read) == 3 * times


def test_places_of_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert verification.cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("ZLOSS_CACHE")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert verification.cache_folder() == Path("/somewhere/zloss")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert verification.cache_folder() == Path("/home/me/.cache/zloss")
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", "/local")
    assert verification.cache_folder() == Path("/local/zloss")


def test_the_cache_stays_small(
    corpus: Corpus, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "_MOST_REMEMBERED", 2)
    Corpus.open(corpus.folder, verify=True)
    names = [Path(path).name for path in json.loads(cache.read_text())]
    assert names == ["valid.tokens", "test.tokens"]


@pytest.mark.parametrize("position", [0, 17, 299])
def test_a_class_without_a_word_is_named(
    position: int, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a checksum that fits, and without."""
    monkeypatch.setattr(verification, "_PIECE_BYTES", 7)
    path = corpus.folder / "train.tokens"
    tokens = np.fromfile(path, dtype="<u2")
    tokens[position] = 6
    path.write_bytes(tokens.tobytes())
    told = (
        rf"the word at position {position} has class 6, and the vocabulary has the classes 0 to 5"
    )
    with pytest.raises(CorpusError, match=rf"train.tokens .*sha256 differs; {told}"):
        Corpus.open(corpus.folder)
    manifest = corpus.manifest
    manifest["splits"]["train"]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    write_manifest(corpus.folder, manifest)
    with pytest.raises(CorpusError, match=rf"train.tokens is damaged: {told}.*prepare the corpus"):
        Corpus.open(corpus.folder)
