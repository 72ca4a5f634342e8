"""The function `prepare`, which makes a corpus from a named corpus or from the user's own text."""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from zloss_lab import durable
from zloss_lab.corpora.building import Manifest, build
from zloss_lab.corpora.catalogue import CATALOGUE, Recipe
from zloss_lab.corpora.corpus import Corpus
from zloss_lab.corpora.errors import CorpusError
from zloss_lab.corpora.fetching import ByteWatcher
from zloss_lab.corpora.locating import Files, named_files, own_files
from zloss_lab.corpora.manifest import MANIFEST, read_manifest, write_manifest
from zloss_lab.corpora.preparation_options import PreparationOptions
from zloss_lab.corpora.reading import COMPRESSED, sha256_of
from zloss_lab.corpora.tokenizing import TextFormat

# Workers first import this package and torch. In the same time one core reads about this much text.
_ALONE_UP_TO_BYTES = 128 * 2**20
_COMPRESSION = 4  # about the ratio for text
_MOST_WORKERS = 16  # more workers would wait for the main process, which combines their results


def prepare(
    name_or_path: str | Path,
    folder: str | Path,
    *,
    downloads: str | Path | None = None,
    workers: int | None = None,
    progress: ByteWatcher | None = None,
    **options: Any,
) -> Corpus:
    """Make a prepared corpus in `folder`, or open the corpus that is already there.

    Args:
        name_or_path: a name of the CATALOGUE, or your own text file or folder (UTF-8; plain, .gz, .xz or .zst). Write
            "./ptb" for a folder with the name of a named corpus.
        folder: the folder for the corpus. It appears when the corpus is complete.
        downloads: the folder for downloaded files. The default is `downloads` beside the folder of the corpus.
        workers: number of worker processes. The default is none for a small corpus and one per core for others.
        progress: called with the stage ("download", "unpack", "read", "count", "write" or "verify"), the bytes done
            and the bytes in all.
        **options: fields of `PreparationOptions`, such as `min_count=3`.
    """
    chosen = PreparationOptions(**options)
    folder, report = Path(folder), progress or _silent
    if files_above := [place for place in folder.parents if place.is_file()]:
        raise CorpusError(
            f"cannot write the corpus {folder}: the file {files_above[0]} is in the way"
        )
    job = _job(name_or_path, chosen)
    if not job.is_named:
        files = own_files(Path(name_or_path), chosen.valid, chosen.test)
    else:
        if chosen.source is None and _is_prepared(folder, job):
            return Corpus.open(folder, progress=report)
        kept = folder.parent / "downloads" if downloads is None else Path(downloads)
        files = named_files(job.name, chosen.source, kept / job.name, report)
    if not _is_prepared(folder, job, files):
        _make(folder, job, files, _workers(workers, files), chosen.check_counts, report)
    return Corpus.open(folder, progress=report)


@dataclass(frozen=True)
class _Job:
    """The name and the recipe of a corpus that the user wants."""

    name: str
    recipe: Recipe
    is_named: bool

    @property
    def options(self) -> dict[str, Any]:
        """The recipe as a table, as it is in a manifest."""
        return dict(json.loads(json.dumps(asdict(self.recipe))))


def _job(name_or_path: str | Path, options: PreparationOptions) -> _Job:
    """Return the job that the options describe; refuse options that do not go with the corpus."""
    name = str(name_or_path)
    changes = options.given("fractions", "min_count", "max_words", "whole_vocabulary")
    if name in CATALOGUE:
        _refuse(name, options.given("valid", "test", "fractions", "lines", "tokenizer"))
        return _Job(name, replace(CATALOGUE[name].recipe, **changes), is_named=True)
    _refuse(f"{name}, which is no named corpus", ["source (--from)"] if options.source else [])
    boundary = None if options.lines is False else "<eos>"
    text = TextFormat(tokenizer=options.tokenizer or "whitespace", boundary=boundary)
    recipe = replace(Recipe(text=text, padding=boundary), **changes)
    return _Job(_name_of(Path(name_or_path)), recipe, is_named=False)


def _refuse(whose: str, given: Iterable[str]) -> None:
    names = list(given)
    if names:
        verb = "are not options" if len(names) > 1 else "is not an option"
        raise CorpusError(f"{' and '.join(names)} {verb} for {whose}")


def _make(
    folder: Path, job: _Job, files: Files, workers: int, check_counts: bool, progress: ByteWatcher
) -> None:
    """Make the corpus in a temporary folder, which is renamed when it is complete."""
    with _explained(folder), durable.new_folder(folder) as partial:
        manifest = build(job.name, job.recipe, files, partial, workers=workers, progress=progress)
        if job.is_named and check_counts:
            _check_counts(job, manifest)
        write_manifest(partial, manifest)


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Turn an error of writing into a `CorpusError`. Errors of reading are explained where they happen."""
    try:
        yield
    except OSError as error:
        if durable.is_full_disk(error):
            raise CorpusError(
                f"the disk of {folder} is full. Nothing was left there; preparation takes 8 bytes a word at most"
            ) from error
        raise CorpusError(f"cannot write the corpus {folder}: {error.strerror or error}") from error


# ---- checks ----------------------------------------------------------------------------------------------------------


def _is_prepared(folder: Path, job: _Job, files: Files | None = None) -> bool:
    """Return whether the folder has this corpus already. Other content of the folder is an error.

    A source file with the recorded size and time of change counts as unchanged. If its time differs, its checksum
    decides. Without `files`, the name and the options of the corpus are compared only.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    if not (folder / MANIFEST).is_file():
        raise CorpusError(
            f"{folder} is there and is no prepared corpus: it is left alone. Choose another folder"
        )
    manifest = read_manifest(folder)
    asked, found = (
        {"name": job.name, **job.options},
        {"name": manifest["name"], **manifest["options"]},
    )
    if different := [key for key in asked if asked[key] != found.get(key)]:
        changes = ", ".join(f"{key} {found.get(key)!r} (now {asked[key]!r})" for key in different)
        raise CorpusError(
            f"{folder} has a corpus that was prepared otherwise: {changes}. Choose another folder or remove it"
        )
    if files is not None and not _same_sources(manifest, files):
        raise CorpusError(
            f"{folder} was prepared from other files than there are now. Choose another folder or remove it"
        )
    # The process that made it may have been killed before it removed its lock.
    with suppress(OSError):
        durable.tidy(folder.parent)
    return True


def _same_sources(manifest: Manifest, files: Files) -> bool:
    recorded = manifest["sources"]
    current = [(split, path) for split, paths in files.items() for path in paths]
    return len(recorded) == len(current) and all(map(_same_source, recorded, current))


def _same_source(recorded: Manifest, current: tuple[str, Path]) -> bool:
    split, path = current
    try:
        status = path.stat()
    except OSError as error:
        raise CorpusError(f"cannot read {path}: {error.strerror}") from error
    if (split, path.name, status.st_size) != (
        recorded["split"],
        recorded["name"],
        recorded["bytes"],
    ):
        return False
    return bool(status.st_mtime_ns == recorded["mtime_ns"] or sha256_of(path) == recorded["sha256"])


def _check_counts(job: _Job, manifest: Manifest) -> None:
    """Refuse a named corpus with other word counts than the catalogue expects. This check costs nothing."""
    corpus = CATALOGUE[job.name]
    found = {
        f"words in its {split} split": entry["words"] for split, entry in manifest["splits"].items()
    }
    expected = {
        f"words in its {split} split": words for split, words in corpus.expected_words.items()
    }
    if job.recipe == corpus.recipe and corpus.expected_vocabulary is not None:
        found["words in its vocabulary"] = manifest["vocabulary"]["words"]
        expected["words in its vocabulary"] = corpus.expected_vocabulary
    for what, number in expected.items():
        if found.get(what) != number:
            raise CorpusError(
                f"{job.name} should have {number:,} {what}, and these files have {found.get(what):,}: they are another "
                "version. Get the right ones, or take them as they are with check_counts=False (--no-check-counts)"
            )


# ---- defaults --------------------------------------------------------------------------------------------------------


def _name_of(path: Path) -> str:
    """Return the name of a file or folder without its endings."""
    # `Path.resolve` ends in a RuntimeError for a link to itself.
    return os.path.basename(os.path.realpath(path)).partition(".")[0] or "text"


def _workers(asked: int | None, files: Files) -> int:
    if asked is not None:
        if not 0 <= asked <= 256:
            raise CorpusError(f"workers must be a number of processes from 0 to 256, got {asked}")
        return asked
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    paths = [path for group in files.values() for path in group if path.is_file()]
    text_bytes = sum(
        path.stat().st_size * (_COMPRESSION if path.suffix in COMPRESSED else 1) for path in paths
    )
    return 0 if cores == 1 or text_bytes <= _ALONE_UP_TO_BYTES else min(cores, _MOST_WORKERS)


def _silent(stage: str, done_bytes: int, total_bytes: int) -> None:
    """Ignore the progress."""
