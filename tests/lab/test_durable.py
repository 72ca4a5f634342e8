"""Files that two processes write at once, that a killed process leaves, and paths of devices and folders."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from zloss_lab import durable, opened_folder, writer_locks

KILLED = """
import os, signal, sys
from pathlib import Path
from zloss_lab import durable

os.replace = lambda *_, **folders: os.kill(os.getpid(), signal.SIGKILL)
durable.write_file(Path(sys.argv[1]), "half a truth")
"""

KINDS = ["file", "folder"]

posix = pytest.mark.skipif(os.name == "nt", reason="signals, pipes and locks of POSIX")


def names(folder: Path) -> list[str]:
    return sorted(place.name for place in folder.iterdir())


@posix
def test_what_a_killed_process_leaves_goes_with_the_next_write(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    durable.write_file(path, "before")
    assert subprocess.run([sys.executable, "-c", KILLED, str(path)]).returncode == -signal.SIGKILL
    left = [place.name for place in tmp_path.iterdir() if durable.is_partial(place)]
    assert (path.read_text(), len(left)) == ("before", 2), "the file and its lock"
    durable.write_file(path, "after")
    assert (path.read_text(), [place.name for place in tmp_path.iterdir()]) == (
        "after",
        ["file.json"],
    )


@posix
@pytest.mark.parametrize("kind", ["to a file", "to nothing", "to itself", "to a folder", "a pipe"])
def test_nothing_but_a_plain_file_grows(kind: str, tmp_path: Path) -> None:
    """Whoever plants a link could let a command write to any file of the user."""
    (tmp_path / "precious").write_text("precious")
    path = tmp_path / "grows"
    if kind == "a pipe":
        os.mkfifo(path)
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # else the pipe itself refuses a writer
    else:
        aims = {"to a file": "precious", "to nothing": "new", "to itself": "grows"}
        path.symlink_to(aims.get(kind, "."))
    with pytest.raises(FileExistsError, match=r"grows is a .*: remove it"):
        durable.append_to_file(path, b"words")
    if kind == "a pipe":
        assert os.read(reader, 9) == b""
        os.close(reader)
    assert names(tmp_path) == ["grows", "precious"]
    assert (tmp_path / "precious").read_text() == "precious"
    path.unlink()
    for part in (b"one", b"two"):
        durable.append_to_file(path, part)
    assert path.read_bytes() == b"onetwo"


def test_many_write_one_file_and_each_writes_it_in_whole(tmp_path: Path) -> None:
    path, seen = tmp_path / "file.json", list[int]()

    def write(number: int) -> None:
        for _ in range(20):
            durable.write_file(path, json.dumps([number] * 5000))
            seen.append(len(set(json.loads(path.read_text()))))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [1] * 80
    assert [place.name for place in tmp_path.iterdir()] == ["file.json"]


@posix
def test_a_lock_is_of_what_stands_there_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process waits for the lock. The holder finishes and renames the file, and a third process begins a new one."""
    import fcntl

    place, flock = tmp_path / "place", fcntl.flock
    place.touch()

    def late(handle: int, mode: int) -> None:
        place.replace(tmp_path / "finished")
        place.touch()
        flock(handle, mode)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(FileNotFoundError), durable.locked(place):
        pass


@contextmanager
def made(kind: str, path: Path) -> Iterator[Callable[[str], object]]:
    """Make a file or a folder, and yield the function that writes words into it."""
    if kind == "file":
        with durable.new_file(path) as file:
            yield lambda words: file.write(words.encode())
    else:
        with durable.new_folder(path) as folder:
            yield lambda words: (folder / "words").write_text(words)


def words_in(path: Path) -> str:
    return (path / "words" if path.is_dir() else path).read_text()


@posix
@pytest.mark.parametrize("kind", KINDS)
def test_what_another_one_is_writing_is_left_alone(kind: str, tmp_path: Path) -> None:
    """Two processes that fill one folder would mix their files."""
    path = tmp_path / "new"
    with made(kind, path) as write:
        write("first")
        with (
            pytest.raises(OSError, match="another process is writing it: wait until it is there"),
            made(kind, path),
        ):
            pass
    assert names(tmp_path) == ["new"]
    assert words_in(path) == "first"


@posix
def test_of_many_that_make_one_file_at_once_one_at_a_time_does(tmp_path: Path) -> None:
    path, outcomes, start = tmp_path / "new", list[str](), threading.Barrier(8)

    def write(number: int) -> None:
        start.wait()
        for _ in range(50):
            try:
                with durable.new_file(path) as file:
                    file.write(bytes([number]) * 1000)
                outcomes.append("made")
            except BlockingIOError:
                outcomes.append("refused")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 400, "no other error"
    assert "made" in outcomes
    assert len(set(path.read_bytes())) == 1
    assert names(tmp_path) == ["new"]


@pytest.mark.parametrize("kind", KINDS)
def test_systems_without_handles_of_folders_or_locks(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There the age tells what a killed process has left, such as on Windows."""
    monkeypatch.setattr(opened_folder, "_HAS_HANDLES", False)
    monkeypatch.setattr(writer_locks, "_locks", lambda *_, **__: None)
    (tmp_path / ".partial-new.lock").touch()
    for number, days in enumerate((0.9, 1.1)):
        leftover = tmp_path / f".partial-new-{number:016x}"
        leftover.touch()
        os.utime(leftover, (time.time() - days * 86400,) * 2)
    with made(kind, tmp_path / "new") as write:
        write("words")
    assert words_in(tmp_path / "new") == "words"
    assert names(tmp_path) == [f".partial-new-{0:016x}", "new"]


@pytest.mark.parametrize("kind", KINDS)
def test_names_of_any_length(kind: str, tmp_path: Path) -> None:
    """The temporary name may not be longer than file systems allow."""
    for name in ("a" * 255, "\u00e9" * 127, "a" * 200, "a" * 201):
        with made(kind, tmp_path / name) as write:
            write(name)
        assert words_in(tmp_path / name) == name
    assert len(names(tmp_path)) == 4


@posix
def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    """/dev/null stays a device too, even for a privileged user, who can write in its folder."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="nobody reads this pipe: start its reader first"):
        durable.write_file(tmp_path / "pipe", "words")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    durable.write_file(tmp_path / "pipe", "words")
    assert os.read(reader, 10) == b"words"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()


# ---- what others have put there --------------------------------------------------------------------------------------


@pytest.fixture
def treasure(tmp_path: Path) -> Iterator[Path]:
    """A folder that nothing may change, beside the folder of the test."""
    folder = tmp_path / "treasure"
    folder.mkdir()
    (folder / "words").write_text("precious")
    yield folder
    assert (names(folder), words_in(folder)) == (["words"], "precious")


@posix
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("aim", ["", "words", "nothing"])
def test_a_link_at_the_name_of_the_lock_is_refused(
    kind: str, aim: str, tmp_path: Path, treasure: Path
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    lock = place / ".partial-new.lock"
    lock.symlink_to(treasure / aim)
    with (
        pytest.raises(FileExistsError, match=r"partial-new\.lock .* is in the way, .* remove it"),
        made(kind, place / "new"),
    ):
        pass
    assert names(place) == [".partial-new.lock"]


@posix
@pytest.mark.parametrize("kind", KINDS)
def test_links_are_no_leftovers(kind: str, tmp_path: Path, treasure: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / ".partial-new.lock").touch()
    (place / f".partial-new-{0:016x}").symlink_to(treasure)
    (place / f".partial-new-{1:016x}").symlink_to(treasure / "words")
    (place / f".partial-new-{2:016x}").mkdir()
    (place / f".partial-new-{2:016x}" / "link").symlink_to(treasure)
    (place / f".partial-newer-{3:016x}").touch()
    (place / ".partial-new").symlink_to(treasure)
    with made(kind, place / "new") as write:
        write("new words")
    assert words_in(place / "new") == "new words"
    assert names(place) == [
        ".partial-new",
        f".partial-new-{0:016x}",
        f".partial-new-{1:016x}",
        f".partial-newer-{3:016x}",
        "new",
    ]


@posix
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_exchanged_is_not_renamed(kind: str, tmp_path: Path, treasure: Path) -> None:
    place = tmp_path / "place"

    def write_and_exchange() -> None:
        with made(kind, place / "new") as write:
            write("new words")
            partial = next(one for one in place.iterdir() if not one.name.endswith(".lock"))
            partial.rename(tmp_path / "elsewhere")
            partial.symlink_to(treasure)

    with pytest.raises(OSError, match=r"something else at \.partial-new-\w+: it was not renamed"):
        write_and_exchange()
    assert not (place / "new").exists()
    assert words_in(tmp_path / "elsewhere") == "new words"


@posix
def test_a_file_gets_its_name_in_the_folder_where_it_was_made(
    tmp_path: Path, treasure: Path
) -> None:
    """Somebody moves the folder away and puts a link to another folder at its place."""
    place = tmp_path / "place"
    with durable.new_file(place / "words") as file:
        file.write(b"new words")
        place.rename(tmp_path / "moved")
        place.symlink_to(treasure)
    assert names(tmp_path / "moved") == ["words"]
    assert words_in(tmp_path / "moved") == "new words"
