"""Limits of torch's machinery at a factored layer: each is a clear error, and no result is silently zero."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import zloss

HIDDEN, CLASSES = 6, 50


class Network(nn.Module):
    """A trunk and a factored layer, which predicts."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.trunk = nn.Linear(4, HIDDEN, device=device, dtype=torch.float64)
        self.output = zloss.FactoredLinear(
            HIDDEN, CLASSES, device=device, dtype=torch.float64, synchronous=True
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.output.logits(self.trunk(x))

    def loss(self, h: Tensor) -> Tensor:
        value: Tensor = zloss.ZLoss(a=0.2, b=8.0)(
            self.output(h, torch.arange(len(h), device=h.device))
        )
        return value


def hidden(device: torch.device) -> Tensor:
    return torch.randn(3, HIDDEN, device=device, dtype=torch.float64)


def gradient_penalty(loss: Callable[[Tensor], Tensor], h: Tensor) -> None:
    h = h.requires_grad_()
    (grad,) = torch.autograd.grad(loss(h), h, create_graph=True)
    grad.square().sum().backward()


SECOND_DERIVATIVES: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], object]] = {
    "hessian": torch.autograd.functional.hessian,
    "jvp, by a trick of two": lambda loss, h: torch.autograd.functional.jvp(loss, h, h),
    "gradient penalty": gradient_penalty,
}


@pytest.mark.parametrize("name", SECOND_DERIVATIVES)
def test_second_derivatives_are_refused(name: str, device: torch.device) -> None:
    network = Network(device)
    with pytest.raises(
        RuntimeError, match="asks for second derivatives, and this layer has first ones only"
    ):
        SECOND_DERIVATIVES[name](network.loss, hidden(device))
    assert network.output.recorded_gradient() is None


@pytest.mark.parametrize("name", ["grad", "jacrev", "vmap"])
def test_transforms_of_functions_are_refused(name: str, device: torch.device) -> None:
    network, h = Network(device), hidden(device)[None]  # vmap takes the first dimension away
    with pytest.raises(ValueError, match=r"cannot be transformed by torch\.func"):
        getattr(torch.func, name)(lambda h: network.loss(h.reshape(-1, HIDDEN)))(h)


def scripted(network: Network, _: Tensor) -> object:
    return torch.jit.script(network)


def exported(network: nn.Module, x: Tensor) -> object:
    return torch.export.export(network, (x,))


@pytest.mark.filterwarnings(
    "ignore"
)  # of torch about what is deprecated, and of what it does to any network
@pytest.mark.parametrize(
    "export", [exported, scripted, torch.jit.trace], ids=["export", "script", "trace"]
)
def test_exports_are_refused_and_told_what_to_do(
    export: Callable[[nn.Module, Tensor], object], device: torch.device
) -> None:
    network, x = Network(device), torch.randn(3, 4, device=device, dtype=torch.float64)
    with pytest.raises(
        ValueError, match=r"cannot be exported: put the nn\.Linear that its to_linear\(\) returns"
    ):
        export(network, x)
    export(nn.Sequential(network.trunk, network.output.to_linear()), x)


def test_a_penalty_on_v_is_refused(device: torch.device) -> None:
    """Nobody would apply its gradient, and V is not what it should be a penalty on."""
    network = Network(device)
    optimizer = zloss.FactoredSGD(network.output, lr=1.0)
    before = network.output.weight()
    penalty = torch.stack([parameter.square().sum() for parameter in network.parameters()]).sum()
    (network.loss(hidden(device)) + 0.1 * penalty).backward()
    with pytest.raises(
        ValueError,
        match=r"leave it out of penalties on parameters\(\), FactoredSGD has weight_decay",
    ):
        optimizer.step()
    assert torch.equal(network.output.weight(), before)
    optimizer.zero_grad()
    network.loss(hidden(device)).backward()
    optimizer.step()  # without the penalty


def test_a_tied_embedding_is_refused(device: torch.device) -> None:
    layer = Network(device).output
    embedding = nn.Embedding(CLASSES, HIDDEN, device=device, dtype=torch.float64)
    embedding.weight = layer.V
    optimizer = zloss.FactoredSGD(layer, lr=1.0)
    words = torch.arange(3, device=device)
    zloss.ZLoss(a=0.2, b=8.0)(layer(embedding(words), words + 1)).backward()
    with pytest.raises(ValueError, match="tie no embedding to it"):
        optimizer.step()
