"""Named corpora from the network: files and archives, failures, and no network."""

import dataclasses
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.lab.corpora.catalogue_entries import (
    enter,
    miniature,
    offered,
)
from tests.lab.corpora.definition import names_in, write
from zloss_lab.corpora import CATALOGUE, CorpusError, prepare
from zloss_lab.corpora.catalogue import Download


def test_files_from_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = write(tmp_path / "server", miniature("ptb"))
    downloads = tuple(offered(server / name) for name in miniature("ptb"))
    enter(monkeypatch, dataclasses.replace(CATALOGUE["ptb"], downloads=downloads))
    prepare("ptb", tmp_path / "out", check_counts=False)
    assert names_in(tmp_path / "downloads" / "ptb") == sorted(miniature("ptb"))
    for path in server.iterdir():
        path.unlink()
    # This uses the downloaded files.
    prepare("ptb", tmp_path / "small", max_words=20, check_counts=False)


def test_a_failed_download_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only new empty folders are removed. Older folders stay, and so does a file that was downloaded."""
    server = write(tmp_path / "server", miniature("ptb"))
    first, *others = (offered(server / name) for name in miniature("ptb"))
    missing = dataclasses.replace(first, url=first.url + ".gone")
    enter(monkeypatch, dataclasses.replace(CATALOGUE["ptb"], downloads=(missing, *others)))
    for folder in (tmp_path / "data", tmp_path / "own"):
        (tmp_path / "own" / "downloads").mkdir(parents=True, exist_ok=True)
        with pytest.raises(CorpusError, match="cannot download"):
            prepare("ptb", folder / "ptb")
    assert names_in(tmp_path) == ["own", "server"]
    assert list((tmp_path / "own").rglob("*")) == [tmp_path / "own" / "downloads"]
    enter(monkeypatch, dataclasses.replace(CATALOGUE["ptb"], downloads=(*others, missing)))
    with pytest.raises(CorpusError, match="cannot download"):
        prepare("ptb", tmp_path / "data" / "ptb")
    assert len(names_in(tmp_path / "data" / "downloads" / "ptb")) == len(others)


@pytest.mark.parametrize("kind", ["ptb.tar.gz", "ptb.zip"])
def test_an_archive_from_the_network_or_from_the_user(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write(tmp_path / "server" / "files", miniature("ptb"))
    archive = tmp_path / "server" / kind
    if kind.endswith(".zip"):
        with zipfile.ZipFile(archive, "w") as packed:
            for path in files.iterdir():
                packed.write(path, f"simple-examples/data/{path.name}")
    else:
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(files, "simple-examples/data")
    enter(monkeypatch, dataclasses.replace(CATALOGUE["ptb"], downloads=(offered(archive),)))
    prepare("ptb", tmp_path / "out", check_counts=False, downloads=tmp_path / "kept")
    assert names_in(tmp_path / "kept" / "ptb") == ["unpacked"], "the archive itself is not kept"
    own = tmp_path / "own"
    own.mkdir()
    archive.rename(own / kind)
    prepare("ptb", tmp_path / "out2", source=own, check_counts=False, downloads=tmp_path / "kept2")
    assert names_in(own) == [kind]
    (own / kind).write_bytes(b"changed")
    with pytest.raises(CorpusError, match="it is damaged or another version"):
        prepare(
            "ptb", tmp_path / "out3", source=own, check_counts=False, downloads=tmp_path / "kept3"
        )


def test_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(
        monkeypatch,
        dataclasses.replace(
            CATALOGUE["ptb"], downloads=(Download("http://127.0.0.1:9/a", "0" * 64, 1),)
        ),
    )
    with pytest.raises(
        CorpusError, match=r"cannot download .*refused\. Without network: get ptb.train.txt.*--from"
    ):
        prepare("ptb", tmp_path / "out")
    with pytest.raises(
        CorpusError, match=r"cannot get fil8: no verified .* fil8 --to CORPUS --from FOLDER"
    ):
        prepare("fil8", tmp_path / "out")
