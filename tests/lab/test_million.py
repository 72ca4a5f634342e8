"""The demonstration learns, measures what it says it measures, and meets mistakes with a sentence."""

import dataclasses
import io
import sys

import pytest
import torch
from rich.console import Console

from zloss_lab import million
from zloss_lab.comparison import Progress, TrainingError
from zloss_lab.million import DemoConfig, DemoResult, main, run_demo

TINY = DemoConfig(
    classes=300, hidden=16, inputs=16, batch=32, steps=400, lr=10.0, held_out=500, dense_steps=2
)
TINY_OPTIONS = ["--classes", "300", "--hidden", "8", "--batch", "16", "--steps", "60"]


@pytest.fixture(scope="module")
def result() -> DemoResult:
    return run_demo(TINY)


def test_it_learns(result: DemoResult) -> None:
    assert result.before.top_k_error[1] > 0.95
    assert result.after.top_k_error[1] < 0.6
    assert result.after.top_k_error[1] < result.most_frequent.top_k_error[1] - 0.2
    assert result.after.mean_reciprocal_rank > result.before.mean_reciprocal_rank + 0.4


def test_what_it_measures_is_sane(result: DemoResult) -> None:
    for quality in (result.before, result.after, result.most_frequent):
        errors = [quality.top_k_error[k] for k in (1, 10, 100)]
        assert errors == sorted(errors, reverse=True)
        assert 1 - errors[0] <= quality.mean_reciprocal_rank <= 1
    assert 0 <= result.unseen < result.after.top_k_error[1]
    assert result.condition >= 1 - 1e-9
    assert 0 < TINY.steps * result.step_ms / 1e3 < 10 * result.training_s
    assert result.weight_bytes == 4 * 300 * 16


def test_what_it_measures_of_the_dense_layer(result: DemoResult) -> None:
    dense = result.dense
    assert dense is not None
    assert (dense.weight_bytes, dense.gradient_bytes, dense.logit_bytes) == (
        4 * 300 * 16,
        4 * 300 * 16,
        4 * 300 * 32,
    )
    assert dense.step_ms > 0
    assert (
        dense.peak_bytes is None
        or result.peak_bytes is None
        or dense.peak_bytes >= result.peak_bytes > 2**20
    )


def test_a_seed_fixes_the_run_and_leaves_the_callers_generator_alone(result: DemoResult) -> None:
    state = torch.get_rng_state()
    again = run_demo(TINY)
    assert torch.equal(torch.get_rng_state(), state)
    assert again.after == result.after
    assert run_demo(dataclasses.replace(TINY, seed=1)).after != result.after


def test_a_dense_layer_that_would_not_fit_is_left_out() -> None:
    config = dataclasses.replace(TINY, steps=1, dense_limit_bytes=TINY.dense_bytes - 1)
    assert run_demo(config).dense is None


def test_progress_is_reported() -> None:
    reports: list[Progress] = []
    run_demo(dataclasses.replace(TINY, steps=100), reports.append)
    training = [report for report in reports if report.stage == "training"]
    assert [report.step for report in training] == [50, 100]
    assert [report.lr for report in training] == sorted(
        (report.lr for report in training), reverse=True
    )
    assert all(report.loss > 0 and report.condition >= 1 - 1e-9 for report in training)


def test_too_large_a_learning_rate_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TrainingError, match="step 1 with learning rate 1e\\+30"):
        run_demo(dataclasses.replace(TINY, lr=1e30))
    assert main([*TINY_OPTIONS, "--lr", "1e30"]) == 1
    assert "Try a smaller --lr" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--classes", "1"], "--classes must be at least 2, got 1"),
        (["--classes", "many"], "invalid int value: 'many'"),
        (["--classes", "1" + "0" * 15], "of memory at least, this machine has"),
        (["--hidden", "0"], "--hidden must be at least 1, got 0"),
        (["--batch", "-3"], "--batch must be at least 1, got -3"),
        (["--steps", "0"], "--steps must be at least 1, got 0"),
        (["--seed", "-1"], "--seed must be at least 0, got -1"),
        (["--seed", str(2**32)], "--seed must be below 2^32"),
        (["--lr", "0"], "--lr must be a finite number > 0, got 0.0"),
        (["--lr", "nan"], "--lr must be a finite number > 0, got nan"),
        (["--momentum", "0.9"], "unrecognized arguments: --momentum"),
    ],
)
def test_wrong_options(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(options)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(TINY_OPTIONS) == 0
    out, err = capsys.readouterr()
    for text in (
        "300 classes",
        "top-1 error",
        "most frequent classes",
        "after training",
        "dense softmax",
        "peak",
        "60/60",
    ):
        assert text in out
    assert "nan" not in out
    assert err == ""


def test_lines_where_there_is_no_screen(capsys: pytest.CaptureFixture[str]) -> None:
    """Every stage, and of training ten moments, though it reports each 50 steps."""
    assert main([*TINY_OPTIONS[:-1], "1000"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "/1000" in line]
    assert [line.split("  ")[1] for line in lines if line.startswith("training")] == [
        f"{step}/1000" for step in range(100, 1001, 100)
    ]
    assert lines[0] == "making the task  0/1000"
    assert lines[-1] == "timing dense softmax  1000/1000"


def test_the_screen_without_dense_layer(result: DemoResult) -> None:
    screen = io.StringIO()
    million.show(
        Console(file=screen), TINY, dataclasses.replace(result, dense=None, peak_bytes=None)
    )
    assert "not run: needs 0.00 GB" in screen.getvalue()
    assert "not measured" in screen.getvalue()


def test_interruption(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object) -> DemoResult:
        raise KeyboardInterrupt

    monkeypatch.setattr(million, "run_demo", interrupted)
    assert main(TINY_OPTIONS) == 130
    assert "Interrupted" in capsys.readouterr().out


def test_without_rich(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)  # Python's way to say: not there
    assert main(TINY_OPTIONS) == 1
    assert "pip install 'zloss[lab]'" in capsys.readouterr().err
