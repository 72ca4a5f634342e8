"""Input embeddings that are rows of the output layer: they train as one dense matrix would, and belong to it."""

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import zloss
from tests.layers.test_exactness import EXACT
from tests.layers.twins import relative_error

WIDTH, CLASSES, PADDING = 6, 40, -1
LOSS = zloss.ZLoss(a=0.2, b=6.0)


class Network(nn.Module):
    """Embeddings below a hidden layer, below the output layer that has the rows."""

    def __init__(self, output: zloss.FactoredLinear | zloss.DenseLinear) -> None:
        super().__init__()
        # Before the layer that it belongs to: the order must not matter.
        self.embedding = zloss.TiedEmbedding(output, padding_idx=PADDING)
        self.hidden = nn.Linear(
            WIDTH, WIDTH, dtype=output.weight().dtype, device=output.weight().device
        )
        self.output: Any = output

    def forward(self, items: Tensor, target: Tensor) -> Tensor:
        loss: Tensor = LOSS(self.output(self.hidden(self.embedding(items).sum(1)).tanh(), target))
        return loss


def make_network(device: torch.device, *, bias: bool = False) -> Network:
    output = zloss.FactoredLinear(
        WIDTH, CLASSES, bias=bias, dtype=torch.float64, device=device, synchronous=True
    )
    return Network(output)


def batch(device: torch.device, rows: int = 5) -> tuple[Tensor, Tensor]:
    items = torch.randint(-1, CLASSES, (rows, 4), device=device)
    return items, torch.randint(CLASSES, (rows,), device=device)


def dense_twin(network: Network) -> Network:
    dense = zloss.DenseLinear.from_linear(network.output.to_linear())
    twin = Network(dense)
    twin.hidden.load_state_dict(network.hidden.state_dict())
    return twin


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [3, 20])
def test_a_tied_network_trains_as_the_dense_one(
    rows: int, bias: bool, device: torch.device
) -> None:
    network = make_network(device, bias=bias)
    twin = dense_twin(network)
    optimizers = [
        torch.optim.SGD(network.hidden.parameters(), lr=0.5),
        zloss.FactoredSGD(network.output, lr=0.5, weight_decay=1e-3),
        torch.optim.SGD(twin.hidden.parameters(), lr=0.5),
        torch.optim.SGD(twin.output.parameters(), lr=0.5, weight_decay=1e-3),
    ]
    for _ in range(40):
        items, target = batch(device, rows)
        for each in (network, twin):
            each(items, target).backward()
        norms = (
            zloss.clip_grad_norm_(network, 0.5),
            nn.utils.clip_grad_norm_(twin.parameters(), 0.5),
        )
        assert relative_error(*norms) <= EXACT
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        assert relative_error(network.output.weight(), twin.output.weight()) <= EXACT
        assert relative_error(network.hidden.weight, twin.hidden.weight) <= EXACT


def test_lookups_are_those_of_torch(device: torch.device) -> None:
    network = make_network(device, bias=True)
    ids = torch.randint(CLASSES, (2, 3), device=device)
    expected = F.embedding(ids, network.output.weight())
    assert relative_error(network.embedding(ids), expected) <= 1e-14


def test_padding_is_zero_and_has_no_gradient(device: torch.device) -> None:
    layer: zloss.FactoredLinear = make_network(device).output
    for padding in (PADDING, 0, 7):
        embedding = zloss.TiedEmbedding(layer, padding_idx=padding)
        found = embedding(torch.tensor([[padding, 3], [padding, padding]], device=device))
        assert not found[0, 0].any()
        assert not found[1].any()
        assert found[0, 1].any()
        found.sum().backward()
        before = layer.weight()
        layer.step_(1.0)
        moved = (layer.weight() - before).abs().amax(1) > 1e-12
        assert moved.nonzero()[:, 0].tolist() == [3]


def test_a_bad_id_is_refused(device: torch.device) -> None:
    network = make_network(device)
    with pytest.raises(ValueError, match="id -2 is out of range"):
        network.embedding(torch.tensor([PADDING, -2], device=device))


def test_the_layer_is_registered_once(device: torch.device) -> None:
    network = make_network(device)
    untied = {f"output.{name}" for name in network.output.state_dict()}
    assert set(network.state_dict()) == untied | {"hidden.weight", "hidden.bias"}
    assert list(network.embedding.parameters()) == []
    assert list(network.embedding.children()) == []
    names = [name for name, _ in network.named_parameters(remove_duplicate=False)]
    assert [name for name in names if name.endswith("V")] == ["output.V"]


def copy_by_pickle(network: Network) -> Network:
    file = io.BytesIO()
    torch.save(network, file)
    file.seek(0)
    loaded: Network = torch.load(file, weights_only=False)
    return loaded


@pytest.mark.parametrize("copied", [copy.deepcopy, copy_by_pickle])
def test_a_copy_is_tied_to_its_own_layer(
    copied: Callable[[Network], Network], device: torch.device
) -> None:
    network = make_network(device)
    network(*batch(device)).backward()
    network.output.step_(1.0)
    twin = copied(network)
    layer: zloss.FactoredLinear = twin.output
    assert twin.embedding.layer is layer
    assert layer is not network.output
    before = network.output.weight()
    twin(*batch(device)).backward()
    assert network.output.recorded_gradient() is None
    layer.step_(1.0)
    assert torch.equal(network.output.weight(), before)
    ids = torch.arange(CLASSES, device=device)
    assert relative_error(twin.embedding(ids), twin.output.weight()) <= 1e-14


def test_conversions_and_checkpoints_stay_tied(device: torch.device) -> None:
    network, ids = make_network(device), torch.arange(CLASSES, device=device)
    network(*batch(device)).backward()
    network.output.step_(1.0)
    weight = network.output.weight()
    network.float()
    assert network.embedding(ids).dtype == torch.float32
    assert relative_error(network.embedding(ids), weight) <= 1e-6
    other = make_network(device)
    other.load_state_dict(network.state_dict())
    assert other.embedding.layer is other.output
    assert relative_error(other.embedding(ids), weight) <= 1e-6
    assert other.output.training
    other.eval()
    assert not other.output.training


def test_frozen_and_without_grad_nothing_is_recorded(device: torch.device) -> None:
    network = make_network(device)
    with torch.no_grad():
        network(*batch(device))
    network.output.requires_grad_(False)
    network(*batch(device)).backward()
    assert network.output.recorded_gradient() is None
    assert network.hidden.weight.grad is not None


def test_any_spherical_layer_and_no_other_can_be_tied(device: torch.device) -> None:
    ids = torch.tensor([3], device=device)
    for kind in (zloss.DenseLinear, zloss.GramLinear):
        layer = kind(WIDTH, CLASSES, device=device)
        embedding = zloss.TiedEmbedding(layer)
        embedding(ids).sum().backward()
        assert layer.linear.weight.grad is not None
        assert repr(embedding) == f"TiedEmbedding({CLASSES}, {WIDTH}, layer={kind.__name__})"
    with pytest.raises(ValueError, match="got Linear"):
        zloss.TiedEmbedding(nn.Linear(WIDTH, CLASSES))  # type: ignore[arg-type]
    head = zloss.HeadConfig().build(WIDTH, CLASSES)
    with pytest.raises(ValueError, match=r"give head\.layer"):
        zloss.TiedEmbedding(head)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore")  # of the compiler about its own doing
def test_a_compiled_network_takes_the_same_steps(device: torch.device) -> None:
    network = make_network(device)
    twin = copy.deepcopy(network)
    compiled = torch.compile(twin, backend="aot_eager")  # another one would want a C++ compiler
    for _ in range(3):
        items, target = batch(device)
        network(items, target).backward()
        compiled(items, target).backward()
        for each in (network, twin):
            each.output.step_(1.0)
        assert relative_error(twin.output.weight(), network.output.weight()) <= EXACT
