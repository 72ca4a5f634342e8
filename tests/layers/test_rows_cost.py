"""The cost of looked-up rows: operations and memory that do not depend on the number of classes, and none without."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import zloss
from tests.layers.test_cost import flops_of_a_step

HIDDEN = 32


def flops_of_a_step_with_rows(classes: int, rows: int, looked_up: int, device: torch.device) -> int:
    layer = zloss.FactoredLinear(HIDDEN, classes, device=device)
    optimizer = zloss.FactoredSGD(layer, lr=0.1, weight_decay=1e-4)
    h = torch.randn(rows, HIDDEN, device=device, requires_grad=True)
    target = torch.randint(classes, (rows,), device=device)
    ids = torch.randperm(classes, device=device)[:looked_up]
    layer(h, target)  # a layer is looked at when it is first used, once
    with FlopCounterMode(display=False) as counter:
        loss = zloss.ZLoss(a=0.1, b=10.0)(layer(h, target))
        (loss + layer.rows(ids).square().sum()).backward()
        zloss.clip_grad_norm_(layer, 1.0)
        optimizer.step()
    return int(counter.get_total_flops())


@pytest.mark.parametrize("looked_up", [0, 20, 200])
@pytest.mark.parametrize("rows", [10, 100])
def test_operations_do_not_depend_on_the_number_of_classes(
    rows: int, looked_up: int, device: torch.device
) -> None:
    few, many = (
        flops_of_a_step_with_rows(classes, rows, looked_up, device) for classes in (1_000, 100_000)
    )
    assert few == many


@pytest.mark.parametrize("rows", [10, 100])
def test_operations_of_a_looked_up_row(rows: int) -> None:
    """Per row: on its way in (V U), out (r U^-1), its parts of R and N, and of the norm."""
    device = torch.device("cpu")
    one, more = (flops_of_a_step_with_rows(1_000, rows, n, device) for n in (100, 200))
    vectors = 10 * HIDDEN
    # In, out and H^T X, and four products with the batch: two in X and two in the norm.
    by_rows = 3 * HIDDEN**2 + 4 * rows * HIDDEN
    # In, out and H^T [T, Z]; one in the norm.
    by_columns = 5 * HIDDEN**2
    products = by_rows if rows < HIDDEN else by_columns
    assert 2 * products <= (more - one) / 100 <= 2 * (products + vectors)


def test_repeated_ids_cost_once_on_a_cpu() -> None:
    """Shapes may depend on values there. Padding and frequent words would cost most else."""
    layer = zloss.FactoredLinear(HIDDEN, 1_000)
    ids = torch.tensor([[4, 4, 4], [9, 4, 0]])
    layer.rows(ids).sum().backward()
    record = layer.recorded_gradient()
    assert record is not None
    assert record.index.tolist() == [[0], [4], [9]]


def test_without_rows_a_step_costs_as_before() -> None:
    device = torch.device("cpu")
    without = flops_of_a_step(1_000, 10, 1, device)
    layer = zloss.FactoredLinear(HIDDEN, 1_000)
    h, target = torch.randn(10, HIDDEN), torch.randint(1_000, (10,))
    layer(h, target)
    layer.rows(target)
    optimizer = zloss.FactoredSGD(layer, lr=0.1, weight_decay=1e-4)
    with FlopCounterMode(display=False) as counter:
        zloss.ZLoss(a=0.1, b=10.0)(layer(h.requires_grad_(), target)).backward()
        optimizer.step()
    assert int(counter.get_total_flops()) == without


MEMORY_PROBE = """
import torch, zloss

def rss(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))

def train(classes):
    layer = zloss.FactoredLinear(64, classes)
    optimizer = zloss.FactoredSGD(layer, lr=1.0)
    embedding = zloss.TiedEmbedding(layer)
    for _ in range(5):
        ids = torch.randint(classes, (100, 4))
        h = embedding(ids).sum(1)
        zloss.ZLoss(a=0.1, b=10.0)(layer(h, ids[:, 0])).backward()
        zloss.clip_grad_norm_(layer, 1.0)
        optimizer.step()

train(1000)  # libraries and their buffers are not the layer's
before = rss("VmRSS")
train(1_000_000)
print(rss("VmHWM") - before)
"""


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(),
    reason="reads the peak memory of a process as Linux tells it",
)
def test_memory_of_training_with_tied_embeddings_is_that_of_one_layer() -> None:
    """No gradient of the size of the weights, and no copy of them."""
    result = subprocess.run(
        [sys.executable, "-c", MEMORY_PROBE], capture_output=True, text=True, check=True
    )
    peak_bytes, v_bytes = int(result.stdout), 1_000_000 * 64 * 4
    # Blocks of a pass over all rows, when the layer is built, as in `test_cost.py`.
    assert v_bytes <= peak_bytes <= 1.10 * v_bytes + 64 * 2**20
