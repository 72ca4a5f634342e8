"""The files of a corpus, made from text files in one pass over the text and two passes over numbers.

1. Read: every word becomes a number, in the order of first occurrence, in a temporary file. This takes nearly all of
   the time, and uses all cores.
2. Count: the number of occurrences of each word in each split gives the vocabulary.
3. Write: numbers become classes, in the smallest type that holds them.

The memory holds the different words, a few blocks of text and a few arrays of numbers, however long the text is.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import zloss
from zloss_lab.corpora.catalogue import SPLITS, Recipe
from zloss_lab.corpora.corpus import type_for
from zloss_lab.corpora.encoding import Encoder, Numbering, WordNumbers
from zloss_lab.corpora.errors import CorpusError
from zloss_lab.corpora.fetching import ByteWatcher
from zloss_lab.corpora.locating import Files
from zloss_lab.corpora.manifest import FORMAT, VOCABULARY, tokens_file
from zloss_lab.corpora.reading import Block, SourceFile
from zloss_lab.corpora.vocabulary import Counts, Tally, Vocabulary, WordChoice, choose

_NUMBER = np.dtype(np.uint32)
_CHUNK_WORDS = 2**20
_NUMBERS = "{split}.numbers"  # temporary

Manifest = dict[str, Any]
Report = Callable[[int], None]  # called with the number of bytes that were done since the last call


@dataclass(frozen=True)
class Piece:
    """A part of a file of numbers."""

    path: Path
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def chunks(self) -> Iterator[WordNumbers]:
        """Yield the numbers in arrays of bounded size."""
        with self.path.open("rb") as file:
            file.seek(self.start * _NUMBER.itemsize)
            for begin in range(self.start, self.stop, _CHUNK_WORDS):
                yield np.fromfile(file, dtype=_NUMBER, count=min(_CHUNK_WORDS, self.stop - begin))


def build(
    name: str, recipe: Recipe, files: Files, folder: Path, *, workers: int, progress: ByteWatcher
) -> Manifest:
    """Write the files of a corpus into the folder, except the manifest, which is returned."""
    sources = {split: [SourceFile(path) for path in paths] for split, paths in files.items()}
    numbering = Numbering()
    # Special words have numbers even if they do not occur in the text.
    numbering.of([*_special_words(recipe), recipe.unknown.encode()])
    texts = _number_words(sources, recipe, numbering, folder, workers, progress)
    pieces = _cut_off(texts, recipe, numbering)
    counts = _count_words(pieces, len(numbering), progress)
    _refuse_empty(files, counts, [numbering[word] for word in _special_words(recipe)])
    vocabulary, classes = choose(_tally(numbering, counts), _choice(recipe))
    splits = _write_splits(pieces, classes.astype(type_for(len(vocabulary))), folder, progress)
    for text in texts.values():
        text.path.unlink()
    for split, entry in splits.items():
        entry["lines"] = recipe.text.boundary and int(
            counts[split][numbering[recipe.text.boundary.encode()]]
        )
    return {
        "format": FORMAT,
        "name": name,
        "dtype": type_for(len(vocabulary)),
        "boundary": recipe.text.boundary,
        "padding": recipe.padding,
        "unknown": vocabulary.unknown,
        "vocabulary": _write_vocabulary(vocabulary, folder),
        "splits": splits,
        "options": asdict(recipe),
        "sources": [_record(split, file) for split, group in sources.items() for file in group],
        "zloss": zloss.__version__,
    }


def _special_words(recipe: Recipe) -> list[bytes]:
    """Return the words that are always classes."""
    words = [recipe.text.boundary, recipe.padding, *recipe.special_words]
    return [word.encode() for word in dict.fromkeys(words) if word is not None]


def _tally(numbering: Numbering, counts: Mapping[str, Counts]) -> Tally:
    elsewhere = [count for split, count in counts.items() if split != "train"]
    return Tally(
        numbering=numbering,
        in_training=counts["train"],
        elsewhere=sum(elsewhere, np.zeros(len(numbering), dtype=np.int64)),
    )


def _choice(recipe: Recipe) -> WordChoice:
    return WordChoice(
        required=frozenset(_special_words(recipe)),
        unknown=recipe.unknown.encode(),
        min_count=recipe.min_count,
        max_words=recipe.max_words,
        whole_vocabulary=recipe.whole_vocabulary,
    )


# ---- read ------------------------------------------------------------------------------------------------------------


def _number_words(
    sources: Mapping[str, Sequence[SourceFile]],
    recipe: Recipe,
    numbering: Numbering,
    folder: Path,
    workers: int,
    progress: ByteWatcher,
) -> dict[str, Piece]:
    """Write all words as numbers, in one file for each group of sources."""
    report = _reporter(
        "read", sum(file.size_bytes for group in sources.values() for file in group), progress
    )
    with Encoder(recipe.text, workers) as encoder:
        return {
            split: _number_group(
                _blocks(group, report), encoder, numbering, folder / _NUMBERS.format(split=split)
            )
            for split, group in sources.items()
        }


def _number_group(
    blocks: Iterator[Block], encoder: Encoder, numbering: Numbering, path: Path
) -> Piece:
    total = 0
    with path.open("wb") as file:
        for encoded in encoder.encode(blocks):
            number_here = numbering.of(encoded.words.split())
            file.write(number_here[encoded.numbers].data)
            total += len(encoded.numbers)
    return Piece(path, 0, total)


def _blocks(group: Sequence[SourceFile], report: Report) -> Iterator[Block]:
    for file in group:
        yield from file.blocks(report)


def _record(split: str, file: SourceFile) -> Manifest:
    """Return the entry of a source file in the manifest, which shows later whether the file has changed."""
    return {
        "split": split,
        "name": file.path.name,
        "bytes": file.size_bytes,
        "mtime_ns": file.mtime_ns,
        "sha256": file.sha256,
    }


# ---- splits ----------------------------------------------------------------------------------------------------------


def _cut_off(texts: Mapping[str, Piece], recipe: Recipe, numbering: Numbering) -> dict[str, Piece]:
    """Return a piece for every split. A split without its own text is cut off the end of the training text."""
    boundary = None if recipe.text.boundary is None else numbering[recipe.text.boundary.encode()]
    fractions = zip(("valid", "test"), recipe.fractions, strict=True)
    wanted = {
        split: fraction for split, fraction in fractions if split not in texts and fraction > 0
    }
    text, share, start = texts["train"], 1 - sum(wanted.values()), 0
    pieces = dict(texts)
    for split, following in zip(("train", *wanted), (*wanted.values(), None), strict=True):
        stop = (
            text.stop if following is None else _line_end(text, round(len(text) * share), boundary)
        )
        pieces[split] = Piece(text.path, start, stop)
        start, share = stop, share + (following or 0)
    if wanted and len(text) and not all(len(piece) for piece in pieces.values()):
        raise CorpusError(
            f"the text of {len(text):,} words has too few lines to cut off {' and '.join(wanted)}: give files for "
            "them, fractions=(0, 0) for none (--fractions 0 0), or lines=False if the ends of lines mean nothing "
            "(--no-lines)"
        )
    return {split: pieces[split] for split in SPLITS if split in pieces}


def _line_end(text: Piece, position: int, boundary: int | None) -> int:
    """Return the position of the first end of a line at the position or after it."""
    if boundary is None or not position:
        return position
    for chunk in Piece(text.path, position - 1, text.stop).chunks():
        ends = np.flatnonzero(chunk == boundary)
        if len(ends):
            return position + int(ends[0])
        position += len(chunk)
    return text.stop


# ---- count -----------------------------------------------------------------------------------------------------------


def _count_words(
    pieces: Mapping[str, Piece], size: int, progress: ByteWatcher
) -> dict[str, Counts]:
    report = _reporter("count", sum(map(len, pieces.values())) * _NUMBER.itemsize, progress)
    return {split: _count(piece, size, report) for split, piece in pieces.items()}


def _count(piece: Piece, size: int, report: Report) -> Counts:
    counts = np.zeros(size, dtype=np.int64)
    for chunk in piece.chunks():
        counts += np.bincount(chunk, minlength=size)
        report(chunk.nbytes)
    return counts


def _refuse_empty(files: Files, counts: Mapping[str, Counts], special: Sequence[int]) -> None:
    for split, count in counts.items():
        if count.sum() == count[special].sum():
            where = ", ".join(str(path) for path in files.get(split, files["train"])[:3])
            raise CorpusError(f"there are no words for the {split} split in {where}")


# ---- write -----------------------------------------------------------------------------------------------------------


def _write_splits(
    pieces: Mapping[str, Piece], classes: npt.NDArray[Any], folder: Path, progress: ByteWatcher
) -> dict[str, Manifest]:
    report = _reporter("write", sum(map(len, pieces.values())) * classes.itemsize, progress)
    little_endian = classes.astype(classes.dtype.newbyteorder("<"))
    return {
        split: {
            "file": tokens_file(split),
            "words": len(piece),
            "sha256": _write_split(piece, little_endian, folder / tokens_file(split), report),
        }
        for split, piece in pieces.items()
    }


def _write_split(piece: Piece, classes: npt.NDArray[Any], path: Path, report: Report) -> str:
    sha256 = hashlib.sha256()
    with path.open("wb") as file:
        for chunk in piece.chunks():
            tokens = classes[chunk]
            sha256.update(tokens.data)
            file.write(tokens.data)
            report(tokens.nbytes)
    return sha256.hexdigest()


def _write_vocabulary(vocabulary: Vocabulary, folder: Path) -> Manifest:
    data = vocabulary.to_bytes()
    (folder / VOCABULARY).write_bytes(data)
    return {
        "file": VOCABULARY,
        "words": len(vocabulary),
        "sha256": hashlib.sha256(data).hexdigest(),
    }


def _reporter(stage: str, total: int, progress: ByteWatcher) -> Report:
    done = 0

    def report(more: int) -> None:
        nonlocal done
        done += more
        progress(stage, done, total)

    return report
