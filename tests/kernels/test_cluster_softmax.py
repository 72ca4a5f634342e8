"""The softmax of a cluster by kernels against its definition in float64, also at the edges of pieces.

On a machine without a GPU they run in Triton's interpreter.
"""

from functools import partial
from types import ModuleType

import pytest
import torch
from torch import Tensor

from tests.gpu import no_synchronisation
from zloss import kernels
from zloss.heads import cluster_log_prob
from zloss.heads.cluster_log_prob import WantedExamples, log_prob_within

if not kernels.available():
    pytest.skip("triton is not installed", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("poisoned")

# Sums of up to some hundred terms of size 1 in float32. A slip in a formula gives a far larger error.
assert_close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5)


@pytest.fixture
def module() -> ModuleType:
    return kernels.load("cluster_softmax")


@pytest.fixture(autouse=True)
def by_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the kernel in the interpreter as well."""
    monkeypatch.setattr(cluster_log_prob, "_has_kernel", lambda p, weight: True)


class Problem:
    """Return random vectors, with targets for some examples."""

    def __init__(
        self, device: torch.device, rows: int, width: int, classes: int, targets: int, share: float
    ) -> None:
        self.p = torch.randn(rows, width, device=device, requires_grad=True)
        self.weight = torch.randn(classes, width, device=device, requires_grad=True)
        self.index = torch.randint(classes, (rows, targets), device=device)
        self.index[torch.rand(rows, targets, device=device) >= share] = -1

    @property
    def wanting(self) -> WantedExamples:
        wants = (self.index >= 0).any(1)
        return WantedExamples(wants.byte().argsort(descending=True, stable=True), wants.sum())

    def log_prob(self) -> Tensor:
        return log_prob_within(self.p, self.weight, self.index, self.wanting)

    def definition(self) -> Tensor:
        scores = self.p.double() @ self.weight.double().T
        own = scores.gather(1, self.index.clamp_min(0)) - scores.logsumexp(1, keepdim=True)
        return torch.where(self.index < 0, 0, own)

    def gradients(self, log_prob: Tensor, upstream: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(log_prob, (self.p, self.weight), upstream.to(log_prob.dtype))


def check(problem: Problem) -> None:
    found, expected = problem.log_prob(), problem.definition()
    upstream = torch.randn_like(found)  # also for missing targets, which must have no effect
    assert_close(found.double(), expected)
    pairs = zip(
        problem.gradients(found, upstream), problem.gradients(expected, upstream), strict=True
    )
    for ours, theirs in pairs:
        assert_close(ours, theirs)


@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
@pytest.mark.parametrize(
    ("rows", "width", "classes", "targets"),
    [
        (1, 1, 1, 1),
        (5, 3, 40, 1),
        (40, 8, 700, 2),  # several pieces and several rounds of examples
        (33, 40, 300, 3),
        (16, 16, 512, 1),  # nothing is cut off
        (20, 256, 50, 1),
    ],
)
def test_it_is_the_definition(
    rows: int, width: int, classes: int, targets: int, share: float, kernel_device: torch.device
) -> None:
    check(Problem(kernel_device, rows, width, classes, targets, share))


def test_no_examples(kernel_device: torch.device) -> None:
    problem = Problem(kernel_device, 0, 8, 300, 1, 1.0)
    log_prob = problem.log_prob()
    assert log_prob.shape == (0, 1)
    grad_p, grad_weight = problem.gradients(log_prob, log_prob)
    assert grad_p.shape == (0, 8)
    assert grad_weight.count_nonzero() == 0


@pytest.mark.parametrize("most_pieces", [3, 512])
def test_pieces_of_many_tiles_and_more_pieces_than_are_added_up_at_a_time(
    most_pieces: int,
    module: ModuleType,
    kernel_device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_ELEMENTS", 16 * 16)
    monkeypatch.setattr(module, "_PIECES", 32)
    monkeypatch.setattr(module, "_MOST_PIECES", most_pieces)
    check(Problem(kernel_device, 40, 5, 16 * 40 + 3, 2, 0.8))


def test_large_scores_do_not_overflow(kernel_device: torch.device) -> None:
    """The highest score may be in any piece: here at one end, and then at the other."""
    problem = Problem(kernel_device, 4, 2, 1000, 1, 1.0)
    with torch.no_grad():
        problem.weight.zero_()
        problem.weight[0], problem.weight[-1] = 1e3, -1e3
    check(problem)


def test_examples_that_want_nothing_are_not_looked_at(kernel_device: torch.device) -> None:
    problem = Problem(kernel_device, 20, 4, 30, 1, 0.5)
    expected = problem.definition().detach()
    with torch.no_grad():
        problem.p[problem.index[:, 0] < 0] = torch.nan
    found = problem.log_prob()
    assert_close(found.double(), expected)
    assert not any(
        gradient.isnan().any() for gradient in problem.gradients(found, torch.ones_like(found))
    )


def test_the_same_bits_every_time(kernel_device: torch.device) -> None:
    problem = Problem(kernel_device, 40, 8, 700, 2, 0.5)
    results = []
    for _ in range(2):
        found = problem.log_prob()
        results.append((found, *problem.gradients(found, torch.ones_like(found))))
    assert all(map(torch.equal, *results))


def test_nothing_waits_for_the_gpu(cuda: torch.device) -> None:
    problem = Problem(cuda, 40, 8, 700, 2, 0.5)
    wanting = problem.wanting

    def step() -> None:
        log_prob_within(problem.p, problem.weight, problem.index, wanting).sum().backward()

    step()  # compiles the kernels
    with no_synchronisation():
        step()
