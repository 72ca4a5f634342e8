"""Several trainings of table 2 at a time: the same records as one after the other, faults and Ctrl-C."""

import os
import pickle
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from reproduction.running.large_texts import at_once
from reproduction.running.large_texts import jobs as job_processes
from reproduction.running.large_texts.jobs import Done, Failed, Job, JobOutcome
from reproduction.running.large_texts.training_bars import TrainingBars
from tests.reproduction.running.command_line import run, typed
from tests.reproduction.running.small import flags, lines
from zloss_lab.records import Record, read_records
from zloss_lab.runs import Run
from zloss_lab.training import TrainingProgress

OF_PLACE_AND_TIME = ("train_s", "is_alone", "device", "versions", "commit")


posix_only = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """In other processes as in this one."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all jobs, which are done in this process, as if each had been sent to another."""
    names: list[str] = []

    def run_here(jobs: Sequence[Job], most: int, bars: TrainingBars) -> dict[str, JobOutcome]:
        names.extend(job.name for job in jobs)
        sent = [pickle.loads(pickle.dumps(job)) for job in jobs]
        return {job.name: Done(job.work(lambda _: None, bars.tell)) for job in sent}

    monkeypatch.setattr(at_once, "run_at_once", run_here)
    return names


def records(folder: Path) -> list[Record]:
    """In the order of models and seeds, without what differs from machine to machine."""
    found = read_records(folder / "table2.jsonl")
    comparable = [
        {key: value for key, value in line.items() if key not in OF_PLACE_AND_TIME}
        for line in found
    ]
    return sorted(comparable, key=lambda line: (line["model"], line["seed"]))


def _runs(folder: Path) -> list[Run]:
    return [Run.open(config.parent) for config in folder.glob("*/config.json")]


def test_records_are_those_of_one_after_the_other(
    table2: list[object],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = [
        *table2,
        *typed("--epochs 1 --seeds 1 --models constant,z_loss_net1,hierarchical_softmax_net1"),
    ]
    assert run(*asked, "--records", tmp_path / "alone") == 0
    capsys.readouterr()
    assert run(*asked, "--at-once", 2) == 0
    said = capsys.readouterr().out
    for model in ("z_loss_net1", "hierarchical_softmax_net1"):
        assert f"table2, text: {model}, seed 0, for 1 epoch\n" in said
        assert f"{model}, seed 0, epoch 1.00: errors top 1" in said
        assert f"{model}, seed 0, epoch 1.00: done, " in said
    assert records(tmp_path / "records") == records(tmp_path / "alone")
    found = lines(tmp_path / "records", "table2")
    assert [line.get("is_alone") for line in found if line["model"] != "constant"] == [False, False]
    assert not (tmp_path / "runs").exists(), "runs are needed no longer"

    monkeypatch.setattr(job_processes, "_SPAWN", None)  # there is nothing to begin any more
    assert run(*asked, "--at-once", 2) == 0
    assert lines(tmp_path / "records", "table2") == found


def test_only_missing_records_are_begun(
    table2: list[object], tmp_path: Path, begun: list[str]
) -> None:
    asked = [*table2, "--epochs", 1, "--models", "constant,z_loss_net1"]
    assert run(*asked, "--seeds", 1, "--at-once", 1) == 0
    assert begun == [], "one at a time is as without it"
    assert lines(tmp_path / "records", "table2")[1]["is_alone"] is True
    models = "hierarchical_softmax_net1,z_loss_net1"
    assert run(*asked[:-1], models, "--seeds", 2, "--at-once", 2) == 0
    assert begun == [
        "hierarchical_softmax_net1, seed 0",
        "hierarchical_softmax_net1, seed 1",
        "z_loss_net1, seed 1",
    ]


def test_seeds_of_a_model_have_the_rate_that_was_found_first(
    table2: list[object], tmp_path: Path, begun: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [
        *table2,
        *typed("--epochs 1 --models z_loss_net1 --rates 1e-9,0.3 --try-for 0.2 --at-once 2"),
    ]
    asked += flags("training.score=mean_rank")  # in which some steps make a difference
    assert run(*asked, "--seeds", 2) == 0
    assert begun == ["z_loss_net1, learning rates", "z_loss_net1, seed 0", "z_loss_net1, seed 1"]
    found = lines(tmp_path / "records", "table2")
    assert [(line["settings"]["training.lr"], line["rates_tried"]) for line in found] == [
        (0.3, [1e-9, 0.3])
    ] * 2
    assert not (tmp_path / "runs").exists()
    begun.clear()
    capsys.readouterr()
    assert run(*asked, "--seeds", 4) == 0
    assert begun == ["z_loss_net1, seed 2", "z_loss_net1, seed 3"]
    assert capsys.readouterr().out.count("no others are tried") == 1


def test_replacements_are_announced_once(
    table2: list[object], tmp_path: Path, begun: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*table2, "--epochs", 1, "--models", "z_loss_net1", "--seeds", 2, "--at-once", 2]
    assert run(*asked, "--limit", 30) == 0
    capsys.readouterr()
    assert run(*asked, "--limit", 50) == 0
    assert capsys.readouterr().out.count("is of 30 test examples") == 2, "once for each seed"
    assert run(*asked, *flags("training.lr=0.5")) == 0
    said = capsys.readouterr().out
    assert said.count("new records will replace") == 1
    assert said.index("new records will replace") < said.index("seed 0, for 1 epoch")
    assert len(lines(tmp_path / "records", "table2.replaced")) == 4


def test_a_failure_repeats_no_message(
    table2: list[object],
    begun: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = [*table2, "--epochs", 1, "--models", "z_loss_net1", "--seeds", 1, "--at-once", 2]
    assert run(*asked, "--limit", 30) == 0
    monkeypatch.setattr(
        at_once, "run_at_once", lambda jobs, **_: {job.name: Failed("no room") for job in jobs}
    )
    capsys.readouterr()
    assert run(*asked, "--limit", 50) == 1
    said, error = capsys.readouterr()
    assert said.count("is of 30 test examples") == 1
    assert "no record: table2, text, z_loss_net1, seed 0: no room" in error


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
            ("--epochs", "1", "--set", "network.head.a=-1", "--models", "z_loss_net1"),
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
    assert run(*table2, "--at-once", 2, *arguments) == code
    assert capsys.readouterr().err.replace("\n", " ").count(message) == 1
    assert (begun, list(tmp_path.iterdir())) == ([], [])


def test_a_training_that_diverges_has_no_record(
    table2: list[object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*table2, "--epochs", 1, "--models", "z_loss_net1", "--seeds", 1, "--at-once", 2]
    assert run(*asked, *flags("training.lr=1e30")) == 1
    assert "no record: table2, text, z_loss_net1, seed 0: step" in capsys.readouterr().err
    assert not (tmp_path / "records" / "table2.jsonl").exists()


@pytest.fixture
def interrupting(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Ctrl-C for the parent as soon as two trainings are on their way; these."""
    on_their_way: set[str] = set()
    show = TrainingBars.show

    def interrupt(self: TrainingBars, name: str, progress: TrainingProgress) -> None:
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
    asked = [*table2, "--epochs", 10, "--models", "z_loss_net1", "--keep-runs"]
    asked += flags("training.log_every=50", "training.validate_every=10000")
    assert run(*asked, "--seeds", 3, "--at-once", 2) == 130
    said, error = capsys.readouterr()
    assert error == "\nstopped; the same command goes on with what is missing\n"
    assert said.count(": stopped\n") == 2
    assert "seed 2" not in said, "what was waiting is not begun"
    assert not (tmp_path / "records" / "table2.jsonl").exists()
    runs = {it.config["training"]["seed"]: it for it in _runs(tmp_path / "runs")}
    before = {seed: it.steps()[-1] for seed, it in runs.items()}
    assert sorted(before) == [0, 1], "both have saved"

    assert run(*asked, "--seeds", 1, "--at-once", 2) == 0
    assert before[0] < runs[0].steps()[-1]
    assert len(list(runs[0].folder.glob("events.*"))) == 2, "it was resumed, not begun again"
    assert [line["epochs"] for line in records(tmp_path / "records")] == [10]
    assert runs[1].steps()[-1] == before[1]
