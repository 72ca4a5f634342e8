"""Helpers for tests in which preparation is interrupted."""

import os
import time
from typing import Any

import pytest


def wait_for_the_end_of(process: int) -> None:
    for _ in range(300):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail(f"process {process} is still there")


def interrupt_at(stage: str) -> Any:
    def progress(now: str, done: int, total: int) -> None:
        if now == stage:
            raise KeyboardInterrupt

    return progress
