"""Files that two processes write at once, that a killed process leaves, and paths of devices and folders."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from zloss_lab import durable

KILLED = """
import os, signal, sys
from pathlib import Path
from zloss_lab import durable

os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
durable.write_file(Path(sys.argv[1]), "half a truth")
"""

posix = pytest.mark.skipif(os.name == "nt", reason="signals, pipes and locks of POSIX")


@posix
def test_what_a_killed_process_leaves_goes_with_the_next_write(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    durable.write_file(path, "before")
    assert subprocess.run([sys.executable, "-c", KILLED, str(path)]).returncode == -signal.SIGKILL
    left = [place.name for place in tmp_path.iterdir() if durable.is_partial(place)]
    assert (path.read_text(), len(left)) == ("before", 1)
    durable.write_file(path, "after")
    assert (path.read_text(), [place.name for place in tmp_path.iterdir()]) == (
        "after",
        ["file.json"],
    )


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


@posix
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_another_one_is_writing_is_left_alone(kind: str, tmp_path: Path) -> None:
    """Two processes that fill one folder would mix their files."""
    path = tmp_path / "new"

    def filled(words: str) -> None:
        with durable.new_file(path) if kind == "file" else durable.new_folder(path) as partial:
            place = partial if kind == "file" else partial / "words"
            place.write_text(words)
            if words == "first":
                with pytest.raises(
                    OSError, match="another process is writing it: wait until it is there"
                ):
                    filled("second")
            assert place.read_text() == words

    filled("first")
    assert [place.name for place in tmp_path.iterdir()] == ["new"]
    assert (path if kind == "file" else path / "words").read_text() == "first"


@posix
def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    """/dev/null stays a device too, even for a privileged user, who can write in its folder."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    durable.write_file(tmp_path / "pipe", "words")
    assert os.read(reader, 10) == b"words"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()
