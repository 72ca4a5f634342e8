"""Archives that want to write elsewhere, to fill the disk or to confuse: they are unpacked rightly or refused.

An archive has some harmless files and up to three that are not, in a random order. Some archives are damaged too.
"""

import gzip
import io
import random
import stat
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from unittest.mock import patch

from tests.campaign.attack import Attack, FellError
from tests.campaign.hostile_names import hostile_name
from tests.campaign.snapshots import require_unchanged, snapshot
from zloss_lab.corpora import CorpusError, archives

# The limits of an attempt are small, so that a bomb is small too. The right ones would take seconds.
_LIMITS = {
    "_ALWAYS_ALLOWED_BYTES": 2**16,
    "_MOST_EXPANSION": 4,
    "_MOST_FILES": 40,
    "_LONGEST_HEADER_BYTES": 2**14,
    "_PIECE_BYTES": 2**12,
}
_BOMB_BYTES = 2**19


@dataclass
class _Content:
    """What an archive has: plain files in their order, and whether it must be refused."""

    files: list[tuple[str, bytes]]
    must_be_refused: bool = False
    is_known: bool = True  # the archive has these files if it is unpacked

    def plain(self, name: str, data: bytes) -> None:
        self.files.append((name, data))


def _harmless(chance: random.Random) -> str:
    return "/".join(
        chance.choice(["a", "b.txt", "data", "\u00e9", "x y"]) for _ in range(chance.randint(1, 3))
    )


def _name(chance: random.Random, folder: Path) -> str:
    return _harmless(chance) if chance.random() < 0.6 else hostile_name(chance, folder)


def _data(chance: random.Random) -> bytes:
    return chance.randbytes(chance.choice([0, 1, 10, 600, 5000]))


# ---- tar -------------------------------------------------------------------------------------------------------------

_TYPES = {
    "link": tarfile.SYMTYPE,
    "hard link": tarfile.LNKTYPE,
    "character device": tarfile.CHRTYPE,
    "block device": tarfile.BLKTYPE,
    "pipe": tarfile.FIFOTYPE,
    "unknown": b"Z",
}


def _tar(chance: random.Random, folder: Path) -> tuple[bytes, _Content]:
    content, packed = _Content([]), io.BytesIO()
    form = chance.choice([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
    with tarfile.open(fileobj=packed, mode="w", format=form) as tar:
        for _ in range(chance.choice([1, 2, 3, 6, 50])):
            # A name that the format does not take is left out.
            try:
                _add_to_tar(chance, tar, _name(chance, folder), folder, content)
            except (ValueError, UnicodeError):
                continue
    plain = packed.getvalue()
    if chance.random() < 0.1:
        plain = _with_a_false_size(chance, plain)
        content.is_known = False
    return plain if chance.random() < 0.3 else gzip.compress(plain, 1), content


def _add_to_tar(
    chance: random.Random, tar: tarfile.TarFile, name: str, folder: Path, content: _Content
) -> None:
    member, data = tarfile.TarInfo(name), b""
    kind = chance.random()
    if kind < 0.1:
        member.type = tarfile.DIRTYPE
    elif kind < 0.2:
        member.type = _TYPES[chance.choice(sorted(_TYPES))]
        member.linkname = chance.choice(["a", "../../outside", str(folder / "outside" / "secret")])
    elif kind < 0.23:
        data = bytes(_BOMB_BYTES)
    else:
        data = _data(chance)
    member.mode, member.size = chance.choice([0, 0o644, 0o4777]), len(data)
    tar.addfile(member, io.BytesIO(data))
    if member.type in _TYPES.values():
        content.must_be_refused = True
    elif member.type != tarfile.DIRTYPE:
        content.plain(name, data)
    # Readers cut a name at a zero byte, or do not.
    content.is_known &= "\0" not in name


def _with_a_false_size(chance: random.Random, plain: bytes) -> bytes:
    """Replace the size in the first header, and mend the checksum of the header."""
    changed = bytearray(plain)
    size = chance.choice([-512, -1, 2**33, 2**62, 2**40 + 1])
    changed[124:136] = (
        b"\x80" + size.to_bytes(11, "big")
        if size >= 0
        else b"\xff" + (size.to_bytes(11, "big", signed=True))
    )
    if chance.random() < 0.5:
        changed[156:157] = chance.choice([b"L", b"K", b"x", b"g", b"S", b"0", b"5"])
    changed[148:156] = b" " * 8
    changed[148:156] = b"%06o\0 " % sum(changed[:512])
    return bytes(changed)


# ---- zip -------------------------------------------------------------------------------------------------------------

_MODES = [0, 0, 0, stat.S_IFREG, stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK]
_METHODS = [
    zipfile.ZIP_STORED,
    zipfile.ZIP_DEFLATED,
    zipfile.ZIP_DEFLATED,
    zipfile.ZIP_BZIP2,
    zipfile.ZIP_LZMA,
]


def _zip(chance: random.Random, folder: Path) -> tuple[bytes, _Content]:
    content, packed = _Content([]), io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(packed, "w") as archive:
        warnings.simplefilter("ignore")  # of names that occur twice
        for _ in range(chance.choice([1, 2, 3, 6, 50])):
            try:
                _add_to_zip(chance, archive, _name(chance, folder), content)
            except (ValueError, UnicodeError, zipfile.LargeZipFile):
                continue
    data = bytearray(packed.getvalue())
    if chance.random() < 0.1 and content.files:
        at = data.find(b"PK\x01\x02")
        data[6] |= 1
        data[at + 8] |= 1
        # A folder or a link at the first place is passed over or refused before.
        content.is_known = False
    return bytes(data), content


def _add_to_zip(
    chance: random.Random, archive: zipfile.ZipFile, name: str, content: _Content
) -> None:
    mode = chance.choice(_MODES) if chance.random() < 0.3 else 0
    data = bytes(_BOMB_BYTES) if chance.random() < 0.03 else _data(chance)
    member = zipfile.ZipInfo(name)
    member.external_attr = (mode | 0o777) << 16
    method = chance.choice(_METHODS) if chance.random() < 0.2 else zipfile.ZIP_DEFLATED
    archive.writestr(member, data, compress_type=method)
    is_folder = member.filename.endswith("/")
    if is_folder:
        return
    content.must_be_refused |= mode not in (0, stat.S_IFREG) or method > zipfile.ZIP_DEFLATED
    content.plain(member.filename, data)


# ---- the attempt -----------------------------------------------------------------------------------------------------


def _damaged(chance: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    if chance.random() < 0.3:
        return bytes(changed[: chance.randrange(len(changed))])
    for _ in range(chance.choice([1, 1, 5, 50])):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


def _attempt(
    kind: str, make: Callable[[random.Random, Path], tuple[bytes, _Content]]
) -> Callable[[random.Random, Path], None]:
    def attempt(chance: random.Random, folder: Path) -> None:
        (folder / "outside").mkdir()
        (folder / "outside" / "secret").write_text("precious")
        (folder / "place").mkdir()
        data, content = make(chance, folder)
        if chance.random() < 0.25 and data:
            data = _damaged(chance, data)
            content.is_known = content.must_be_refused = False
        archive = folder / "place" / f"archive.{kind}"
        archive.write_bytes(data)
        target, before = folder / "place" / "target", snapshot(folder)
        try:
            with patch.dict(vars(archives), _LIMITS):
                archives.unpack(archive, target, lambda *_: None)
        except CorpusError as error:
            if target.exists() or "\n" in str(error).strip():
                raise FellError(f"refused, but not in one line without a trace: {error}") from error
        else:
            _require_right(target, content)
        require_unchanged(before, snapshot(folder, without=target))

    return attempt


def _require_right(target: Path, content: _Content) -> None:
    found = [place for place in target.rglob("*") if not place.is_dir()]
    if any(place.is_symlink() or not place.is_file() for place in found):
        raise FellError(f"something else than plain files was made: {found}")
    if not content.is_known:
        return
    expected = {PurePosixPath(name): data for name, data in content.files}
    if content.must_be_refused or len(expected) != len(content.files):
        raise FellError("an archive was unpacked that must be refused")
    made = {PurePosixPath(place.relative_to(target)): place.read_bytes() for place in found}
    if made != expected:
        raise FellError(
            f"expected the files {sorted(map(str, expected))}, got {sorted(map(str, made))}"
        )


ATTACKS = [
    Attack(
        key="tar_archives",
        title="malicious .tar archives",
        attempt=_attempt("tar.gz", _tar),
        tries_in_tests=150,
    ),
    Attack(
        key="zip_archives",
        title="malicious .zip archives",
        attempt=_attempt("zip", _zip),
        tries_in_tests=150,
    ),
]
