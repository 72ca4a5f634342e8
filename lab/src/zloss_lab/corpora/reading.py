"""Text files, plain or compressed, as a stream of blocks that end at the end of a line, or at least of a word.

A file is read once, from start to end, and is never in memory as a whole, however long its lines are. Text must be
UTF-8. Other bytes are refused, with their position in the error, because a guess would change the words silently.
"""

import codecs
import gzip
import hashlib
import importlib
import io
import lzma
import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from zloss_lab.corpora.errors import CorpusError

COMPRESSED = (".gz", ".xz", ".zst")
BLOCK_BYTES = 2**20
LONGEST_WORD_BYTES = 2**20  # longer stretches without a space are refused
_RAW_BYTES = 2**20
_PACKED_BYTES = 2**16  # compressed, about some hundred kilobytes of text
_ZSTD_MODULES = ("compression.zstd", "zstandard")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Block:
    """A piece of a text file."""

    text: bytes
    path: Path
    offset: int  # position of its first byte in the decompressed text
    starts_line: bool  # the block starts with the first word of a line

    def check(self, words: bytes) -> None:
        """Refuse a block that is not UTF-8 text. Only `words` are checked, the different words of the block."""
        # Zero bytes first: advice to convert the encoding does not help with an archive.
        if b"\0" in words and not self._is_utf_16:
            where = self.offset + self.text.index(b"\0")
            raise CorpusError(
                f"{self.path} is binary, not text: a zero byte at position {where:,}. Unpack an archive first; a "
                f"compressed file is read if its name ends in {', '.join(COMPRESSED)}"
            )
        try:
            words.decode()
        except UnicodeDecodeError:
            self._complain()

    def _complain(self) -> None:
        try:
            self.text.decode()
        except UnicodeDecodeError as error:
            raise CorpusError(
                f"{self.path} is not UTF-8 text: byte 0x{self.text[error.start]:02x} at position "
                f"{self.offset + error.start:,}. Convert it first, for instance: "
                f"iconv -f {'utf-16' if self._is_utf_16 else 'latin1'} -t utf-8"
            ) from None

    @property
    def _is_utf_16(self) -> bool:
        return self.offset == 0 and self.text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))


class SourceFile:
    """A text file. Its checksum is known after all of its blocks were read."""

    def __init__(self, path: Path) -> None:
        with readable(path):
            status = path.stat()
        _require_plain(path, status)
        self.path, self.size_bytes, self.mtime_ns = path, status.st_size, status.st_mtime_ns
        self._hash = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """The checksum of the file on the disk, compressed or not, as far as it has been read."""
        return self._hash.hexdigest()

    def blocks(self, report: Callable[[int], None]) -> Iterator[Block]:
        """Yield the text in blocks of about BLOCK_BYTES; `report` is called with the bytes read from the file."""
        with readable(self.path), opened(self.path) as file:
            raw: Any = io.BufferedReader(_Watched(file, self._hash.update, report), _RAW_BYTES)
            with _decompressed(raw, self.path) as stream:
                yield from _cut(stream, self.path, BLOCK_BYTES)


def text_name(path: Path) -> str:
    """Return the name of the file without the ending of a compression.

    >>> text_name(Path("data/ptb.train.txt.xz"))
    'ptb.train.txt'
    """
    return path.stem if path.suffix in COMPRESSED else path.name


def sha256_of(path: Path) -> str:
    """Return the checksum of a file, which is read in pieces."""
    with readable(path), opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def opened(path: Path) -> Iterator[io.FileIO]:
    """Open a file for reading, without a buffer. A pipe or a device is refused, because nobody may write to it."""
    # Without O_NONBLOCK this call would wait for a writer of a pipe.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with readable(path):
        handle = os.open(path, flags)
    with io.FileIO(handle, "rb") as file:
        _require_plain(path, os.fstat(handle))
        yield file


def content_of(path: Path) -> bytes:
    """Return the content of a file."""
    with readable(path), opened(path) as file:
        return file.read()


def _require_plain(path: Path, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise CorpusError(f"{path} is a folder: expected a file")
    if not stat.S_ISREG(status.st_mode):
        raise CorpusError(
            f"{path} is a pipe or a device, not a file: write its content to a file first, such as by "
            f"`cat {path} > text.txt`"
        )


def _cut(stream: IO[bytes], path: Path, size: int) -> Iterator[Block]:
    rest, offset, starts_line, is_open = b"", 0, True, False
    while piece := stream.read(size):
        text = rest + piece
        end = text.rfind(b"\n") + 1 or (_after_last_space(text) if len(text) >= size else 0)
        if not end and len(text) > max(size, LONGEST_WORD_BYTES):
            raise CorpusError(
                f"{path} is no text: {len(text):,} bytes without a space from position {offset:,} on"
            )
        if end:
            yield Block(_without_mark(text[:end], offset), path, offset, starts_line)
            is_open = text[end - 1 : end] != b"\n"
            starts_line = not is_open or (starts_line and text[:end].isspace())
        rest, offset = text[end:], offset + end
    if rest or is_open:  # the last line ends with the file
        yield Block(_without_mark(rest, offset) + b"\n", path, offset, starts_line)


def _after_last_space(text: bytes) -> int:
    return max(text.rfind(b" "), text.rfind(b"\t")) + 1


def _without_mark(text: bytes, offset: int) -> bytes:
    return text if offset else text.removeprefix(_BYTE_ORDER_MARK)


class _Watched(io.RawIOBase):
    """A file that passes all bytes that are read to a checksum and their number to a progress bar."""

    def __init__(
        self, file: Any, show: Callable[[memoryview], None], report: Callable[[int], None]
    ) -> None:
        self._file, self._show, self._report = file, show, report

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count: int = self._file.readinto(buffer)
        self._show(memoryview(buffer)[:count])
        self._report(count)
        return count


def _decompressed(raw: IO[bytes], path: Path) -> IO[bytes]:
    openers: dict[str, Callable[[IO[bytes]], Any]] = {
        ".gz": gzip.open,
        ".xz": lzma.open,
        ".zst": _open_zstd,
    }
    opened: IO[bytes] = openers[path.suffix](raw) if path.suffix in openers else raw
    return opened


def _open_zstd(raw: IO[bytes]) -> IO[bytes]:
    """Open a .zst file with the standard library of Python 3.14, or else with the package zstandard."""
    standard, package = map(_imported, _ZSTD_MODULES)
    if standard is not None:
        opened: IO[bytes] = standard.open(raw, "rb")
        return opened
    if package is not None:
        return io.BufferedReader(_Frames(raw, package.ZstdDecompressor().decompressobj), _RAW_BYTES)
    raise CorpusError(
        "to read .zst files, install zstandard (pip install zstandard), or decompress them first: zstd -d"
    )


def _imported(name: str) -> Any:
    """Return a module, or None if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


class _Frames(io.RawIOBase):
    """All frames of a .zst file.

    The file reader of zstandard itself ends without an error if the last frame is cut short.
    """

    def __init__(self, raw: IO[bytes], new_frame: Callable[[], Any]) -> None:
        self._raw, self._new_frame = raw, new_frame
        self._frame: Any = None  # None between frames
        self._packed, self._text = b"", b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._text and self._has_more():
            self._decompress()
        count = min(len(buffer), len(self._text))
        buffer[:count], self._text = self._text[:count], self._text[count:]
        return count

    def _has_more(self) -> bool:
        self._packed = self._packed or self._raw.read(_PACKED_BYTES)
        if self._frame is not None and not self._packed:
            raise EOFError("its last frame does not end")
        return bool(self._packed)

    def _decompress(self) -> None:
        self._frame = self._frame or self._new_frame()
        self._text = self._frame.decompress(self._packed)
        # This is the beginning of the next frame, if this frame has ended.
        self._packed = self._frame.unused_data
        if self._frame.eof:
            self._frame = None


def _damage() -> tuple[type[Exception], ...]:
    """Return the errors of decompressors about a damaged file, with zstd only if it was imported."""
    of_zstd = (
        module.ZstdError for name in _ZSTD_MODULES if (module := sys.modules.get(name)) is not None
    )
    return (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile, *of_zstd)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn an error about a file into a `CorpusError` of one sentence."""
    try:
        yield
    except FileNotFoundError:
        raise CorpusError(f"there is no file {path}") from None
    except _damage() as error:
        raise CorpusError(f"{path} is damaged or cut short: {error}. Get it again") from error
    except OSError as error:
        raise CorpusError(f"cannot read {path}: {error.strerror or error}") from error
