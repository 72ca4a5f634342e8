"""The cost of a step: operations that do not depend on the number of classes, and memory for one layer."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import zloss

HIDDEN = 32


def flops_of_a_step(classes: int, rows: int, targets: int, device: torch.device) -> int:
    layer = zloss.FactoredLinear(HIDDEN, classes, device=device)
    optimizer = zloss.FactoredSGD(layer, lr=0.1, weight_decay=1e-4)
    h = torch.randn(rows, HIDDEN, device=device, requires_grad=True)
    target = torch.randint(classes, (rows, targets), device=device)
    layer(h, target)  # a layer is looked at when it is first used, once
    with FlopCounterMode(display=False) as counter:
        zloss.ZLoss(a=0.1, b=10.0)(layer(h, target)).backward()
        optimizer.step()
    return int(counter.get_total_flops())


@pytest.mark.parametrize("targets", [1, 4])
@pytest.mark.parametrize("rows", [10, 100])
def test_operations_do_not_depend_on_the_number_of_classes(
    rows: int, targets: int, device: torch.device
) -> None:
    few, many = (flops_of_a_step(classes, rows, targets, device) for classes in (1_000, 100_000))
    assert few == many
    assert few > 2 * rows * HIDDEN * HIDDEN, "the counter saw the products"


def expected_flops(rows: int, device: torch.device) -> int:
    """The products that the derivation counts; element-wise work is not counted by torch."""
    if (
        device.type == "cuda"
    ):  # by kernels; the product in X is added in place, which torch does not count
        if rows < HIDDEN:
            # h gram, rows U, h [U^T, U_inv], H^T X, U and U_inv updates; h, hg, rows times h^T, and the B x B system.
            return 7 * 2 * rows * HIDDEN**2 + 4 * 2 * rows**2 * HIDDEN
        # h gram, rows U, K1, H^T X, h U_inv; U K1, U_inv F.
        return 5 * 2 * rows * HIDDEN**2 + 2 * 2 * HIDDEN**3
    three = 3 * 2 * rows * HIDDEN**2  # h gram, h U^T, rows U
    if rows < HIDDEN:
        # h U_inv, H^T X, U and U_inv updates; X and the B x B system.
        return three + 4 * 2 * rows * HIDDEN**2 + 3 * 2 * rows**2 * HIDDEN
    # K1, H^T [T, Z] and h U_inv; gram K1, K1 (...), U K1, K1 U_inv.
    return three + 4 * 2 * rows * HIDDEN**2 + 4 * 2 * HIDDEN**3


@pytest.mark.parametrize("rows", [10, 100])
def test_each_regime_at_its_own_best_cost(rows: int, device: torch.device) -> None:
    flops, expected = flops_of_a_step(1_000, rows, 1, device), expected_flops(rows, device)
    # The rest: products with vectors, and one y^T H.
    vectors = 12 * 2 * rows * HIDDEN
    assert expected <= flops <= expected + vectors


def flops_of_ranks(rows: int, targets: int, device: torch.device) -> int:
    layer = zloss.FactoredLinear(HIDDEN, 4096, device=device)
    h, target = (
        torch.randn(rows, HIDDEN, device=device),
        torch.randint(4096, (rows, targets), device=device),
    )
    with FlopCounterMode(display=False) as counter:
        layer.rank(h, target)
    return int(counter.get_total_flops())


def test_ranks_of_many_targets_share_their_products(device: torch.device) -> None:
    """One product for the scores of all classes, and one for those of the targets, up to as many as fit into it."""
    assert flops_of_ranks(8, 512, device) == flops_of_ranks(8, 1, device)


def test_targets_add_no_products() -> None:
    device = torch.device("cpu")
    assert flops_of_a_step(1_000, 10, 1, device) == flops_of_a_step(1_000, 10, 8, device)


def test_padding_costs_nothing() -> None:
    """On a CPU, where shapes may depend on values: a step is that of the targets alone, wherever they stand."""
    target = torch.full((4, 50), -100)
    target[0, [3, 30, 49]], target[1, 0], target[3, 20:22] = (
        torch.tensor([7, 9, 7]),
        5,
        torch.tensor([1, 0]),
    )
    layer, loss = zloss.FactoredLinear(HIDDEN, 1_000), zloss.ZLoss(a=0.1, b=10.0)
    narrow, h = copy.deepcopy(layer), torch.randn(4, HIDDEN)
    stats = layer(h, target)
    assert stats.target.shape == target.shape
    loss(stats).backward()
    grad = layer.recorded_gradient()
    assert grad is not None
    assert [part.tolist() for part in grad.entries[:2]] == [[0, 0, 0, 1, 3, 3], [7, 9, 7, 5, 1, 0]]
    loss(
        narrow(h, torch.tensor([[7, 9, 7], [5, -100, -100], [-100, -100, -100], [1, 0, -100]]))
    ).backward()
    for each in (layer, narrow):
        each.step_(20.0)
    assert torch.equal(layer.weight(), narrow.weight())


def test_on_a_gpu_targets_add_one_product_at_most(cuda: torch.device) -> None:
    """Kernels take the rows of W that belong to few targets, which is the fewest launches for one."""
    one, two, three, many = (flops_of_a_step(1_000, 10, targets, cuda) for targets in (1, 2, 3, 8))
    assert two - one == three - one == many - one == 2 * 10 * HIDDEN**2


MEMORY_PROBE = """
import torch, zloss

def rss(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))

def train(layer, steps):
    optimizer = zloss.FactoredSGD(layer, lr=100.0)
    for _ in range(steps):
        h = torch.randn(200, layer.in_features, requires_grad=True)
        zloss.ZLoss(a=0.1, b=10.0)(layer(h, torch.randint(layer.num_classes, (200,)))).backward()
        optimizer.step()

train(zloss.FactoredLinear(256, 1000), 3)  # libraries and their buffers are not the layer's
before = rss("VmRSS")
layer = zloss.FactoredLinear(256, 1_000_000)
train(layer, 3)
layer.refactor()
train(layer, 3)
print(rss("VmHWM") - before)
"""


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(),
    reason="reads the peak memory of a process as Linux tells it",
)
def test_memory_is_that_of_one_layer() -> None:
    """Construction, steps and refactor at a million classes: V and little else, never a second C x H matrix."""
    result = subprocess.run(
        [sys.executable, "-c", MEMORY_PROBE], capture_output=True, text=True, check=True
    )
    peak_bytes, v_bytes = int(result.stdout), 1_000_000 * 256 * 4
    assert v_bytes <= peak_bytes <= 1.10 * v_bytes + 64 * 2**20


def test_memory_on_a_gpu(cuda: torch.device) -> None:
    layer = zloss.FactoredLinear(256, 1_000_000, device=cuda)
    optimizer = zloss.FactoredSGD(layer, lr=100.0)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() - layer.V.nbytes
    for step in range(4):
        h = torch.randn(200, 256, device=cuda, requires_grad=True)
        zloss.ZLoss(a=0.1, b=10.0)(
            layer(h, torch.randint(1_000_000, (200,), device=cuda))
        ).backward()
        optimizer.step()
        if step == 2:
            layer.refactor()
    assert torch.cuda.max_memory_allocated() - before <= 1.10 * layer.V.nbytes + 64 * 2**20
