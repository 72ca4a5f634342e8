"""A search for the files of a corpus: in the folder of the user, in an installed package, or on the network."""

import difflib
import importlib.util
from collections.abc import Mapping
from pathlib import Path

from zloss_lab import durable
from zloss_lab.corpora.archives import is_archive, unpack
from zloss_lab.corpora.catalogue import CATALOGUE, SPLITS, NamedCorpus
from zloss_lab.corpora.errors import CorpusError
from zloss_lab.corpora.fetching import ByteWatcher, download, verify
from zloss_lab.corpora.manifest import MANIFEST, VOCABULARY
from zloss_lab.corpora.reading import COMPRESSED, text_name

Files = dict[str, tuple[Path, ...]]  # the files of each split, in order


def named_files(name: str, source: Path | None, downloads: Path, progress: ByteWatcher) -> Files:
    """Return the files of a corpus of the catalogue.

    They are taken from the folder `source` if it is given, else downloaded and unpacked if necessary.
    """
    corpus = CATALOGUE[name]
    if source is not None:
        return _from_source(name, source, downloads, progress)
    if corpus.package:
        return _from_package(name, corpus.package)
    if not corpus.downloads:
        raise CorpusError(f"cannot get {name}: {_by_hand(name)}")
    for place in (downloads, downloads / "unpacked"):
        if not _missing(found := find_files(name, place)):
            return _complete(found)
    return _from_network(name, downloads, progress)


def own_files(path: Path, valid: Path | None, test: Path | None) -> Files:
    """Return the user's own files: one text, or a folder of texts.

    In a folder, a file with `train`, `valid` or `test` between the dots of its name belongs to that split, such as
    news.train.txt.gz. Other files are ignored. If no name has `train`, all files are one text, in the order of their
    names.
    """
    if not path.exists():
        near = difflib.get_close_matches(str(path), CATALOGUE, n=1)
        hint = f"did you mean {near[0]!r}? The" if near else "the"
        raise CorpusError(
            f"there is no file or folder {path}, and no corpus of that name; {hint} named ones are: "
            f"{', '.join(CATALOGUE)}"
        )
    files: Files = _by_split(path) if path.is_dir() else {"train": (path,)}
    if valid is not None:
        files["valid"] = (valid,)
    if test is not None:
        files["test"] = (test,)
    return files


def find_files(name: str, folder: Path) -> dict[str, dict[str, tuple[Path, ...]]]:
    """Return the files of each split by the name in the catalogue, from the subfolder that has the most of them."""
    corpus = CATALOGUE[name]
    places = [folder / above / place for above in ("", name) for place in ("", *corpus.places)]
    return max(
        (_find_in(place, corpus) for place in places), key=lambda found: -len(_missing(found))
    )


def _from_source(name: str, source: Path, downloads: Path, progress: ByteWatcher) -> Files:
    if not source.is_dir():
        raise CorpusError(f"there is no folder {source} with the files of {name}")
    if not (missing := _missing(found := find_files(name, source))):
        return _complete(found)
    for item in CATALOGUE[name].downloads:
        if is_archive(item.file_name) and (archive := source / item.file_name).is_file():
            verify(archive, item)
            return _unpacked(name, archive, downloads, progress)
    number = f" ({len(missing)} files in all)" if len(missing) > 1 else ""
    raise CorpusError(
        f"{source} has not all files of {name}: there is no {missing[0]}{number}. {_sentence(_by_hand(name))}"
    )


def _from_package(name: str, package: str) -> Files:
    """Return the files in a package, which is not imported, because its code may need packages that are missing."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise CorpusError(f"the Python package {package} is not there. {_sentence(_by_hand(name))}")
    if _missing(found := find_files(name, Path(spec.origin).parent)):
        raise CorpusError(
            f"the Python package {package} in {Path(spec.origin).parent} has no data. {_sentence(_by_hand(name))}"
        )
    return _complete(found)


def _from_network(name: str, downloads: Path, progress: ByteWatcher) -> Files:
    try:
        with durable.tidied(downloads):
            arrived = [download(item, downloads, progress) for item in CATALOGUE[name].downloads]
    except CorpusError as error:
        raise CorpusError(f"{error}. Without network: {_by_hand(name)}") from error
    if not is_archive(arrived[0].name):
        return _complete(find_files(name, downloads))
    files = _unpacked(name, arrived[0], downloads, progress)
    arrived[0].unlink()  # its content is unpacked now
    return files


def _unpacked(name: str, archive: Path, downloads: Path, progress: ByteWatcher) -> Files:
    target = downloads / "unpacked"
    if not target.exists():
        unpack(archive, target, progress)
    if missing := _missing(found := find_files(name, target)):
        raise CorpusError(
            f"{archive} has not all files of {name}: there is no {missing[0]} in {target}"
        )
    return _complete(found)


def _find_in(place: Path, corpus: NamedCorpus) -> dict[str, dict[str, tuple[Path, ...]]]:
    found = {
        split: {name: _matches(place, name) for name in names}
        for split, names in corpus.files.items()
    }
    return found if corpus.split_of is None else _resplit(found["train"], corpus)


def _resplit(
    found: dict[str, tuple[Path, ...]], corpus: NamedCorpus
) -> dict[str, dict[str, tuple[Path, ...]]]:
    assert corpus.split_of is not None
    split_of = corpus.split_of
    return {
        split: {
            name: tuple(path for path in paths if split_of(text_name(path)) == split)
            for name, paths in found.items()
        }
        for split in SPLITS
    }


def _matches(place: Path, name: str) -> tuple[Path, ...]:
    if "*" in name:
        return tuple(sorted(place.glob(name)))
    return tuple(
        path for ending in ("", *COMPRESSED) if (path := place / (name + ending)).is_file()
    )[:1]


def _missing(found: Mapping[str, Mapping[str, tuple[Path, ...]]]) -> list[str]:
    return [name for names in found.values() for name, paths in names.items() if not paths]


def _complete(found: Mapping[str, Mapping[str, tuple[Path, ...]]]) -> Files:
    return {
        split: tuple(path for paths in names.values() for path in paths)
        for split, names in found.items()
    }


def _by_split(folder: Path) -> Files:
    files_there = (path for path in sorted(folder.rglob("*")) if path.is_file())
    visible = [path for path in files_there if not _hidden(path, folder) and not _is_prepared(path)]
    if not visible:
        raise CorpusError(
            f"there is no file in the folder {folder}, except hidden files and files of prepared corpora"
        )
    files = {
        split: tuple(path for path in visible if split in text_name(path).split("."))
        for split in SPLITS
    }
    return (
        {split: paths for split, paths in files.items() if paths}
        if files["train"]
        else {"train": tuple(visible)}
    )


def _is_prepared(path: Path) -> bool:
    """Return whether a file belongs to a prepared corpus, which may be in the same folder as its texts."""
    return (path.parent / MANIFEST).is_file() and (path.parent / VOCABULARY).is_file()


def _hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _by_hand(name: str) -> str:
    corpus = CATALOGUE[name]
    if corpus.package:
        return corpus.advice
    return f"{corpus.advice}; then name the folder with them: zloss data prepare {name} --to CORPUS --from FOLDER"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
