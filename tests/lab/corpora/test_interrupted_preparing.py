"""Preparation that is interrupted, killed, or without room on the disk leaves nothing behind."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lab.corpora.definition import (
    names_in,
    sentences,
    write,
)
from tests.lab.corpora.interruptions import interrupt_at, wait_for_the_end_of
from tests.lab.corpora.small_texts import TRAIN
from zloss_lab.corpora import CorpusError, building, prepare, reading
from zloss_lab.corpora.encoding import Encoder
from zloss_lab.corpora.tokenizing import TextFormat


@pytest.mark.parametrize(
    ("stage", "workers"), [("read", 0), ("read", 1), ("count", 0), ("write", 0)]
)
def test_interruption_leaves_nothing(stage: str, workers: int, tmp_path: Path) -> None:
    path = write(tmp_path, {"a.txt": TRAIN * 30}) / "a.txt"
    with pytest.raises(KeyboardInterrupt):
        prepare(path, tmp_path / "made" / "out", workers=workers, progress=interrupt_at(stage))
    assert names_in(tmp_path) == ["a.txt"]


@pytest.mark.skipif(os.name == "nt", reason="locks of POSIX")
def test_the_lock_of_a_process_that_was_killed_at_its_end_is_removed(tmp_path: Path) -> None:
    path = write(tmp_path, {"a.txt": TRAIN * 30}) / "a.txt"
    first = prepare(path, tmp_path / "made" / "out")
    (tmp_path / "made" / ".partial-out.lock").touch()
    assert prepare(path, tmp_path / "made" / "out").manifest == first.manifest
    assert [one.name for one in (tmp_path / "made").iterdir()] == ["out"]


PREPARE_AND_WAIT = """
import multiprocessing, signal, sys, time
from zloss_lab.corpora import prepare

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background has it ignored

def wait(stage, done, total):
    if multiprocessing.active_children():
        print(multiprocessing.active_children()[0].pid, flush=True)
        time.sleep(60)

if __name__ == "__main__":
    prepare(sys.argv[1], sys.argv[2], workers=1, progress=wait)
"""


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_a_process_that_is_ended(sent: signal.Signals, tmp_path: Path) -> None:
    """The worker ends with the process. After Ctrl-C nothing is left; after a kill the next run removes the rest."""
    path = (
        write(
            tmp_path,
            {
                "in/a.txt": sentences(f"w{i % 99}" for i in range(4 * 10**5)),
                "wait.py": PREPARE_AND_WAIT,
            },
        )
        / "in"
    )
    command = [sys.executable, str(tmp_path / "wait.py"), str(path), str(tmp_path / "made" / "out")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        assert len(names_in(tmp_path / "made")) == 2, "the folder and its lock"
        process.send_signal(sent)
    assert process.returncode == -sent
    wait_for_the_end_of(worker)
    assert (tmp_path / "made").exists() == (sent == signal.SIGKILL)
    prepare(path, tmp_path / "made" / "out")
    assert names_in(tmp_path / "made") == ["out"]


def test_a_worker_that_dies(tmp_path: Path) -> None:
    text = TRAIN * 30

    class Deadly(str):
        """The name of a tokenizer that ends the worker process which reads it."""

        def __reduce__(self) -> Any:
            return os._exit, (3,)

    path = write(tmp_path, {"a.txt": text}) / "a.txt"
    encoder = Encoder(TextFormat(), workers=1)
    object.__setattr__(encoder.text, "boundary", Deadly("<eos>"))
    with (
        pytest.raises(
            CorpusError, match=r"a worker process ended unexpectedly: .*Try fewer workers"
        ),
        encoder,
    ):
        list(encoder.encode(reading.SourceFile(path).blocks(lambda _: None)))


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, {"a.txt": TRAIN * 30}) / "a.txt"

    def full(*_: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(building, "_write_split", full)
    with pytest.raises(CorpusError, match=r"the disk of .*out is full\. Nothing was left there"):
        prepare(path, tmp_path / "out")
    assert names_in(tmp_path) == ["a.txt"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_disk_that_is_really_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, {"a.txt": TRAIN * 30}) / "a.txt"
    monkeypatch.setattr(building, "_NUMBERS", "/dev/full")
    with pytest.raises(CorpusError, match=r"the disk of .*out is full"):
        prepare(path, tmp_path / "out")
    assert names_in(tmp_path) == ["a.txt"]


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    path = write(tmp_path, {"a.txt": TRAIN * 30}) / "a.txt"
    with pytest.raises(
        CorpusError, match=r"cannot write the corpus .*a.txt/out: the file .*a.txt is in the way"
    ):
        prepare(path, path / "out")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(CorpusError, match=r"cannot write the corpus .*link/out: "):
        prepare(path, tmp_path / "link" / "out")
    assert names_in(tmp_path) == ["a.txt", "link"]
