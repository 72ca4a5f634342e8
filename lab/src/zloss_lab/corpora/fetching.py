"""Verified downloads, and archives that are unpacked without trust in the names that they contain."""

import http
import http.client
import shutil
import stat
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO

from zloss_lab import durable
from zloss_lab.corpora.catalogue import Download
from zloss_lab.corpora.errors import CorpusError
from zloss_lab.corpora.reading import sha256_of

ByteWatcher = Callable[[str, int, int], None]  # stage, bytes done, bytes in all
_PIECE_BYTES = 2**20
_TIMEOUT_S = 60
_CONNECTIONS = 5  # attempts for one file
_BROKEN = (ConnectionError, TimeoutError, http.client.HTTPException)


def download(item: Download, folder: Path, progress: ByteWatcher) -> Path:
    """Return the file in the folder. It is downloaded if necessary, and appears when its checksum is right."""
    target = folder / item.file_name
    if target.exists() and sha256_of(target) == item.sha256:
        return target
    with _explained(item, folder), durable.new_file(target) as partial:
        _fetch(item, partial, progress)
        if (sha256 := sha256_of(partial)) != item.sha256:
            raise CorpusError(
                f"{item.url} is not what it was: its sha256 is {sha256}, expected {item.sha256}. The download was "
                "thrown away; try again, or get the file elsewhere"
            )
    return target


def verify(path: Path, item: Download) -> None:
    """Refuse a file with another checksum than the download of this name."""
    if (sha256 := sha256_of(path)) != item.sha256:
        raise CorpusError(
            f"{path} has the sha256 {sha256}, expected {item.sha256}: it is damaged or another version"
        )


def is_archive(name: str) -> bool:
    """Return whether a file of this name is an archive."""
    return name.endswith((".zip", ".tar.gz", ".tgz", ".tar"))


def unpack(archive: Path, folder: Path, progress: ByteWatcher) -> None:
    """Make the folder with all files of the archive. If anything fails, the folder is not made.

    Only plain files inside the folder are allowed: links, devices, absolute names and `..` are refused.
    """
    try:
        with durable.new_folder(folder) as partial:
            members = _zip_members if archive.name.endswith(".zip") else _tar_members
            for name, content, done in members(archive):
                _copy(content, partial / _safe(name, archive))
                progress("unpack", done, archive.stat().st_size)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error) as error:
        reason = str(error).partition("\n")[0].rstrip(":")
        raise CorpusError(f"{archive} is damaged: {reason}. Remove it and get it again") from error
    except OSError as error:
        raise CorpusError(
            f"cannot unpack {archive} to {folder}: {error.strerror or error}"
        ) from error


def _fetch(item: Download, target: Path, progress: ByteWatcher) -> None:
    """Download the file. If the connection breaks, a new one continues from that place."""
    with target.open("wb") as file:
        for left in reversed(range(_CONNECTIONS)):
            try:
                _receive(item, file, progress)
                break
            except _BROKEN:
                if not left:
                    raise


def _receive(item: Download, file: IO[bytes], progress: ByteWatcher) -> None:
    """Download the missing part of a file, or the whole file if the server does not send parts."""
    request = urllib.request.Request(
        item.url, headers={"Range": f"bytes={file.tell()}-"} if file.tell() else {}
    )
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:
            file.seek(0)
            file.truncate()
        length = response.headers["Content-Length"]
        expected = item.size_bytes if length is None else file.tell() + int(length)
        # The module http.client may also end without an error, so the size is checked below.
        with suppress(*_BROKEN):
            while piece := response.read(_PIECE_BYTES):
                file.write(piece)
                progress("download", file.tell(), max(file.tell(), item.size_bytes))
    if file.tell() < expected:
        raise ConnectionError(
            f"the connection broke after {file.tell():,} of {expected:,} bytes. Try again"
        )


@contextmanager
def _explained(item: Download, folder: Path) -> Iterator[None]:
    try:
        yield
    except urllib.error.HTTPError as error:
        raise CorpusError(
            f"cannot download {item.url}: the server says {error.code} {error.reason}"
        ) from error
    except (urllib.error.URLError, *_BROKEN) as error:
        raise CorpusError(
            f"cannot download {item.url}: {getattr(error, 'reason', error)}"
        ) from error
    except OSError as error:
        raise CorpusError(
            f"cannot download {item.url} to {folder}: {error.strerror or error}"
        ) from error


def _tar_members(archive: Path) -> Iterator[tuple[str, IO[bytes], int]]:
    with archive.open("rb") as raw, tarfile.open(fileobj=raw) as tar:
        for member in tar:
            if member.isdir():
                continue
            content = tar.extractfile(member) if member.isfile() else None
            if content is None:
                raise CorpusError(
                    f"{archive} has {member.name!r}, which is no plain file: such archives are refused"
                )
            yield member.name, content, raw.tell()


def _zip_members(archive: Path) -> Iterator[tuple[str, IO[bytes], int]]:
    with zipfile.ZipFile(archive) as packed:
        for member in packed.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            if member.is_dir():
                continue
            if kind not in (0, stat.S_IFREG):
                raise CorpusError(
                    f"{archive} has {member.filename!r}, which is no plain file: such archives are refused"
                )
            with packed.open(member) as content:
                yield member.filename, content, member.header_offset + member.compress_size


def _safe(name: str, archive: Path) -> PurePosixPath:
    path, elsewhere = PurePosixPath(name), PureWindowsPath(name)
    if path.is_absolute() or ".." in elsewhere.parts or elsewhere.drive or "\\" in name:
        raise CorpusError(
            f"{archive} has {name!r}, which would be written outside its folder: such archives are refused"
        )
    return path


def _copy(content: IO[bytes], target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        shutil.copyfileobj(content, file, _PIECE_BYTES)
