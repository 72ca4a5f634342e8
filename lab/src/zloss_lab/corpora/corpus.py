"""A prepared corpus: a folder with a manifest, the vocabulary, and the tokens of each split for memory mapping.

The folder has these files:

    manifest.json     name, options of the preparation, and sizes and checksums of the other files
    vocabulary.tsv    word TAB count on each line; the class of a word is the number of its line, from 0
    train.tokens ...  the classes of all words in order, little-endian integers of the smallest sufficient type
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from zloss_lab.corpora.errors import CorpusError, MissingCorpusError
from zloss_lab.corpora.reading import sha256_of
from zloss_lab.corpora.tokenizing import TextFormat
from zloss_lab.corpora.vocabulary import Vocabulary

FORMAT = 1
MANIFEST = "manifest.json"
VOCABULARY = "vocabulary.tsv"
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
    def open(cls, folder: str | Path, *, verify: bool = False) -> "Corpus":
        """Open a corpus after a check that all files exist and have the right sizes.

        With `verify` the checksums of all files are checked too, which reads the files. The checksum of the vocabulary
        is always checked.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        try:
            corpus = cls(folder, manifest, _checked_vocabulary(folder, manifest))
            for split in manifest["splits"]:
                corpus._check(split, verify=verify)
            return corpus
        except (KeyError, TypeError, AttributeError) as error:
            raise CorpusError(f"{folder / MANIFEST} is damaged: {error!r}. {_AGAIN}") from error

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
        return np.memmap(self._file(name), dtype=self._dtype, mode="r")

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

    def _file(self, split: str) -> Path:
        return self.folder / str(self.manifest["splits"][split]["file"])

    def _check(self, split: str, *, verify: bool) -> None:
        path, entry = self._file(split), self.manifest["splits"][split]
        expected = entry["words"] * self._dtype.itemsize
        found = path.stat().st_size if path.is_file() else None
        if found != expected:
            what = "is missing" if found is None else f"has {found:,} bytes, expected {expected:,}"
            raise CorpusError(f"{path} {what}. {_AGAIN}")
        if verify and sha256_of(path) != entry["sha256"]:
            raise CorpusError(f"{path} is not what was written (its sha256 differs). {_AGAIN}")


_AGAIN = "Remove the folder and prepare the corpus again"


def type_for(num_classes: int) -> str:
    """Return the name of the smallest type that holds the classes.

    >>> type_for(65536), type_for(65537)
    ('uint16', 'uint32')
    """
    return next(name for name, dtype in _TYPES.items() if num_classes <= 256**dtype.itemsize)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a prepared corpus; refuse another format."""
    path = folder / MANIFEST
    if not path.is_file():
        raise MissingCorpusError(
            f"{folder} is no prepared corpus: there is no {MANIFEST}. Make one with `zloss data prepare`"
        )
    try:
        manifest = json.loads(path.read_bytes())
        found = manifest["format"]
    except OSError as error:
        raise CorpusError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CorpusError(f"{path} is damaged: {error!r}. {_AGAIN}") from error
    if found != FORMAT:
        raise CorpusError(
            f"{folder} was prepared in format {found}, this version reads format {FORMAT}. {_AGAIN}"
        )
    return dict(manifest)


def _checked_vocabulary(folder: Path, manifest: dict[str, Any]) -> Vocabulary:
    entry = manifest["vocabulary"]
    path = folder / str(entry["file"])
    vocabulary = Vocabulary.load(path, unknown=manifest["unknown"])
    is_unchanged = hashlib.sha256(path.read_bytes()).hexdigest() == entry["sha256"]
    if not is_unchanged or len(vocabulary) != entry["words"]:
        raise CorpusError(f"{path} is not what was written (its sha256 differs). {_AGAIN}")
    return vocabulary
