"""Bars of trainings that run at the same time."""

import io
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from rich.console import Console

from reproduction.running.large_texts.training_bars import TrainingBars
from zloss_lab.evaluation import Evaluation
from zloss_lab.training import TrainingProgress


def _progress(**more: Any) -> TrainingProgress:
    told = {
        "step": 30,
        "steps": 120,
        "epoch": 0.25,
        "loss": 1.5,
        "lr": 1.0,
        "words_per_second": 2e4,
        "condition": None,
    }
    return TrainingProgress(**told | more)


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
        "one, epoch 0.25: errors top 1 80.00%, top 10 50.00%  mrr 0.3000",
        "one, epoch 0.25: done",
    ):
        assert line in shown
    assert "other: stopped" in shown
    assert (figures in shown) == is_terminal
    assert len(shown.splitlines()) == 3 or is_terminal
