"""Sparse gradients and training of sampled heads, on a CPU and on a GPU."""

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Generator, Tensor, nn

from tests.gpu import no_synchronisation
from tests.heads.sampled_problems import (
    CLASSES,
    COUNTS,
    ONE_TARGET,
    SEED,
    every_loss,
    every_target,
    make_batch,
    make_head,
)
from tests.layers.twins import relative_error
from zloss.heads.sampled import SampledSoftmax


@every_target
@every_loss
def test_the_gradient_has_the_rows_of_targets_and_draws(
    loss: str, target: Tensor, device: torch.device
) -> None:
    head = make_head(device, loss=loss, bias=True, num_samples=3)
    h, target = make_batch(target, device)
    head(h, target).backward()
    for parameter in head.parameters():
        assert parameter.grad is not None
        assert parameter.grad.is_sparse
        assert parameter.grad._nnz() == target.numel() + 3


@every_loss
def test_a_step_changes_those_rows_as_the_dense_step_would(loss: str, device: torch.device) -> None:
    head = make_head(device, loss=loss, bias=True, num_samples=3)
    h, target = make_batch(torch.tensor([3, 3, 9, -100]), device)
    before = copy.deepcopy(head)
    optimizer = head.sgd(0.7)
    for _ in range(2):  # gradients add up
        head(h, target).backward()
    dense = [
        parameter.grad.to_dense().clone()
        for parameter in head.parameters()
        if parameter.grad is not None
    ]
    optimizer.step()
    # The draws of two steps. The ignored target has the index 0, with a gradient of 0.
    again = Generator(device).manual_seed(SEED)
    draws = torch.cat([head.sampler.draw(3, generator=again) for _ in range(2)])
    others = torch.ones(CLASSES, dtype=torch.bool, device=device)
    others[torch.cat([target[:3], draws])] = False
    assert others.any()
    for new, old, grad in zip(head.parameters(), before.parameters(), dense, strict=True):
        assert torch.equal(new[others], old[others])
        assert relative_error(new.detach(), old.detach() - 0.7 * grad) < 1e-14
        assert not torch.equal(new[~others], old[~others])


def test_a_frozen_head_passes_gradients() -> None:
    head = make_head(bias=True).requires_grad_(False)
    h, target = make_batch(ONE_TARGET)
    head(h, target).backward()
    assert h.grad is not None
    assert h.grad.any()
    with torch.no_grad():
        assert not head(h, target).requires_grad


def test_many_targets_do_not_multiply_the_memory() -> None:
    rows, targets, samples = 8, 10, 500
    head = make_head(num_samples=samples)
    h, target = make_batch(torch.randint(CLASSES, (rows, targets)))
    sizes: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        head(h, target).backward()
    assert max(sizes) == rows * samples, "and not times the number of targets"


# ---- training --------------------------------------------------------------------------------------------------------


def make_problem(num_classes: int, hidden: int) -> Callable[[int], tuple[Tensor, Tensor]]:
    """Return a function that makes batches: classes follow Zipf's law, and h is the centre of its class plus noise."""
    centres = torch.randn(num_classes, hidden)
    frequency = 1 / torch.arange(1, num_classes + 1)

    def batch(size: int) -> tuple[Tensor, Tensor]:
        target = torch.multinomial(frequency, size, replacement=True)
        return centres[target] + 0.7 * torch.randn(size, hidden), target

    return batch


def train(
    head: nn.Module, batch: Callable[[int], tuple[Tensor, Tensor]], optimizer: torch.optim.Optimizer
) -> None:
    for _ in range(1000):
        optimizer.zero_grad()
        head(*batch(100)).backward()
        optimizer.step()


def test_training_comes_close_to_the_full_softmax() -> None:
    batch = make_problem(200, 8)
    sampled, dense = SampledSoftmax(8, 200, num_samples=40, bias=True), FullSoftmax(8, 200)
    train(sampled, batch, sampled.sgd(0.5))
    train(dense, batch, torch.optim.SGD(dense.parameters(), 0.5))
    h, target = batch(5000)
    loss, dense_loss = math.log(sampled.perplexity(h, target)), dense(h, target).item()
    # A model of the frequencies alone has a loss of 4.1. The dense head reaches some 1.6, and the noise of 40 draws may
    # cost a tenth of it.
    assert loss < 1.1 * dense_loss < 2.0


class FullSoftmax(nn.Linear):
    def forward(self, h: Tensor, target: Tensor) -> Tensor:  # type: ignore[override]
        return nn.functional.cross_entropy(super().forward(h), target)


def test_nce_learns_and_normalizes_by_itself() -> None:
    batch = make_problem(200, 8)
    head = SampledSoftmax(8, 200, num_samples=40, loss="nce", bias=True)
    nn.init.zeros_(head.linear.bias)
    h, target = batch(5000)
    assert head.logits(h).logsumexp(1).mean() > 5, "log(200), the start of an ordinary layer"
    train(head, batch, head.sgd(1.0))
    # It learns more slowly than the softmax. After equally many steps the loss is between 1.6 and 4.1, the loss of the
    # frequencies.
    assert math.log(head.perplexity(h, target)) < 3
    assert head.logits(h).logsumexp(1).mean().abs() < 0.3


def test_nce_starts_normalized() -> None:
    head = SampledSoftmax(8, 1000, loss="nce", bias=True)
    # Weights of nn.Linear are within 1/sqrt(H). So activations deviate by 0.6, and their exp is 1.2 on average.
    assert head.logits(torch.randn(50, 8)).logsumexp(1).abs().max() < 1


# ---- on a GPU --------------------------------------------------------------------------------------------------------


@every_loss
@every_target
def test_training_never_waits_for_the_device(loss: str, target: Tensor, cuda: torch.device) -> None:
    head = make_head(cuda, loss=loss, bias=True, sampler="unigram", counts=COUNTS)
    optimizer = head.sgd(0.1)
    h, target = make_batch(target, cuda)

    def step() -> None:
        optimizer.zero_grad()
        head(h, target).backward()
        optimizer.step()

    step()
    with no_synchronisation():
        for _ in range(20):
            step()


@every_loss
def test_bad_batches_on_a_gpu_teach_nothing(loss: str, cuda: torch.device) -> None:
    head = make_head(cuda, loss=loss, bias=True)
    before = copy.deepcopy(head)
    h, target = make_batch(torch.tensor([0, CLASSES, 3]), cuda)
    value = head(h, target)
    value.backward()
    head.sgd(0.1).step()
    assert value.isnan()
    assert h.grad is not None
    assert not h.grad.any()
    for new, old in zip(head.parameters(), before.parameters(), strict=True):
        assert torch.equal(new, old)
    with pytest.raises(ValueError, match="a target is out of range"):
        head.topk(h, 3)


@every_loss
def test_a_step_in_a_graph(loss: str, cuda: torch.device) -> None:
    head = make_head(cuda, loss=loss, generator=None)
    h, target = make_batch(ONE_TARGET, cuda)
    h = h.detach()
    optimizer = head.sgd(0.1)

    def step() -> Tensor:
        optimizer.zero_grad()
        value: Tensor = head(h, target)
        value.backward()
        optimizer.step()
        return value.detach()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = step()
    before, values = head.perplexity(h, target), set()
    for _ in range(100):
        graph.replay()
        values.add(value.item())
    assert len(values) == 100, "every replay draws anew"
    assert head.perplexity(h, target) < before


def test_with_a_generator_of_its_own_it_is_not_captured() -> None:
    """A graph would ignore the generator, and always draw the same classes, or fail."""
    assert SampledSoftmax(4, 10).is_capturable
    assert not SampledSoftmax(4, 10, generator=torch.Generator()).is_capturable
