"""Archives that are unpacked without trust in what they contain.

Only plain files inside the folder are made. Links, devices, absolute names, `..` and names that occur twice are
refused. So is an archive that becomes far larger than texts do.
"""

import gzip
import io
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any, NamedTuple

from zloss_lab import durable
from zloss_lab.corpora.errors import CorpusError
from zloss_lab.corpora.fetching import ByteWatcher
from zloss_lab.corpora.reading import opened

_PIECE_BYTES = 2**20
# Text becomes about four times as large, and up to ten times with much repetition.
_MOST_EXPANSION = 50
_ALWAYS_ALLOWED_BYTES = 2**26
_MOST_FILES = 100_000
_DEEPEST = 20  # folders; a long name could make thousands
_LONGEST_HEADER_BYTES = 2**22  # the tar module reads a header of any length into the memory
_GZIP = b"\x1f\x8b"
_COMPRESSION = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 0x1  # a flag of a file in a .zip
# Errors of the modules about archives that are cut short, damaged, or made to confuse them.
_DAMAGE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    gzip.BadGzipFile,
    EOFError,
    zlib.error,
    struct.error,
    OverflowError,
    LookupError,
    ValueError,
    RuntimeError,
)


class _Member(NamedTuple):
    name: str
    content: IO[bytes]
    done_bytes: int  # of the archive


def is_archive(name: str) -> bool:
    """Return whether a file of this name is an archive."""
    return name.endswith((".zip", ".tar.gz", ".tgz", ".tar"))


def unpack(archive: Path, folder: Path, progress: ByteWatcher) -> None:
    """Make the folder with all files of the archive. If anything fails, the folder is not made."""
    try:
        with opened(archive) as file, durable.new_folder(folder) as partial:
            size = os.fstat(file.fileno()).st_size
            budget = _Budget(archive, size)
            members = _zip_members if archive.name.endswith(".zip") else _tar_members
            for member in members(io.BufferedReader(file, _PIECE_BYTES), archive, budget):
                _write(member, partial / _safe(member.name, archive), archive, budget)
                progress("unpack", min(member.done_bytes, size), size)
    except CorpusError:
        raise
    except _DAMAGE as error:
        reason = str(error).partition("\n")[0].rstrip(":") or type(error).__name__
        raise CorpusError(f"{archive} is damaged: {reason}. Remove it and get it again") from error
    except OSError as error:
        raise CorpusError(
            f"cannot unpack {archive} to {folder}: {error.strerror or error}"
        ) from error


class _Budget:
    """The bytes and the files that an archive has made, and their limits."""

    def __init__(self, archive: Path, size_bytes: int) -> None:
        self._archive = archive
        self.limit_bytes = _ALWAYS_ALLOWED_BYTES + _MOST_EXPANSION * size_bytes
        self._bytes = self._files = 0

    def take_bytes(self, count: int) -> None:
        self._bytes += count
        self.require_position(self._bytes)

    def require_position(self, position: int) -> None:
        """Refuse a position in the decompressed archive that only an archive of too many bytes has."""
        if position > self.limit_bytes:
            self._refuse(f"would have more than {self.limit_bytes:,} bytes")

    def take_file(self) -> None:
        self._files += 1
        if self._files > _MOST_FILES:
            self._refuse(f"has more than {_MOST_FILES:,} files")

    def _refuse(self, why: str) -> None:
        raise CorpusError(
            f"{self._archive} {why}: such archives are refused. If you trust it, unpack it yourself and name "
            "the folder with --from"
        )


def _safe(name: str, archive: Path) -> PurePosixPath:
    path, elsewhere = PurePosixPath(name), PureWindowsPath(name)
    # A colon is of a drive or of a hidden stream of a file on Windows.
    if path.is_absolute() or ".." in elsewhere.parts or "\\" in name or ":" in name:
        raise CorpusError(
            f"{archive} has {name!r}, which would be written outside its folder: such archives are refused"
        )
    if len(path.parts) > _DEEPEST:
        raise CorpusError(
            f"{archive} has a file below {len(path.parts)} folders, expected at most {_DEEPEST}: such archives are "
            "refused"
        )
    return path


def _write(member: _Member, target: Path, archive: Path, budget: _Budget) -> None:
    budget.take_file()
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        # This fails if the file is there, also under a name that this disk takes for the same one.
        file = target.open("xb")
    except FileExistsError as error:
        raise CorpusError(
            f"{archive} has {member.name!r} twice, or under another name that is the same on this disk: such archives "
            "are refused"
        ) from error
    with file:
        while piece := member.content.read(_PIECE_BYTES):
            budget.take_bytes(len(piece))
            file.write(piece)


def _no_plain_file(archive: Path, name: str) -> CorpusError:
    return CorpusError(f"{archive} has {name!r}, which is no plain file: such archives are refused")


# ---- tar -------------------------------------------------------------------------------------------------------------


def _tar_members(raw: io.BufferedReader, archive: Path, budget: _Budget) -> Iterator[_Member]:
    with (
        _decompressed(raw) as stream,
        _opened_tar(_BoundedStream(stream, budget)) as tar,
    ):
        for member in tar:
            if member.isdir():
                budget.take_file()
                continue
            content = tar.extractfile(member) if member.isfile() else None
            if content is None:
                raise _no_plain_file(archive, member.name)
            yield _Member(member.name, content, raw.tell())


def _opened_tar(stream: Any) -> tarfile.TarFile:
    return tarfile.open(fileobj=stream, mode="r:")


@contextmanager
def _decompressed(raw: io.BufferedReader) -> Iterator[io.BufferedIOBase]:
    is_packed = raw.read(len(_GZIP)) == _GZIP
    raw.seek(0)
    if not is_packed:
        yield raw
        return
    with gzip.open(raw) as stream:
        yield stream


class _BoundedStream:
    """A stream for the tar module that refuses huge headers, and to go on after the allowed number of bytes."""

    def __init__(self, stream: io.BufferedIOBase, budget: _Budget) -> None:
        self._stream, self._budget = stream, budget

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _LONGEST_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {size:,} bytes")
        self._budget.require_position(self._stream.tell() + size)
        return self._stream.read(size)

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        self._budget.require_position(position)
        return self._stream.seek(position, whence)

    def tell(self) -> int:
        return self._stream.tell()


# ---- zip -------------------------------------------------------------------------------------------------------------


def _zip_members(raw: IO[bytes], archive: Path, budget: _Budget) -> Iterator[_Member]:
    with zipfile.ZipFile(raw) as packed:
        for member in packed.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            if member.is_dir():
                budget.take_file()
                continue
            if kind not in (0, stat.S_IFREG):
                raise _no_plain_file(archive, member.filename)
            if member.flag_bits & _ENCRYPTED:
                raise CorpusError(
                    f"{archive} is encrypted: unpack it with its password and name the folder with --from"
                )
            if member.compress_type not in _COMPRESSION:
                raise CorpusError(
                    f"{archive} has {member.filename!r}, which is neither stored nor deflated: unpack it yourself and "
                    "name the folder with --from"
                )
            with packed.open(member) as content:
                yield _Member(member.filename, content, member.header_offset + member.compress_size)
