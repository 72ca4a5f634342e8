"""Dropout and precision: what is for training only, for the trunk only, and for the head only."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import zloss
from tests.gpu import no_synchronisation
from tests.lab.small_networks import batch, build, every_head, small, trunk_parameters
from zloss_lab.hidden import RectifiedLinear
from zloss_lab.networks import NetworkConfig, NgramNetwork


def test_dropout_is_for_training_only(device: torch.device) -> None:
    network = build(small(dropout=0.5, hidden=(400, 400)), device)
    context, _ = batch(device)
    assert not torch.equal(network.hidden(context), network.hidden(context))
    network.eval()
    h = network.hidden(context)
    assert torch.equal(network.hidden(context), h)
    network.train()
    dropped = (network.hidden(context) == 0).float().mean() - (h == 0).float().mean()
    # Dropout removes half of the values that are not 0 already, which are about half of all.
    assert 0.1 < dropped < 0.5


@every_head
def test_bfloat16_is_for_the_trunk_only(head: str, device: torch.device) -> None:
    network = build(small(head, precision="bf16"), device)
    exact = build(small(head), device)
    exact.load_state_dict(network.state_dict())
    context, target = batch(device)
    h = network.hidden(context)
    assert h.dtype == torch.float32
    # 8 bits of mantissa, two layers, a few dozen terms each.
    torch.testing.assert_close(
        h, exact.hidden(context), rtol=0, atol=0.02 * exact.hidden(context).max().item()
    )
    assert not torch.equal(h, exact.hidden(context))
    network(context, target).backward()
    assert all(p.dtype == torch.float32 for p in network.parameters() if p.is_floating_point())
    for parameter in trunk_parameters(network):
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32
        assert (
            parameter.grad.coalesce().values().isfinite().all()
            if parameter.grad.is_sparse
            else True
        )
    for optimizer in network.optimizers(lr=0.1):
        optimizer.step()


@pytest.mark.parametrize("tf32", [True, False])
def test_a_hidden_layer_is_its_definition_and_leaves_the_setting_alone(
    tf32: bool, device: torch.device
) -> None:
    layer = RectifiedLinear(6, 4, tf32=tf32, device=device, dtype=torch.float64)
    x = torch.randn(5, 6, device=device, dtype=torch.float64, requires_grad=True)
    matmul: Any = torch.backends.cuda.matmul
    before = (
        matmul.fp32_precision if hasattr(torch.backends, "fp32_precision") else matmul.allow_tf32
    )
    expected = F.relu(F.linear(x, layer.weight, layer.bias))
    assert 0 < int((expected == 0).sum()) < expected.numel(), "some of each kind"
    torch.testing.assert_close(layer(x), expected)
    assert torch.autograd.gradcheck(lambda x, w, b: torch.func.functional_call(layer, {"weight": w, "bias": b}, x), (
        x, layer.weight, layer.bias
    ))  # fmt: skip
    after = (
        matmul.fp32_precision if hasattr(torch.backends, "fp32_precision") else matmul.allow_tf32
    )
    assert after == before


def test_a_hidden_layer_does_not_hide_what_is_not_a_number(device: torch.device) -> None:
    """A NaN must reach the loss, because a loss that is NaN stops the training."""
    layer = RectifiedLinear(6, 4, device=device)
    with torch.no_grad():
        layer.weight[2, 3] = torch.nan
    y = layer(torch.ones(5, 6, device=device))
    assert y.isnan().sum(0).tolist() == [0, 0, 5, 0]
    y.backward(torch.ones_like(y))
    assert layer.bias.grad is not None
    assert layer.bias.grad[2] == 5, "as of torch's own"


def test_tf32_rounds_the_trunk_on_a_gpu(cuda: torch.device) -> None:
    options: dict[str, Any] = {"embedding": 64, "hidden": (256, 256)}
    network, exact = build(small(precision="tf32", **options), cuda), build(small(**options), cuda)
    exact.load_state_dict(network.state_dict())
    context, target = batch(cuda, rows=64)
    h = network.hidden(context)
    assert not torch.equal(h, exact.hidden(context))
    torch.testing.assert_close(
        h, exact.hidden(context), rtol=0, atol=0.005 * exact.config.embedding_scale
    )
    for model in (network, exact):
        model(context, target).backward()
    grads = [[p.grad for p in model.layers.parameters()] for model in (network, exact)]
    for tf32, float32 in zip(*grads, strict=True):
        assert tf32 is not None
        assert float32 is not None
        assert 0 < (tf32 - float32).norm() < 0.01 * float32.norm()


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_a_step_does_not_wait_for_the_device(precision: Any, cuda: torch.device) -> None:
    network = build(small(precision=precision, dropout=0.1), cuda)
    context, target = batch(cuda)
    optimizers = network.optimizers(lr=0.1)

    def step() -> None:
        network(context, target).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    step()
    with no_synchronisation():
        step()


@pytest.mark.parametrize(("precision", "expected"), [("float32", False), ("tf32", True)])
def test_the_head_learns_in_its_own_precision(precision: Any, expected: bool) -> None:
    """The code after it computes in the precision from before."""
    seen = []

    class Spy(nn.Module):
        def forward(self, h: Tensor, target: Tensor) -> Tensor:
            seen.append(is_tf32())
            return h.sum()

    head = zloss.HeadConfig(head="dense")
    network = NgramNetwork(
        NetworkConfig(context=2, embedding=3, hidden=(4,), head_precision=precision, head=head),
        num_classes=10,
    )
    optimizers = network.optimizers(lr=0.1)
    network.head = Spy()  # type: ignore[assignment]
    network.learn(torch.zeros(2, 2, dtype=torch.long), torch.zeros(2, dtype=torch.long), optimizers)
    assert (seen, is_tf32()) == ([expected], False)


def is_tf32() -> bool:
    matmul: Any = torch.backends.cuda.matmul
    return bool(
        matmul.fp32_precision == "tf32"
        if hasattr(torch.backends, "fp32_precision")
        else matmul.allow_tf32
    )
