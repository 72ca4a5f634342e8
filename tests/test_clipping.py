"""Clipping over ordinary parameters and factored layers together: one norm, as in the dense twin."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zloss
from tests.layers.twins import relative_error
from tests.twin_networks import batch, twin_networks


@pytest.mark.parametrize("max_norm", [1e-3, 1e3])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_clipping_a_whole_network(max_norm: float, accumulate: int, device: torch.device) -> None:
    """With one norm over trunk and output layer, training equals that of the dense twin under torch's own clipping."""
    factored, dense = twin_networks(device)
    trunk_sgd = torch.optim.SGD(factored.trunk.parameters(), 0.5)
    output_sgd = zloss.FactoredSGD(factored.output, 0.5)  # type: ignore[arg-type]
    dense_sgd = torch.optim.SGD(dense.parameters(), 0.5)
    for _ in range(20):
        for _ in range(accumulate):
            x, target = batch(device)
            factored(x, target).backward()
            dense(x, target).backward()
        norm = zloss.clip_grad_norm_(factored, max_norm)
        expected = nn.utils.clip_grad_norm_(dense.parameters(), max_norm)
        assert norm.item() == pytest.approx(expected.item(), rel=1e-10)
        for optimizer in (trunk_sgd, output_sgd, dense_sgd):
            optimizer.step()
            optimizer.zero_grad()
        assert relative_error(factored.output.weight(), dense.output.weight()) < 1e-10  # type: ignore[operator]
        assert relative_error(factored.trunk[0].weight, dense.trunk[0].weight) < 1e-10  # type: ignore[arg-type]


def test_clipping_takes_parameters_and_layers_in_any_mix(device: torch.device) -> None:
    factored, _ = twin_networks(device)
    factored(*batch(device)).backward()
    whole = zloss.clip_grad_norm_(factored, 1e9)
    mixed = zloss.clip_grad_norm_([*factored.trunk.parameters(), factored.output], 1e9)
    twice = zloss.clip_grad_norm_([factored, factored.output, *factored.parameters()], 1e9)
    assert whole == mixed == twice
    assert zloss.clip_grad_norm_([], 1.0) == 0


@pytest.mark.parametrize("max_norm", [1e-3, 1e3])
def test_clipping_sparse_gradients(max_norm: float, device: torch.device) -> None:
    """Rows that occur several times count as their sum, in the norm and in the step."""
    options: dict[str, Any] = {"dtype": torch.float64, "device": device}
    sparse = nn.Embedding(20, 4, sparse=True, **options)
    dense, linear = copy.deepcopy(sparse), nn.Linear(4, 3, **options)
    dense.sparse = False
    twin = copy.deepcopy(linear)
    index = torch.tensor([3, 3, 3, 7, 0, 7], device=device)
    for embedding, layer in ((sparse, linear), (dense, twin)):
        layer(embedding(index)).square().sum().backward()
    norm = zloss.clip_grad_norm_([sparse, *linear.parameters()], max_norm)
    expected = nn.utils.clip_grad_norm_([*dense.parameters(), *twin.parameters()], max_norm)
    assert norm.item() == pytest.approx(expected.item(), rel=1e-12)
    assert sparse.weight.grad is not None
    assert dense.weight.grad is not None
    assert sparse.weight.grad.is_sparse
    assert relative_error(sparse.weight.grad.to_dense(), dense.weight.grad) < 1e-12
    assert (norm > max_norm) == (max_norm < 1), "one of the two is clipped"
    for optimizer in (
        torch.optim.SGD(sparse.parameters(), 0.1),
        torch.optim.SGD(dense.parameters(), 0.1),
    ):
        optimizer.step()
    assert relative_error(sparse.weight.detach(), dense.weight.detach()) < 1e-12


def test_a_sparse_gradient_without_entries_has_no_norm(device: torch.device) -> None:
    sparse = nn.Embedding(20, 4, sparse=True, device=device)
    sparse(torch.zeros(0, dtype=torch.long, device=device)).sum().backward()
    assert zloss.clip_grad_norm_(sparse, 1.0) == 0


def test_clipping_refuses_the_bare_parameters_of_a_factored_layer(device: torch.device) -> None:
    """The parameters of a layer do not hold its gradient: the norm would be wrong, and the layer not clipped."""
    trunk, output = nn.Linear(4, 6, device=device), zloss.FactoredLinear(6, 50, device=device)
    network = nn.ModuleList([trunk, output])
    assert zloss.clip_grad_norm_(network.parameters(), 1.0) == 0, "nothing is recorded yet"
    h, target = torch.randn(3, 4, device=device), torch.randint(50, (3,), device=device)
    zloss.ZLoss(a=0.2, b=8.0)(output(trunk(h), target)).backward()
    with pytest.raises(
        ValueError, match=r"give the module itself, as in clip_grad_norm_\(model, max_norm\)"
    ):
        zloss.clip_grad_norm_(network.parameters(), 1.0)
    assert zloss.clip_grad_norm_(network, 1.0) > 0
    assert zloss.clip_grad_norm_([*trunk.parameters(), output, *output.parameters()], 1.0) > 0


def test_clipping_refuses_nonsense(device: torch.device) -> None:
    factored, _ = twin_networks(device)
    factored(*batch(device)).backward()
    with pytest.raises(ValueError, match="max_norm must be a number > 0, got 0"):
        zloss.clip_grad_norm_(factored, 0.0)
    with pytest.raises(
        ValueError, match="params_and_layers must be parameters and modules, got str"
    ):
        zloss.clip_grad_norm_(["weights"], 1.0)  # type: ignore[list-item]
    grad = factored.trunk[0].weight.grad
    assert isinstance(grad, Tensor)
    grad[0, 0] = float("nan")
    before = grad.clone()
    with pytest.raises(ValueError, match="nothing was clipped"):
        zloss.clip_grad_norm_(factored, 1.0, error_if_nonfinite=True)
    assert torch.equal(grad.nan_to_num(), before.nan_to_num())
