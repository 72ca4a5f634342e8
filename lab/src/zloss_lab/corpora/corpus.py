"""A prepared corpus: a folder with a manifest, the vocabulary, and the tokens of each split for memory mapping.

The folder has these files:

    manifest.json     name, options of the preparation, and sizes and checksums of the other files
    vocabulary.tsv    word TAB count on each line; the class of a word is the number of its line, from 0
    train.tokens ...  the classes of all words in order, little-endian integers of the smallest sufficient type
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from zloss_lab.corpora.errors import CorpusError
from zloss_lab.corpora.fetching import ByteWatcher
from zloss_lab.corpora.manifest import AGAIN, MANIFEST, VOCABULARY, read_manifest, tokens_file
from zloss_lab.corpora.tokenizing import TextFormat
from zloss_lab.corpora.verification import TokenFile
from zloss_lab.corpora.vocabulary import Vocabulary

_TYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}

Tokens = npt.NDArray[np.unsignedinteger[Any]]


class Corpus:
    """A prepared corpus, open for reading. `prepare` makes a corpus, and `Corpus.open` opens it."""

    folder: Path
    manifest: dict[str, Any]
    vocabulary: Vocabulary

    def __init__(self, folder: Path, manifest: dict[str, Any], vocabulary: Vocabulary) -> None:
        self.folder, self.manifest, self.vocabulary = folder, manifest, vocabulary

    @classmethod
    def open(
        cls, folder: str | Path, *, verify: bool = False, progress: ByteWatcher | None = None
    ) -> "Corpus":
        """Open a corpus after a check of its manifest, its vocabulary and its tokens.

        The checksum of a file of tokens is computed if this machine has not verified the file as it is now. With
        `verify` it is computed in any case. That reads the file, and `progress` is called with the stage "verify", the
        bytes done and the bytes in all.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        corpus = cls(folder, manifest, _checked_vocabulary(folder, manifest))
        corpus._check_roles()
        files = [corpus._token_file(split) for split in corpus.splits]
        for file in files:
            _require_inside(file.path, folder)
            file.require_size()
        _verify(files if verify else [file for file in files if not file.is_verified], progress)
        return corpus

    @property
    def name(self) -> str:
        """The name of the corpus in the catalogue, or the name of the user's file without its endings."""
        return str(self.manifest["name"])

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits: train, and valid and test if they exist."""
        return tuple(self.manifest["splits"])

    @property
    def boundary(self) -> int | None:
        """The class of the word that ends every line; None if the text has no lines."""
        return self._id_of("boundary")

    @property
    def padding(self) -> int | None:
        """The class of the word that fills contexts before the start of a sentence, or None."""
        return self._id_of("padding")

    @property
    def unknown(self) -> int | None:
        """The class of all words that are not in the vocabulary, or None."""
        return self._id_of("unknown")

    @property
    def vocabulary_sha256(self) -> str:
        """The checksum of the vocabulary. Two corpora with equal checksums have the same classes for the same words."""
        return str(self.manifest["vocabulary"]["sha256"])

    def split(self, name: str) -> Tokens:  # (N,)
        """Return the classes of all words of a split, memory-mapped and read-only."""
        if name not in self.splits:
            raise CorpusError(
                f"{self.folder} has no split {name!r}, it has {', '.join(self.splits)}"
            )
        return np.memmap(self.folder / tokens_file(name), dtype=self._dtype, mode="r")

    def encode(self, text: str) -> list[int]:
        """Return the classes of the words of a text, which is tokenized like the corpus.

        The last line is taken as incomplete, so it gets no boundary word.
        """
        text_format = TextFormat(**self.manifest["options"]["text"])
        try:
            content = text.encode()
        except UnicodeEncodeError as error:  # text from a command line in another encoding
            raise CorpusError(f"{text!r} is not UTF-8 text") from error
        words = text_format.words(content.rstrip())
        if text_format.tokenizer != "whitespace" and text_format.boundary is not None:
            words = words[:-1]  # tokenisers end the last line too
        return self.vocabulary.encode(b" ".join(words).decode())

    @property
    def _dtype(self) -> np.dtype[Any]:
        return _TYPES[self.manifest["dtype"]]

    def _id_of(self, role: str) -> int | None:
        word = self.manifest[role]
        return None if word is None else self.vocabulary.id_of(word)

    def _token_file(self, split: str) -> TokenFile:
        entry = self.manifest["splits"][split]
        return TokenFile(
            path=self.folder / tokens_file(split),
            dtype=self._dtype,
            words=entry["words"],
            classes=len(self.vocabulary),
            sha256=entry["sha256"],
        )

    def _check_roles(self) -> None:
        """Refuse a manifest that does not fit the vocabulary."""
        path = self.folder / MANIFEST
        for role in ("boundary", "padding", "unknown"):
            word = self.manifest[role]
            if word is not None and word not in self.vocabulary:
                raise CorpusError(
                    f"{path} is damaged: the {role} {word!r} is not in the vocabulary. {AGAIN}"
                )
        expected = type_for(len(self.vocabulary))
        if self.manifest["dtype"] != expected:
            raise CorpusError(
                f"{path} is damaged: dtype is {self.manifest['dtype']!r}, expected {expected!r}. {AGAIN}"
            )


def type_for(num_classes: int) -> str:
    """Return the name of the smallest type that holds the classes.

    >>> type_for(65536), type_for(65537)
    ('uint16', 'uint32')
    """
    return next(name for name, dtype in _TYPES.items() if num_classes <= 256**dtype.itemsize)


def _checked_vocabulary(folder: Path, manifest: dict[str, Any]) -> Vocabulary:
    path, entry = folder / VOCABULARY, manifest["vocabulary"]
    _require_inside(path, folder)
    try:
        vocabulary = Vocabulary.load(path, unknown=manifest["unknown"], sha256=entry["sha256"])
    except CorpusError as error:
        raise CorpusError(f"{error}. {AGAIN}") from error
    if len(vocabulary) != entry["words"]:
        raise CorpusError(
            f"{path} has {len(vocabulary):,} words, expected {entry['words']:,}. {AGAIN}"
        )
    return vocabulary


def _require_inside(path: Path, folder: Path) -> None:
    """Refuse a link to a file outside of the folder of the corpus."""
    # `Path.resolve` ends in a RuntimeError for a link to itself.
    end = Path(os.path.realpath(path))
    if not end.is_relative_to(os.path.realpath(folder)):
        raise CorpusError(
            f"{path} is a link to {end}, outside of the corpus: copy that file into the folder instead"
        )


def _verify(files: list[TokenFile], progress: ByteWatcher | None) -> None:
    done, total = 0, sum(file.size_bytes for file in files)

    def report(more: int) -> None:
        nonlocal done
        done += more
        if progress is not None:
            progress("verify", done, total)

    for file in files:
        file.verify(report)
