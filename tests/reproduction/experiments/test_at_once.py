"""Several trainings of table 2 at a time: the same records, and what becomes of those that fail or are stopped."""

import io
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from _thread import interrupt_main
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from reproduction.experiments import at_once, processes
from reproduction.experiments.display import TrainingBars
from reproduction.experiments.large_texts import _alone_in
from reproduction.experiments.processes import Done, Failed, Job, Outcome, Tell, run_at_once
from tests.lab.command_line import zloss
from tests.lab.corpora.test_preparing import wait_for_the_end_of
from tests.reproduction.experiments.small import MODEL, flags
from zloss_lab.durable import locked
from zloss_lab.evaluation import Evaluation
from zloss_lab.records import Record, read_records
from zloss_lab.runs import Run
from zloss_lab.training import Progress, Watcher

ROOT = Path(__file__).parents[3]
OF_PLACE_AND_TIME = ("train_s", "alone", "device", "versions", "commit")
posix_only = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """In other processes as in this one."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def table2(corpus: Path, tmp_path: Path) -> list[object]:
    return [
        "paper",
        "table2",
        "--corpus",
        corpus,
        "--runs",
        tmp_path / "runs",
        "--records",
        tmp_path / "paper",
        *MODEL,
    ]


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all jobs, which are done in this process, as if each had been sent to another."""
    names: list[str] = []

    def run_here(jobs: Sequence[Job], most: int, bars: TrainingBars) -> dict[str, Outcome]:
        names.extend(job.name for job in jobs)
        sent = [pickle.loads(pickle.dumps(job)) for job in jobs]
        return {job.name: Done(job.work(lambda _: None, bars.tell)) for job in sent}

    monkeypatch.setattr(at_once, "run_at_once", run_here)
    return names


def records(folder: Path) -> list[Record]:
    """In the order of models and seeds, without what differs from machine to machine."""
    found = read_records(folder / "table2.jsonl")
    told = [
        {key: value for key, value in line.items() if key not in OF_PLACE_AND_TIME}
        for line in found
    ]
    return sorted(told, key=lambda line: (line["model"], line["seed"]))


def _runs(folder: Path) -> list[Run]:
    return [Run.open(config.parent) for config in folder.glob("*/config.json")]


# ---- records ---------------------------------------------------------------------------------------------------------


def test_records_are_those_of_one_after_the_other(
    table2: list[object],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = [
        *table2,
        "--epochs",
        1,
        "--seeds",
        1,
        "--models",
        "constant,Z-loss net1,H-softmax net1",
    ]
    assert zloss(*asked, "--records", tmp_path / "alone") == 0
    capsys.readouterr()
    assert zloss(*asked, "--at-once", 2) == 0
    said = capsys.readouterr().out
    for model in ("Z-loss net1", "H-softmax net1"):
        assert f"table2, text: {model}, seed 0, for 1 epoch\n" in said
        assert f"{model}, seed 0, epoch 1.00: top 1 error" in said
        assert f"{model}, seed 0, epoch 1.00: done, " in said
    assert records(tmp_path / "paper") == records(tmp_path / "alone")
    lines = read_records(tmp_path / "paper" / "table2.jsonl")
    assert [line.get("alone") for line in lines if line["model"] != "constant"] == [False, False]
    assert not (tmp_path / "runs").exists(), "runs are needed no longer"

    monkeypatch.setattr(processes, "_SPAWN", None)  # there is nothing to begin any more
    assert zloss(*asked, "--at-once", 2) == 0
    assert read_records(tmp_path / "paper" / "table2.jsonl") == lines


def test_only_what_is_missing_is_begun(
    table2: list[object], tmp_path: Path, begun: list[str]
) -> None:
    asked = [*table2, "--epochs", 1, "--models", "constant,Z-loss net1"]
    assert zloss(*asked, "--seeds", 1, "--at-once", 1) == 0
    assert begun == [], "one at a time is as without it"
    assert read_records(tmp_path / "paper" / "table2.jsonl")[1]["alone"] is True
    assert zloss(*asked[:-1], "H-softmax net1,Z-loss net1", "--seeds", 2, "--at-once", 2) == 0
    assert begun == ["H-softmax net1, seed 0", "H-softmax net1, seed 1", "Z-loss net1, seed 1"]


def test_seeds_of_a_model_have_the_rate_that_was_found_first(
    table2: list[object], tmp_path: Path, begun: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [
        *table2,
        "--epochs",
        1,
        "--models",
        "Z-loss net1",
        "--rates",
        "1e-9,0.3",
        "--try-for",
        0.2,
        "--at-once",
        2,
    ]
    asked += flags("training.score=mean_rank")  # in which some steps make a difference
    assert zloss(*asked, "--seeds", 2) == 0
    assert begun == ["Z-loss net1, learning rates", "Z-loss net1, seed 0", "Z-loss net1, seed 1"]
    found = read_records(tmp_path / "paper" / "table2.jsonl")
    assert [(line["settings"]["training.lr"], line["rates_tried"]) for line in found] == [
        (0.3, [1e-9, 0.3])
    ] * 2
    assert not (tmp_path / "runs").exists()
    begun.clear()
    capsys.readouterr()
    assert zloss(*asked, "--seeds", 4) == 0
    assert begun == ["Z-loss net1, seed 2", "Z-loss net1, seed 3"]
    assert capsys.readouterr().out.count("no others are tried") == 1


def test_what_gives_way_is_told_once(
    table2: list[object], tmp_path: Path, begun: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*table2, "--epochs", 1, "--models", "Z-loss net1", "--seeds", 2, "--at-once", 2]
    assert zloss(*asked, "--limit", 30) == 0
    capsys.readouterr()
    assert zloss(*asked, "--limit", 50) == 0
    assert capsys.readouterr().out.count("is of 30 test examples") == 2, "once for each seed"
    assert zloss(*asked, *flags("training.lr=0.5")) == 0
    said = capsys.readouterr().out
    assert said.count("will give way") == 1
    assert said.index("will give way") < said.index("seed 0, for 1 epoch")
    assert len(read_records(tmp_path / "paper" / "table2.replaced.jsonl")) == 4


def test_of_what_fails_nothing_is_told_twice(
    table2: list[object],
    begun: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = [*table2, "--epochs", 1, "--models", "Z-loss net1", "--seeds", 1, "--at-once", 2]
    assert zloss(*asked, "--limit", 30) == 0
    monkeypatch.setattr(
        at_once, "run_at_once", lambda jobs, **_: {job.name: Failed("no room") for job in jobs}
    )
    capsys.readouterr()
    assert zloss(*asked, "--limit", 50) == 1
    said, error = capsys.readouterr()
    assert said.count("is of 30 test examples") == 1
    assert "no record: table2, text, Z-loss net1, seed 0: no room" in error


# ---- mistakes and faults ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--budget", "1"), 1, "no --shared-device or --at-once then"),
        (("--epochs", "1", "--set", "training.lrr=1"), 1, "did you mean 'lr'"),
        (
            ("--epochs", "1", "--set", "training.score=top_3_error"),
            1,
            "unknown score: 'top_3_error'",
        ),
        (
            ("--epochs", "1", "--set", "training.score=perplexity"),
            1,
            "no perplexity: the head ranks words",
        ),
        (
            ("--epochs", "1", "--set", "network.head.a=-1", "--models", "Z-loss net1"),
            1,
            "a must be a finite number",
        ),
        (
            ("--epochs", "1", "--set", "training.output_weight_decay=0.1"),
            1,
            "weight_decay=0.1 would change every row",
        ),
        (("--epochs", "1", "--device", "tpu", "--limit", "9"), 1, "there is no device 'tpu'"),
        (("--epochs", "1", "--at-once", "0"), 2, "--at-once"),
    ],
)
def test_mistakes_show_before_anything_is_begun(
    arguments: tuple[str, ...],
    code: int,
    message: str,
    table2: list[object],
    tmp_path: Path,
    begun: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert zloss(*table2, "--at-once", 2, *arguments) == code
    assert capsys.readouterr().err.replace("\n", " ").count(message) == 1
    assert (begun, list(tmp_path.iterdir())) == ([], [])


def test_a_training_that_diverges_has_no_record(
    table2: list[object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*table2, "--epochs", 1, "--models", "Z-loss net1", "--seeds", 1, "--at-once", 2]
    assert zloss(*asked, *flags("training.lr=1e30")) == 1
    assert "no record: table2, text, Z-loss net1, seed 0: step" in capsys.readouterr().err
    assert not (tmp_path / "paper" / "table2.jsonl").exists()


def _go_on_after_ctrl_c(_watch: Watcher, tell: Tell) -> str:
    os.kill(os.getpid(), signal.SIGINT)  # as a terminal sends it to all processes
    time.sleep(0.1)
    tell("still there")
    return "result"


def _break(_watch: Watcher, _tell: Tell) -> None:
    raise RuntimeError("first line\nsecond line")


def _be_killed(_watch: Watcher, _tell: Tell) -> None:
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


# ---- stopped ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def interrupting(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Ctrl-C for the parent as soon as two trainings are on their way; these."""
    on_their_way: set[str] = set()
    show = TrainingBars.show

    def interrupt(self: TrainingBars, name: str, progress: Progress) -> None:
        show(self, name, progress)
        if name not in on_their_way:
            on_their_way.add(name)
            if len(on_their_way) == 2:
                signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingBars, "show", interrupt)
        yield on_their_way


@posix_only
def test_after_ctrl_c_the_same_command_goes_on(
    table2: list[object], tmp_path: Path, interrupting: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*table2, "--epochs", 10, "--models", "Z-loss net1", "--keep-runs"]
    asked += flags("training.log_every=50", "training.validate_every=10000")
    assert zloss(*asked, "--seeds", 3, "--at-once", 2) == 130
    said, error = capsys.readouterr()
    assert error == "\nstopped; the same command goes on with what is missing\n"
    assert said.count(": stopped\n") == 2
    assert "seed 2" not in said, "what was waiting is not begun"
    assert not (tmp_path / "paper" / "table2.jsonl").exists()
    runs = {run.config["training"]["seed"]: run for run in _runs(tmp_path / "runs")}
    before = {seed: run.steps()[-1] for seed, run in runs.items()}
    assert sorted(before) == [0, 1], "both have saved"

    assert zloss(*asked, "--seeds", 1, "--at-once", 2) == 0
    assert before[0] < runs[0].steps()[-1]
    assert len(list(runs[0].folder.glob("events.*"))) == 2, "it was resumed, not begun again"
    assert [line["epochs"] for line in records(tmp_path / "paper")] == [10]
    assert runs[1].steps()[-1] == before[1]


def _wait_for_ctrl_c(_watch: Watcher, tell: Tell) -> None:
    tell(str(os.getpid()))
    for _ in range(600):
        time.sleep(0.1)


ONE_JOB = """
from rich.console import Console
from tests.reproduction.experiments.test_at_once import _wait_for_ctrl_c
from reproduction.experiments.display import TrainingBars
from reproduction.experiments.processes import Job, run_at_once

if __name__ == "__main__":
    with TrainingBars(Console(), lambda text: print(text, flush=True)) as bars:
        run_at_once([Job("waiting", _wait_for_ctrl_c)], most=1, bars=bars)
"""


@posix_only
def test_nobody_outlives_the_parent(tmp_path: Path) -> None:
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
def test_who_waits_for_another_command_hears_that_it_is_to_stop(tmp_path: Path) -> None:
    """Asked by its parent, a process gets no signal, which would end the wait for a lock."""
    with ExitStack() as others:
        others.enter_context(locked(tmp_path))
        they_end = threading.Timer(5.0, others.close)
        they_end.start()
        threading.Timer(0.3, interrupt_main).start()
        with pytest.raises(KeyboardInterrupt), _alone_in(tmp_path):
            raise AssertionError("others are at it")
        assert they_end.is_alive()
        they_end.cancel()


# ---- what is shown ---------------------------------------------------------------------------------------------------


def _progress(**more: Any) -> Progress:
    told = {
        "step": 30,
        "steps": 120,
        "epoch": 0.25,
        "loss": 1.5,
        "lr": 1.0,
        "words_per_second": 2e4,
        "condition": None,
    }
    return Progress(**told | more)


def _wait_until(is_so: Callable[[], bool]) -> None:
    """A screen is drawn anew by a thread, ten times a second."""
    for _ in range(100):
        if is_so():
            return
        time.sleep(0.05)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_bar_for_each_training_where_there_is_a_screen(is_terminal: bool) -> None:
    file, figures = io.StringIO(), "epoch 0.25  loss 1.500  20,000 words/s"
    console = Console(file=file, force_terminal=is_terminal, width=120)
    tell = partial(console.print, highlight=False)
    validation = Evaluation(
        top_k_error={1: 0.8, 10: 0.5}, mean_reciprocal_rank=0.3, mean_rank=20.0, perplexity=None,
        examples=9, population=9, half_widths=None,
    )  # fmt: skip
    with TrainingBars(console, tell) as bars:
        bars.begin("one")
        bars.begin("other")
        bars.show("one", _progress())
        bars.show("one", _progress(validation=validation))
        if is_terminal:
            _wait_until(lambda: figures in file.getvalue())
        bars.end("one", "done")
        bars.end("other", "stopped")
    shown = file.getvalue()
    for line in (
        "one, epoch 0.25: top 1 error 80.0%  top 10 error 50.0%  mrr 0.300",
        "one, epoch 0.25: done",
    ):
        assert line in shown
    assert "other: stopped" in shown
    assert (figures in shown) == is_terminal
    assert len(shown.splitlines()) == 3 or is_terminal
