"""Jobs in processes of their own: faults, Ctrl-C and the end of the parent."""

import io
import os
import signal
import subprocess
import sys
import threading
import time
from _thread import interrupt_main
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from rich.console import Console

from reproduction.running.large_texts.jobs import Done, Failed, Job, run_at_once
from reproduction.running.large_texts.run_folders import reserved
from reproduction.running.large_texts.training_bars import TrainingBars
from reproduction.running.messages import Tell
from tests.lab.corpora.interruptions import wait_for_the_end_of
from zloss_lab.durable import locked
from zloss_lab.training import TrainingWatcher

ROOT = Path(__file__).parents[4]


posix_only = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """In other processes as in this one."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def _go_on_after_ctrl_c(_watch: TrainingWatcher, tell: Tell) -> str:
    os.kill(os.getpid(), signal.SIGINT)  # as a terminal sends it to all processes
    time.sleep(0.1)
    tell("still there")
    return "result"


def _break(_watch: TrainingWatcher, _tell: Tell) -> None:
    raise RuntimeError("first line\nsecond line")


def _be_killed(_watch: TrainingWatcher, _tell: Tell) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@posix_only
def test_one_that_fails_leaves_the_others_alone(capfd: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []
    jobs = [Job("killed", _be_killed), Job("broken", _break), Job("deaf", _go_on_after_ctrl_c)]
    with TrainingBars(Console(file=io.StringIO()), told.append) as bars:
        outcomes = run_at_once(jobs, most=2, bars=bars)
    why = "its process was ended by signal 9, and has not said why"
    assert outcomes == {
        "killed": Failed(why),
        "broken": Failed("RuntimeError: first line"),
        "deaf": Done("result"),
    }
    assert list(outcomes) == ["killed", "broken", "deaf"]
    assert sorted(told[:2]) == ["broken: RuntimeError: first line", f"killed: {why}"]
    assert told[2:] == ["still there", "deaf: done, 3 of 3"]
    assert capfd.readouterr().err.count("Traceback") == 1, "of the error that nobody has thought of"


def _wait_for_ctrl_c(_watch: TrainingWatcher, tell: Tell) -> None:
    tell(str(os.getpid()))
    for _ in range(600):
        time.sleep(0.1)


ONE_JOB = """
from rich.console import Console
from tests.reproduction.running.large_texts.test_jobs import _wait_for_ctrl_c
from reproduction.running.large_texts.training_bars import TrainingBars
from reproduction.running.large_texts.jobs import Job, run_at_once

if __name__ == "__main__":
    with TrainingBars(Console(), lambda text: print(text, flush=True)) as bars:
        run_at_once([Job("waiting", _wait_for_ctrl_c)], most=1, bars=bars)
"""


@posix_only
def test_no_process_outlives_its_parent(tmp_path: Path) -> None:
    (tmp_path / "one_job.py").write_text(ONE_JOB)
    places = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src")))}
    command = [sys.executable, str(tmp_path / "one_job.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=places) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
    wait_for_the_end_of(worker)


@pytest.fixture
def hears_ctrl_c() -> Iterator[None]:
    """Also where tests run in the background of a shell, which has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@posix_only
@pytest.mark.usefixtures("hears_ctrl_c")
def test_a_process_that_waits_for_another_can_be_stopped(tmp_path: Path) -> None:
    """Asked by its parent, a process gets no signal, which would end the wait for a lock."""
    with ExitStack() as others:
        others.enter_context(locked(tmp_path))
        they_end = threading.Timer(5.0, others.close)
        they_end.start()
        threading.Timer(0.3, interrupt_main).start()
        with pytest.raises(KeyboardInterrupt), reserved(tmp_path):
            raise AssertionError("others are at it")
        assert they_end.is_alive()
        they_end.cancel()
