"""Downloads: from files and over HTTP, verified, interrupted, and with broken connections."""

import errno
import hashlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.corpora.definition import names_in
from tests.lab.corpora.downloads import silent
from tests.lab.corpora.server import Site, served
from zloss_lab.corpora import CorpusError, fetching
from zloss_lab.corpora.catalogue import Download
from zloss_lab.corpora.fetching import download, verify

CONTENT = b"the company said\n" * 1000


@pytest.fixture
def item(tmp_path: Path) -> Download:
    """Offer a file of this disk as a download."""
    remote = tmp_path / "server" / "text.txt"
    remote.parent.mkdir()
    remote.write_bytes(CONTENT)
    return Download(remote.as_uri(), hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))


def test_a_download(item: Download, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    path = download(item, tmp_path / "here", lambda *report: seen.append(report))
    assert path.read_bytes() == CONTENT
    assert seen[-1] == ("download", len(CONTENT), len(CONTENT))
    assert names_in(tmp_path / "here") == ["text.txt"]


def test_what_is_there_is_not_fetched_again(item: Download, tmp_path: Path) -> None:
    download(item, tmp_path / "here", silent)
    (tmp_path / "server" / "text.txt").unlink()
    assert download(item, tmp_path / "here", silent).read_bytes() == CONTENT
    (tmp_path / "here" / "text.txt").write_bytes(b"damaged")
    with pytest.raises(CorpusError, match="cannot download"):
        download(item, tmp_path / "here", silent)


def test_a_wrong_checksum_leaves_nothing(item: Download, tmp_path: Path) -> None:
    wrong = Download(item.url, "0" * 64, item.size_bytes)
    with pytest.raises(CorpusError, match=f"its sha256 is {item.sha256}, expected 0000"):
        download(wrong, tmp_path / "here", silent)
    assert names_in(tmp_path / "here") == []


def test_an_interrupted_download_leaves_nothing(item: Download, tmp_path: Path) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(item, tmp_path / "here", interrupt)
    assert names_in(tmp_path / "here") == []


def test_verifying_a_file_of_the_user(item: Download, tmp_path: Path) -> None:
    verify(tmp_path / "server" / "text.txt", item)
    (tmp_path / "server" / "text.txt").write_bytes(b"other")
    with pytest.raises(CorpusError, match="it is damaged or another version"):
        verify(tmp_path / "server" / "text.txt", item)


# ---- over HTTP -------------------------------------------------------------------------------------------------------


@pytest.fixture
def site() -> Iterator[Site]:
    with served() as site:
        site.files["/text.txt"] = CONTENT
        yield site


def offered(site: Site) -> Download:
    return Download(f"{site.url}/text.txt", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))


WAYS: dict[str, dict[str, Any]] = {
    "with its length": {},
    "without its length": {"tells_length": False},
    "in chunks": {"chunked": True},
    "never in parts": {"gives_parts": False},
}


def send(site: Site, way: str) -> None:
    for name, value in WAYS[way].items():
        setattr(site, name, value)


@pytest.mark.parametrize("way", WAYS)
def test_a_server_that_sends(way: str, site: Site, tmp_path: Path) -> None:
    send(site, way)
    seen: list[tuple[str, int, int]] = []
    path = download(offered(site), tmp_path / "here", lambda *report: seen.append(report))
    assert path.read_bytes() == CONTENT
    assert seen[-1] == ("download", len(CONTENT), len(CONTENT))
    assert names_in(tmp_path / "here") == ["text.txt"]
    assert site.requests == [("/text.txt", None)]


@pytest.mark.parametrize("way", WAYS)
def test_a_connection_that_breaks_is_taken_up_again(way: str, site: Site, tmp_path: Path) -> None:
    send(site, way)
    site.cuts = [5000, 2000]
    assert download(offered(site), tmp_path / "here", silent).read_bytes() == CONTENT
    assert len(site.requests) == 3
    # Of a chunk that was cut, Python returns nothing or a part.
    if site.gives_parts and not site.chunked:
        assert [asked for _, asked in site.requests] == [None, "bytes=5000-", "bytes=7000-"]
    assert names_in(tmp_path / "here") == ["text.txt"]


@pytest.mark.parametrize("way", WAYS)
def test_a_connection_that_always_breaks(way: str, site: Site, tmp_path: Path) -> None:
    send(site, way)
    site.cuts = [10] * 100
    with pytest.raises(
        CorpusError, match=r"/text.txt: the connection broke after \d+ of 17,\d+ bytes\. Try again"
    ):
        download(offered(site), tmp_path / "here", silent)
    assert len(site.requests) == 5
    assert names_in(tmp_path / "here") == []


def test_a_server_that_never_answers(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silence:
        item = Download(f"http://127.0.0.1:{silence.getsockname()[1]}/text.txt", "0" * 64, 1)
        with pytest.raises(CorpusError, match=r"cannot download .*: timed out"):
            download(item, tmp_path / "here", silent)
    assert names_in(tmp_path / "here") == []


def test_another_file_under_the_same_address(site: Site, tmp_path: Path) -> None:
    site.files["/text.txt"] = other = b"We have moved.\n"
    with pytest.raises(
        CorpusError, match=f"is not what it was: its sha256 is {hashlib.sha256(other).hexdigest()}"
    ):
        download(offered(site), tmp_path / "here", silent)
    assert len(site.requests) == 1, "it is complete, and wrong"
    assert names_in(tmp_path / "here") == []


def test_a_server_that_never_ends(site: Site, tmp_path: Path) -> None:
    """It would fill the disk."""
    item = Download(f"{site.url}/text.txt", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT) - 1)
    with pytest.raises(CorpusError, match=r"is not what it was: it has more than 16,999 bytes"):
        download(item, tmp_path / "here", silent)
    assert names_in(tmp_path / "here") == []


def test_an_address_that_is_gone(site: Site, tmp_path: Path) -> None:
    site.files.clear()
    with pytest.raises(
        CorpusError, match=r"cannot download .*/text.txt: the server says 404 Not Found"
    ):
        download(offered(site), tmp_path / "here", silent)
    assert names_in(tmp_path / "here") == []


def test_no_network(tmp_path: Path) -> None:
    item = Download("http://127.0.0.1:9/text.txt", "0" * 64, 1)
    with pytest.raises(
        CorpusError, match=r"cannot download http://127.0.0.1:9/text.txt: .*refused"
    ):
        download(item, tmp_path / "here", silent)


def test_what_a_killed_download_left_is_removed(site: Site, tmp_path: Path) -> None:
    (tmp_path / ".partial-text.txt.lock").touch()
    (tmp_path / ".partial-text.txt-0123456789abcdef").write_bytes(CONTENT * 2)
    assert download(offered(site), tmp_path, silent).read_bytes() == CONTENT
    assert names_in(tmp_path) == ["text.txt"]


def test_a_download_has_its_name_for_good(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is synced before it gets its name, and its folder afterwards."""
    synced: list[tuple[int, bool]] = []
    target = tmp_path / "text.txt"
    monkeypatch.setattr(
        os, "fsync", lambda handle: synced.append((os.fstat(handle).st_ino, target.exists()))
    )
    download(offered(site), tmp_path, silent)
    assert synced == [(target.stat().st_ino, False), (tmp_path.stat().st_ino, True)]


def test_no_room_for_a_download(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CorpusError, match=r"cannot download .* to .*here: No space left on device"):
        download(offered(site), tmp_path / "here", silent)
    assert names_in(tmp_path / "here") == []
