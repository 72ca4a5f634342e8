"""Archives: they are unpacked, and what is unsafe or damaged is refused."""

import gzip
import io
import os
import stat
import tarfile
import warnings
import zipfile
from pathlib import Path

import pytest

from tests.lab.corpora.definition import names_in
from tests.lab.corpora.downloads import silent
from zloss_lab.corpora import CorpusError, archives
from zloss_lab.corpora.archives import is_archive, unpack


def tar(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def link(kind: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo("folder/link")
    member.type, member.linkname = kind, "/etc/passwd"
    return member


def zipped(path: Path, *members: tuple[str | zipfile.ZipInfo, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


def test_archives_are_known_by_their_names() -> None:
    assert [is_archive(name) for name in ("a.tar.gz", "a.zip", "a.txt", "a.txt.gz")] == [
        True,
        True,
        False,
        False,
    ]


def test_unpacking(tmp_path: Path) -> None:
    folder = tarfile.TarInfo("top")
    folder.type = tarfile.DIRTYPE
    packed = [
        tar(
            tmp_path / "a.tar.gz",
            (folder, b""),
            (tarfile.TarInfo("top/a.txt"), b"A"),
            (tarfile.TarInfo("b.txt"), b"B"),
        ),
        zipped(tmp_path / "a.zip", ("top/", b""), ("top/a.txt", b"A"), ("b.txt", b"B")),
    ]
    for archive in packed:
        seen: list[tuple[str, int, int]] = []
        target = tmp_path / f"from-{archive.name}"
        unpack(archive, target, lambda *report, seen=seen: seen.append(report))
        assert (target / "top" / "a.txt").read_bytes() == b"A"
        assert (target / "b.txt").read_bytes() == b"B"
        assert all(stage == "unpack" and 0 < done <= total for stage, done, total in seen)


@pytest.mark.parametrize(
    "name", ["/etc/evil", "../evil", "a/../../evil", "..\\evil", "C:\\evil", "C:evil"]
)
def test_unsafe_names(name: str, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    for archive in (
        tar(tmp_path / "a.tar.gz", (tarfile.TarInfo("good"), b"1"), (tarfile.TarInfo(name), b"2")),
        zipped(tmp_path / "a.zip", ("good", b"1"), (name, b"2")),
    ):
        with pytest.raises(
            CorpusError, match="would be written outside its folder: such archives are refused"
        ):
            unpack(archive, inner / "target", silent)
    assert names_in(inner) == []
    assert names_in(tmp_path) == ["a.tar.gz", "a.zip", "inner"]


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
)
def test_links_and_devices_in_a_tar(kind: bytes, tmp_path: Path) -> None:
    archive = tar(tmp_path / "a.tar.gz", (link(kind), b""))
    with pytest.raises(CorpusError, match="'folder/link', which is no plain file"):
        unpack(archive, tmp_path / "target", silent)
    assert names_in(tmp_path) == ["a.tar.gz"]


def test_links_in_a_zip(tmp_path: Path) -> None:
    member = zipfile.ZipInfo("link")
    member.external_attr = (stat.S_IFLNK | 0o777) << 16
    with pytest.raises(CorpusError, match="'link', which is no plain file"):
        unpack(zipped(tmp_path / "a.zip", (member, b"/etc/passwd")), tmp_path / "target", silent)


@pytest.mark.parametrize("name", ["a.tar.gz", "a.zip"])
def test_damaged_archives(name: str, tmp_path: Path) -> None:
    whole = tar(tmp_path / "a.tar.gz", (tarfile.TarInfo("a"), bytes(range(256)) * 100)).read_bytes()
    for content in (
        b"no archive at all",
        whole[: len(whole) // 2] if name == "a.tar.gz" else b"PK\x03\x04",
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CorpusError, match=r"is damaged: .*Remove it and get it again"):
            unpack(tmp_path / name, tmp_path / "target", silent)
        assert not (tmp_path / "target").exists()


def bombs(folder: Path, size_bytes: int) -> list[Path]:
    """Make archives of a few kilobytes that would become so many bytes."""
    zeros = bytes(size_bytes)
    packed = tar(folder / "packed.tar.gz", (tarfile.TarInfo("a"), zeros))
    many = [(tarfile.TarInfo(f"a{number}"), zeros[: size_bytes // 50]) for number in range(50)]
    header = tarfile.TarInfo("a" * 200)  # its name follows the header as a file of its own
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.GNU_FORMAT) as archive:
        archive.addfile(header)
    long_name = bytearray(content.getvalue())
    long_name[124:136] = b"%011o\0" % size_bytes
    long_name[148:156] = b" " * 8
    long_name[148:156] = b"%06o\0 " % sum(long_name[:512])
    (folder / "header.tar.gz").write_bytes(gzip.compress(bytes(long_name[:512]) + zeros))
    with zipfile.ZipFile(folder / "a.zip", "w", zipfile.ZIP_DEFLATED) as deflated:
        deflated.writestr("a", zeros)
    return [
        packed,
        tar(folder / "many.tar.gz", *many),
        folder / "header.tar.gz",
        folder / "a.zip",
    ]


def test_what_becomes_far_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in (
        ("_ALWAYS_ALLOWED_BYTES", 10**5),
        ("_MOST_EXPANSION", 2),
        ("_LONGEST_HEADER_BYTES", 2**16),
        ("_PIECE_BYTES", 2**14),
    ):
        monkeypatch.setattr(archives, name, number)
    for archive in bombs(tmp_path, 10**6):
        message = (
            "a header of 1,000,[0-9]+ bytes"
            if "header" in archive.name
            else (r"would have more than 10\d,\d+ bytes: .* unpack it yourself")
        )
        with pytest.raises(CorpusError, match=message):
            unpack(archive, tmp_path / "target", silent)
    for archive in bombs(tmp_path, 10**4):
        if "header" not in archive.name:
            unpack(archive, tmp_path / f"from-{archive.name}", silent)
    monkeypatch.setattr(archives, "_MOST_FILES", 49)
    with pytest.raises(CorpusError, match="has more than 49 files"):
        unpack(tmp_path / "many.tar.gz", tmp_path / "target", silent)
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("second", ["a.txt", "./a.txt", "a.txt/b"])
def test_a_name_that_occurs_twice(second: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the zip module warns of its own archive
        archive = zipped(tmp_path / "a.zip", ("a.txt", b"1"), (second, b"2"))
    packed = tar(
        tmp_path / "a.tar.gz", (tarfile.TarInfo("a.txt"), b"1"), (tarfile.TarInfo(second), b"2")
    )
    for path in (archive, packed):
        with pytest.raises(CorpusError, match=r"has .*a.txt' twice|cannot unpack"):
            unpack(path, tmp_path / "target", silent)
    assert not (tmp_path / "target").exists()


def test_names_that_make_thousands_of_folders(tmp_path: Path) -> None:
    name = "d/" * 1000 + "a.txt"
    for archive in (
        tar(tmp_path / "a.tar.gz", (tarfile.TarInfo(name), b"1")),
        zipped(tmp_path / "a.zip", (name, b"1")),
    ):
        with pytest.raises(CorpusError, match="has a file below 1001 folders, expected at most"):
            unpack(archive, tmp_path / "target", silent)


def test_an_encrypted_zip(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", ("a.txt", b"1"))
    content = bytearray(archive.read_bytes())
    content[6] |= 1  # the flags of the file, and those in the directory of the archive
    content[content.index(b"PK\x01\x02") + 8] |= 1
    archive.write_bytes(content)
    with pytest.raises(CorpusError, match="is encrypted: unpack it with its password"):
        unpack(archive, tmp_path / "target", silent)


def test_a_compression_that_few_archives_have(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a.txt", b"1")
    with pytest.raises(CorpusError, match="neither stored nor deflated: unpack it yourself"):
        unpack(tmp_path / "a.zip", tmp_path / "target", silent)


@pytest.mark.skipif(os.name == "nt", reason="pipes of POSIX")
@pytest.mark.parametrize("name", ["a.tar.gz", "a.zip"])
def test_a_pipe_is_no_archive(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(CorpusError, match="is a pipe or a device, not a file"):
        unpack(tmp_path / name, tmp_path / "target", silent)
