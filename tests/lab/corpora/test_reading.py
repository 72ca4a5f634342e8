"""Blocks of text: they have all words, uncut, from any kind of file. Other bytes are refused with their position."""

import gzip
import hashlib
import io
import lzma
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zloss_lab.corpora import CorpusError, reading
from zloss_lab.corpora.encoding import encode_block
from zloss_lab.corpora.reading import Block, SourceFile
from zloss_lab.corpora.tokenizing import TextFormat

TEXT = "the company said it\n\nexpects \u00e9arnings of N cents\n" * 20
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
}


def blocks_of(path: Path) -> list[Block]:
    return list(SourceFile(path).blocks(lambda _: None))


def encode_all(path: Path, tokenizer: str = "whitespace") -> None:
    for block in blocks_of(path):
        encode_block(block, TextFormat(tokenizer=tokenizer))


def refuse(path: Path, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        encode_all(path)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BLOCK_BYTES", 64)
    monkeypatch.setattr(reading, "LONGEST_WORD_BYTES", 100)


@pytest.mark.parametrize("ending", COMPRESS)
def test_all_of_a_file_in_blocks(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(COMPRESS[ending](TEXT.encode()))
    read: list[int] = []
    file = SourceFile(path)
    blocks = list(file.blocks(read.append))
    assert b"".join(block.text for block in blocks).decode() == TEXT
    assert all(block.text.endswith(b"\n") and block.starts_line for block in blocks)
    assert max(len(block.text) for block in blocks) < 2 * 64
    assert [block.offset for block in blocks[:2]] == [0, len(blocks[0].text)]
    assert sum(read) == file.size_bytes == path.stat().st_size
    assert file.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


@given(st.text(alphabet="ab \n\t", max_size=300), st.integers(1, 40))
def test_blocks_of_any_size_have_the_same_words(text: str, size: int) -> None:
    whole = text if text.endswith("\n") or not text else text + "\n"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "LONGEST_WORD_BYTES", 10**6)
        blocks = list(reading._cut(io.BytesIO(text.encode()), Path("a"), size))
    for kept in (False, True):
        format_ = TextFormat(keep_empty_lines=kept)
        words = [
            word
            for block in blocks
            for word in format_.words(block.text, starts_line=block.starts_line)
        ]
        assert words == format_.words(whole.encode())


def test_a_long_line_is_cut_between_words(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("word " * 50 + "end")
    blocks = blocks_of(path)
    assert len(blocks) > 3
    assert [block.starts_line for block in blocks] == [True] + [False] * (len(blocks) - 1)
    assert b"".join(block.text for block in blocks) == path.read_bytes() + b"\n"


def test_the_last_line_needs_no_end(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for text, expected in (("a\nb", b"a\nb\n"), ("a\nb\n", b"a\nb\n"), ("", b"")):
        path.write_text(text)
        assert b"".join(block.text for block in blocks_of(path)) == expected


def test_a_byte_order_mark_is_no_word(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfthe end\n")
    assert blocks_of(path)[0].text == b"the end\n"


@pytest.mark.parametrize("tokenizer", ["whitespace", "english"])
def test_what_is_not_utf_8_is_refused_with_its_place(tokenizer: str, tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes(b"good line here\n" * 10 + "caf\u00e9 au lait\n".encode("latin1"))
    with pytest.raises(
        CorpusError, match=r"latin.txt is not UTF-8 text: byte 0xe9 at position 153\. .*iconv"
    ):
        encode_all(path, tokenizer)


def test_binary_files(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"text \0\0 and more\n")
    refuse(path, "a.bin is binary, not text: a zero byte at position 5")
    path.write_bytes(gzip.compress(b"a text under another name", mtime=0))
    refuse(
        path, r"a.bin is binary, not text: .* Unpack an archive first; .* ends in \.gz, \.xz, \.zst"
    )
    path.write_text("wide", encoding="utf-16")
    refuse(
        path,
        "a.bin is not UTF-8 text: byte 0xff at position 0. Convert it first, for instance: iconv -f utf-16",
    )
    path.write_bytes(b"x" * 1000)
    refuse(path, r"a.bin is no text: \d+ bytes without a space from position 0 on")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    refuse(tmp_path / "none.txt", "there is no file .*none.txt")
    refuse(tmp_path, "is a folder: expected a file")


@pytest.mark.parametrize("ending", [".gz", ".xz"])
def test_damaged_archives(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.txt{ending}"
    whole = COMPRESS[ending](TEXT.encode())
    path.write_bytes(whole[: len(whole) // 2])
    refuse(path, "is damaged or cut short: .* Get it again")
    path.write_bytes(b"this is no archive")
    refuse(path, "is damaged or cut short")


def test_an_error_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text(TEXT)

    def broken(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(reading._Watched, "readinto", broken)
    refuse(path, "cannot read .*a.txt: Input/output error")


def test_zst_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("compression.zstd", "zstandard"):
        monkeypatch.setitem(sys.modules, module, None)  # None makes the import fail
    path = tmp_path / "a.txt.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd")
    refuse(path, "to read .zst files, install zstandard")


@pytest.fixture
def zstandard(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the package zstandard, which Python 3.14 does not need."""
    module = pytest.importorskip("zstandard", reason="zstandard is not installed")
    monkeypatch.setitem(sys.modules, "compression.zstd", None)
    return module


def frames(zstandard: Any, *texts: bytes) -> bytes:
    return b"".join(zstandard.ZstdCompressor().compress(text) for text in texts)


def test_zst_with_many_frames(
    tmp_path: Path, zstandard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of `zstd`, of `pzstd` and of `cat a.zst b.zst`, read in tiny pieces."""
    text = TEXT.encode()
    path = tmp_path / "a.txt.zst"
    path.write_bytes(frames(zstandard, text[:333], b"", text[333:334], text[334:]))
    for size in (1, 7, 2**16):
        monkeypatch.setattr(reading, "_PACKED_BYTES", size)
        assert b"".join(block.text for block in blocks_of(path)) == text


def test_damaged_zst(tmp_path: Path, zstandard: Any) -> None:
    path = tmp_path / "a.txt.zst"
    whole = frames(zstandard, TEXT.encode(), TEXT.encode())
    for cut in (3, len(whole) // 4, len(whole) - 1):
        path.write_bytes(whole[:cut])
        refuse(
            path, r"a.txt.zst is damaged or cut short: its last frame does not end\. Get it again"
        )
    for damaged in (b"this is no archive", whole + b"and what is this?"):
        path.write_bytes(damaged)
        refuse(path, "is damaged or cut short: .*Unknown frame descriptor")
