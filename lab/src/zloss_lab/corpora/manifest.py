"""The manifest of a prepared corpus, `manifest.json`: its fields, and the check of a manifest from somebody else.

The files of a corpus have fixed names, so a manifest cannot name a file outside of its folder. The last entry is the
checksum of the others, and a manifest is read only if it is byte for byte what `write_manifest` writes.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from zloss_lab.configuration import from_table
from zloss_lab.corpora.catalogue import SPLITS, Recipe
from zloss_lab.corpora.errors import CorpusError, MissingCorpusError
from zloss_lab.corpora.reading import content_of
from zloss_lab.json_text import parse_json

FORMAT = 2
MANIFEST = "manifest.json"
VOCABULARY = "vocabulary.tsv"
AGAIN = "Remove the folder and prepare the corpus again"
_CHECKSUM = "sha256"
_TOKENS = "{split}.tokens"
_SHA256 = re.compile("[0-9a-f]{64}")
_LONGEST_REASON = 300  # characters


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """An entry of a file of the corpus: the vocabulary, or the tokens of a split."""

    file: str
    words: int
    sha256: str

    def __post_init__(self) -> None:
        if self.words < 1:
            raise ValueError(f"words must be a number from 1 on, got {self.words}")
        _require_sha256(self.sha256)


@dataclass(frozen=True, kw_only=True)
class SplitEntry(FileEntry):
    """An entry of a split. `lines` is None for a text in which the ends of lines have no meaning."""

    lines: int | None


@dataclass(frozen=True, kw_only=True)
class SourceEntry:
    """An entry of a text file from which the corpus was made."""

    split: str
    name: str
    bytes: int
    mtime_ns: int
    sha256: str

    def __post_init__(self) -> None:
        _require_sha256(self.sha256)


@dataclass(frozen=True, kw_only=True)
class CheckedManifest:
    """All fields of a manifest. An instance exists only if they fit together."""

    format: int
    name: str
    dtype: Literal["uint16", "uint32"]
    boundary: str | None
    padding: str | None
    unknown: str | None
    vocabulary: FileEntry
    splits: Mapping[str, SplitEntry]
    options: Recipe
    sources: tuple[SourceEntry, ...]
    zloss: str

    def __post_init__(self) -> None:
        if "train" not in self.splits or not set(self.splits) <= set(SPLITS):
            raise ValueError(
                f"splits must be train, and maybe valid and test, got {[*self.splits]}"
            )
        _require_file(self.vocabulary, VOCABULARY)
        for split, entry in self.splits.items():
            _require_file(entry, tokens_file(split))


def tokens_file(split: str) -> str:
    """Return the name of the file with the tokens of a split."""
    return _TOKENS.format(split=split)


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write the manifest of a corpus, with its checksum."""
    (folder / MANIFEST).write_bytes(_to_bytes(manifest))


def _to_bytes(manifest: Mapping[str, Any]) -> bytes:
    sha256 = hashlib.sha256(json.dumps(manifest).encode()).hexdigest()
    return (json.dumps({**manifest, _CHECKSUM: sha256}, indent=1) + "\n").encode()


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a prepared corpus after a check of all its fields; refuse another format."""
    path = folder / MANIFEST
    if not path.is_file():
        raise MissingCorpusError(
            f"{folder} is no prepared corpus: there is no {MANIFEST}. Make one with `zloss data prepare`"
        )
    content = content_of(path)
    try:
        manifest = parse_json(content)
        if not isinstance(manifest, dict) or "format" not in manifest:
            raise ValueError("it is no JSON object with a format")
        manifest.pop(_CHECKSUM, None)
        if manifest["format"] == FORMAT:
            if _to_bytes(manifest) != content:
                raise ValueError("it is not what was written (its sha256 differs)")
            from_table(CheckedManifest, manifest)
    except ValueError as error:
        reason = str(error)[:_LONGEST_REASON]
        raise CorpusError(f"{path} is damaged: {reason}. {AGAIN}") from error
    if manifest["format"] != FORMAT:
        raise CorpusError(
            f"{folder} was prepared in format {str(manifest['format'])[:20]}, this version reads format {FORMAT}. "
            f"{AGAIN}"
        )
    return manifest


def _require_file(entry: FileEntry, name: str) -> None:
    if entry.file != name:
        raise ValueError(f"it names the file {entry.file!r}, expected {name!r}")


def _require_sha256(text: str) -> None:
    if not _SHA256.fullmatch(text):
        raise ValueError(f"sha256 must be 64 hexadecimal digits, got {text!r}")
