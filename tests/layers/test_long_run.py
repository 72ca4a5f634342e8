"""20,000 steps in float32 stay on the path of dense float64 SGD."""

import pytest
import torch

from benchmarks.long_run import LongRun, compare_with_dense


@pytest.mark.slow
def test_a_long_run_in_float32(device: torch.device) -> None:
    run = LongRun(classes=1000, hidden=24, batch=32, lr=50.0)
    factored, dense, *_ = compare_with_dense(run, device)
    assert factored.finite
    assert factored.refactors is not None
    assert factored.refactors >= 20
    assert factored.last_loss < 0.6 * factored.first_loss, "the learning rate really trains"
    assert factored.weights_moved > 1
    assert factored.weight_error <= 1e-4
    assert factored.largest_loss_error <= 1e-5
    # Dense float32 SGD rounds every weight on every step. The factored layer rounds the rows it touches, and all of
    # them at a refactor. A condition of at most 10 amplifies that, so the error may be 10 times as large.
    assert factored.weight_error <= 10 * dense.weight_error + 1e-6
