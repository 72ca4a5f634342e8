"""Downloads of files, which are verified."""

import hashlib
import http
import http.client
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedRandom
from pathlib import Path

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
    with _explained(item, folder), durable.new_file(target) as file:
        _fetch(item, file, progress)
        if (sha256 := _sha256_of_open(file)) != item.sha256:
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


def _sha256_of_open(file: BufferedRandom) -> str:
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch(item: Download, file: BufferedRandom, progress: ByteWatcher) -> None:
    """Download the file. If the connection breaks, a new one continues from that place."""
    for left in reversed(range(_CONNECTIONS)):
        try:
            _receive(item, file, progress)
            break
        except _BROKEN:
            if not left:
                raise


def _receive(item: Download, file: BufferedRandom, progress: ByteWatcher) -> None:
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
                _refuse_more(item, file.tell())
                progress("download", file.tell(), max(file.tell(), item.size_bytes))
    if file.tell() < expected:
        raise ConnectionError(
            f"the connection broke after {file.tell():,} of {expected:,} bytes. Try again"
        )


def _refuse_more(item: Download, size_bytes: int) -> None:
    """Refuse what cannot be the file any more, because a server that never ends would fill the disk."""
    if size_bytes > item.size_bytes:
        raise CorpusError(
            f"{item.url} is not what it was: it has more than {item.size_bytes:,} bytes. The download was thrown away; "
            "try again, or get the file elsewhere"
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
