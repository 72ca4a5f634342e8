"""`torch.compile` of a network with a factored layer takes the same steps."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import zloss
from tests.graphs import Graphs


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.output = zloss.FactoredLinear(16, 300)
        self.loss = zloss.ZLoss(a=0.1, b=10)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        loss: Tensor = self.loss(self.output(self.trunk(x), target))
        return loss

    def step(self, loss: Tensor) -> None:
        loss.backward()
        for optimizer in (
            torch.optim.SGD(self.trunk.parameters(), 0.1),
            zloss.FactoredSGD(self.output, 5.0),
        ):
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.filterwarnings("ignore")  # of the compiler about its own doing
def test_a_compiled_network_takes_the_same_steps(device: torch.device) -> None:
    plain = Network().to(device)
    twin = copy.deepcopy(plain)
    compiled = torch.compile(
        twin, backend="aot_eager"
    )  # the compiler itself would want a C++ compiler
    for _ in range(3):
        x, target = torch.randn(6, 8, device=device), torch.randint(300, (6,), device=device)
        expected, loss = plain(x, target), compiled(x, target)
        torch.testing.assert_close(loss, expected)
        plain.step(expected)
        twin.step(loss)
    torch.testing.assert_close(twin.output.weight(), plain.output.weight())


@pytest.mark.filterwarnings("ignore")
def test_fullgraph_says_what_to_do(device: torch.device) -> None:
    torch.compiler.reset()
    network = Network().to(device)
    x, target = torch.randn(6, 8, device=device), torch.randint(300, (6,), device=device)
    works: list[Callable[[], Tensor]] = [
        lambda: network(x, target),
        lambda: network.output.rows(target).sum(),
    ]
    for work in works:
        with pytest.raises(torch._dynamo.exc.Unsupported, match="only the layers below with it"):
            torch.compile(work, backend=Graphs(), fullgraph=True)()
    below = torch.compile(network.trunk, backend=Graphs(), fullgraph=True)
    torch.testing.assert_close(below(x), network.trunk(x))


@pytest.mark.filterwarnings("ignore")
def test_steps_compile_nothing_anew(device: torch.device) -> None:
    torch.compiler.reset()  # other tests have compiled the same code
    network = Network().to(device)
    in_training, in_validation = Graphs(), Graphs()
    compiled = torch.compile(network, backend=in_training)
    best = torch.compile(lambda x: network.output.topk(network.trunk(x), 3), backend=in_validation)
    seen = []
    for _ in range(5):
        x, target = torch.randn(6, 8, device=device), torch.randint(300, (6,), device=device)
        network.step(compiled(x, target))
        torch.testing.assert_close(best(x), network.output.topk(network.trunk(x), 3))
        seen.append(len(in_validation))
    assert len(in_training) == 2, "the trunk and the loss"
    assert seen[0] == seen[-1]
