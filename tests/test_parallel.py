"""Several processes: the batch of all of them trains every copy of the output layer as one process would."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import zloss
from tests.processes import in_processes

PROCESSES, ROWS, STEPS, CLASSES = 2, 4, 6, 50
HEADS = (
    "factored",
    "hierarchical",
    "sampled",
)  # they cannot be inside of `DistributedDataParallel`


def make_network(name: str) -> tuple[nn.Module, zloss.Head]:
    """The random numbers of torch, from which a sampled softmax draws, have the same state in all processes."""
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Linear(6, 8), nn.Tanh()).double()
    return trunk, zloss.HeadConfig(head=name).build(8, CLASSES, dtype=torch.float64)


def whole_batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(PROCESSES * ROWS, 6, generator=generator, dtype=torch.float64)
    return x, torch.randint(CLASSES, (PROCESSES * ROWS, 2), generator=generator)


def train(
    trunk: nn.Module, output: zloss.Head, batch: Callable[[int], tuple[Tensor, Tensor]]
) -> None:
    optimizers = [torch.optim.SGD(trunk.parameters(), lr=0.1), output.sgd(lr=0.5)]
    for step in range(STEPS):
        x, target = batch(step)
        output(*zloss.gather_batch(trunk(x), target)).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def weights(trunk: nn.Module, output: zloss.Head) -> list[Tensor]:
    return [*output.state_dict().values(), *trunk.state_dict().values()]


def train_a_share(rank: int, name: str) -> list[Tensor]:
    trunk, output = make_network(name)
    own = slice(rank * ROWS, (rank + 1) * ROWS)

    def own_batch(step: int) -> tuple[Tensor, Tensor]:
        h, target = whole_batch(step)
        return h[own], target[own]

    train(DistributedDataParallel(trunk), output, own_batch)
    return weights(trunk, output)


def train_inside(rank: int, name: str) -> str:
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.output = make_network(name)

        def forward(self, x: Tensor, target: Tensor) -> Tensor:
            loss: Tensor = self.output(self.trunk(x), target)
            return loss

    network = DistributedDataParallel(Network(), find_unused_parameters=True)
    try:
        network(*whole_batch(rank))
    except ValueError as error:
        return str(error)
    return "nothing was refused"


def train_tied(rank: int, name: str) -> str:
    _, output = make_network(name)
    assert isinstance(output, zloss.SphericalOutput)
    embedding, ids = zloss.TiedEmbedding(output.layer), torch.tensor([rank])
    with torch.no_grad():
        embedding(ids)  # to evaluate is fine
    try:
        embedding(ids)
    except ValueError as error:
        return str(error)
    return "nothing was refused"


def train_sharded(rank: int, name: str) -> str:
    trunk, output = make_network(name)
    fully_shard(output, mesh=init_device_mesh("cpu", (PROCESSES,)))
    output(*zloss.gather_batch(trunk(whole_batch(rank)[0]), whole_batch(rank)[1])).backward()
    try:
        output.sgd(lr=0.5).step()
    except ValueError as error:
        return str(error)
    return "nothing was refused"


@pytest.mark.parametrize("name", HEADS)
def test_processes_train_as_one_with_the_whole_batch(name: str, tmp_path: Path) -> None:
    trunk, output = make_network(name)
    train(trunk, output, whole_batch)
    expected = weights(trunk, output)
    for found in in_processes(train_a_share, name, tmp_path):
        for ours, theirs in zip(found, expected, strict=True):
            # Sums of the same few float64 terms in another order.
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_a_factored_layer_inside_of_it_is_refused(tmp_path: Path) -> None:
    for told in in_processes(train_inside, "factored", tmp_path):
        assert "cannot train inside DistributedDataParallel" in told


def test_a_factored_layer_that_is_shared_out_is_refused(tmp_path: Path) -> None:
    for told in in_processes(train_sharded, "factored", tmp_path):
        assert "cannot train inside fully_shard" in told


def test_a_replica_of_a_factored_layer_is_refused() -> None:
    """`DataParallel` calls replicas on each GPU. The record would be lost with the replica, and nothing would train."""
    layer = zloss.FactoredLinear(4, 9)
    replica: Any = layer._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
    replica.V = layer.V * 1
    with pytest.raises(ValueError, match="cannot train inside DataParallel"):
        replica(torch.randn(3, 4), torch.tensor([1, 2, 3]))


def test_tied_embeddings_are_refused(tmp_path: Path) -> None:
    for message in in_processes(train_tied, "factored", tmp_path):
        assert "each of them would give the layer the gradients of its own ids alone" in message
