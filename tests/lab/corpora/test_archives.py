"""Archives: they are unpacked, and what is unsafe or damaged is refused."""

import io
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.lab.corpora.definition import names_in
from tests.lab.corpora.downloads import silent
from zloss_lab.corpora import CorpusError
from zloss_lab.corpora.fetching import is_archive, unpack


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
