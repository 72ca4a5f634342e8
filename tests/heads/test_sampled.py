"""Sampled softmax and noise-contrastive estimation, against slow definitions that see the logits of all classes."""

import copy
import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from tests.gpu import no_synchronisation
from tests.layers.twins import relative_error
from zloss.heads.sampled import SampledSoftmax
from zloss.heads.samplers import Sampler, UniformSampler, UnigramSampler

HIDDEN, CLASSES, SAMPLES = (
    5,
    12,
    20,
)  # more samples than classes: there are repeated draws, and targets among them
COUNTS = torch.arange(CLASSES) * 5 % 7 + 1
SEED = 11

# The probabilities of the classes by the definition of each sampler, up to a factor.
WEIGHTS: dict[str, Callable[[int], float]] = {
    "uniform": lambda c: 1.0,
    "log_uniform": lambda c: math.log((c + 2) / (c + 1)),
    "unigram": lambda c: float(COUNTS[c]) ** 0.75,
}
SAMPLER_OPTIONS: dict[str, dict[str, Any]] = {
    "uniform": {"sampler": "uniform"},
    "log_uniform": {"sampler": "log_uniform"},
    "unigram": {"sampler": "unigram", "counts": COUNTS},
}
every_sampler = pytest.mark.parametrize("sampler", WEIGHTS)
every_loss = pytest.mark.parametrize("loss", ["softmax", "nce"])

ONE_TARGET = torch.tensor([3, 0, -100, 3, 11, 0, 7])
# A class twice in a row of targets, targets ignored in part and altogether.
THREE_TARGETS = torch.tensor(
    [[3, 1, 2], [0, 0, 5], [-100] * 3, [3, -100, 0], [11, -100, -100], [2, 4, 2], [1, 1, 1]]
)
TARGETS = {"K=1": ONE_TARGET, "K=3": THREE_TARGETS}
every_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())


def make_head(device: torch.device | str = "cpu", **options: Any) -> SampledSoftmax:
    """A head whose draws start from `SEED`, with weights large enough for the loss to be curved."""
    torch.manual_seed(0)
    defaults: dict[str, Any] = {
        "num_samples": SAMPLES,
        "dtype": torch.float64,
        "generator": Generator(device).manual_seed(SEED),
    }
    head = SampledSoftmax(HIDDEN, CLASSES, device=device, **defaults | options)
    for parameter in head.parameters():
        nn.init.normal_(parameter)
    return head


def draws_of(head: SampledSoftmax) -> list[int]:
    """The first draws of a head from `make_head`."""
    generator = Generator(head.linear.weight.device).manual_seed(SEED)
    draws: list[int] = head.sampler.draw(head.num_samples, generator=generator).tolist()
    return draws


def make_batch(target: Tensor, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    h = torch.randn(len(target), HIDDEN, dtype=torch.float64, device=device, requires_grad=True)
    return h, target.to(device)


# ---- the slow definition ---------------------------------------------------------------------------------------------


def slow_loss(
    logits: Tensor,  # (C,)
    t: int,
    draws: list[int],
    sampler: str,
    loss: str,
    remove_hits: bool = True,
) -> Tensor:
    """One example, one target, term by term."""
    total = math.fsum(WEIGHTS[sampler](c) for c in range(CLASSES))
    expected = [len(draws) * WEIGHTS[sampler](c) / total for c in range(CLASSES)]
    if loss == "nce":
        terms = [((expected[s] + logits[s].exp()) / expected[s]).log() for s in draws]
        terms.append(((logits[t].exp() + expected[t]) / logits[t].exp()).log())
        return torch.stack(terms).sum()
    parts = [logits[s].exp() / expected[s] for s in draws if s != t or not remove_hits]
    return torch.stack([logits[t].exp(), *parts]).sum().log() - logits[t]


def slow_losses(head: SampledSoftmax, h: Tensor, target: Tensor, sampler: str) -> Tensor:  # (B,)
    """One value per example: the mean over its targets, 0 where there is none."""
    draws, logits = draws_of(head), head.linear(h)
    rows = []
    for row, classes in zip(logits, target.reshape(len(h), -1).tolist(), strict=True):
        losses = [
            slow_loss(row, t, draws, sampler, head.loss, head.remove_accidental_hits)
            for t in classes
            if t != -100
        ]
        rows.append(torch.stack(losses).mean() if losses else row.new_zeros(()))
    return torch.stack(rows)


def slow_reduction(
    per_example: Tensor, target: Tensor, reduction: str, weight: Tensor | None
) -> Tensor:
    if weight is not None:
        per_example = per_example * weight
    if reduction == "none":
        return per_example
    counted = (target.reshape(len(target), -1) != -100).any(1).sum()
    return per_example.sum() / (counted if reduction == "mean" else 1)


def gradients(head: SampledSoftmax, h: Tensor) -> list[Tensor]:
    """Of h and of all parameters, as ordinary tensors; the next backward starts from zero."""
    assert h.grad is not None
    grads = [h.grad]
    for parameter in head.parameters():
        assert parameter.grad is not None
        grads.append(parameter.grad.to_dense())
    h.grad = None
    head.zero_grad()
    return grads


def assert_as_defined(
    head: SampledSoftmax, h: Tensor, target: Tensor, sampler: str, weight: Tensor | None = None
) -> None:
    """Value and gradients, with an upstream gradient that differs from example to example where it can."""
    value = head(h, target, weight=weight)
    upstream = torch.rand_like(value) + 0.5
    (value * upstream).sum().backward()
    grads = gradients(head, h)
    expected = slow_reduction(slow_losses(head, h, target, sampler), target, head.reduction, weight)
    (expected * upstream).sum().backward()
    # Sums of some 20 terms of size 1 to 100 in float64: rounding is below 1e-13 of the largest.
    assert relative_error(value, expected) < 1e-12
    for grad, expected_grad in zip(grads, gradients(head, h), strict=True):
        assert relative_error(grad, expected_grad) < 1e-12


@every_target
@every_loss
@every_sampler
def test_value_and_gradients(sampler: str, loss: str, target: Tensor, device: torch.device) -> None:
    head = make_head(device, loss=loss, bias=True, **SAMPLER_OPTIONS[sampler])
    h, target = make_batch(target, device)
    assert set(draws_of(head)) & set(target.flatten().tolist()), "some draws hit a target"
    assert len(set(draws_of(head))) < SAMPLES, "some are repeated"
    assert_as_defined(head, h, target, sampler)


@every_target
@every_loss
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("bias", [False, True])
def test_reductions_and_row_weights(
    reduction: str, bias: bool, loss: str, target: Tensor, device: torch.device
) -> None:
    head = make_head(device, loss=loss, reduction=reduction, bias=bias)
    h, target = make_batch(target, device)
    weight = torch.linspace(-1, 3, len(target), dtype=torch.float64, device=device)
    assert_as_defined(head, h, target, "log_uniform", weight)


@every_target
def test_hits_may_stay(target: Tensor) -> None:
    head = make_head(remove_accidental_hits=False)
    assert_as_defined(head, *make_batch(target), "log_uniform")


@every_loss
def test_gradient_of_the_bias_alone(loss: str) -> None:
    head = make_head(loss=loss, bias=True)
    head.linear.weight.requires_grad_(False)
    h, target = make_batch(THREE_TARGETS)
    head(h.detach(), target).backward()
    assert head.linear.weight.grad is None
    assert head.linear.bias.grad is not None
    grad = head.linear.bias.grad.to_dense()
    head.zero_grad()
    slow_reduction(
        slow_losses(head, h.detach(), target, "log_uniform"), target, "mean", None
    ).backward()
    assert relative_error(grad, head.linear.bias.grad) < 1e-12


@every_loss
@every_target
def test_ignored_examples_count_for_nothing(
    loss: str, target: Tensor, device: torch.device
) -> None:
    head = make_head(device, loss=loss, bias=True, reduction="none")
    h, target = make_batch(target, device)
    value = head(h, target)
    value.sum().backward()
    assert h.grad is not None
    assert value[2] == 0
    assert not h.grad[2].any()
    head.zero_grad()
    head(h, torch.full_like(target, -100)).sum().backward()
    for parameter in head.parameters():
        assert parameter.grad is not None
        assert not parameter.grad.to_dense().any()


@every_loss
def test_a_batch_without_targets_or_rows_has_mean_zero(loss: str) -> None:
    head = make_head(loss=loss)
    h, target = make_batch(ONE_TARGET)
    assert head(h, torch.full_like(target, -100)) == 0
    assert head(h[:0], target[:0]) == 0


# ---- draws that are prescribed ---------------------------------------------------------------------------------------


class Prescribed(Sampler):
    """A sampler that draws what it is told, from a distribution that it is told."""

    def __init__(self, q: Tensor) -> None:
        super().__init__(len(q))
        self.q, self.draws = q, torch.zeros(0, dtype=torch.long)

    def draw(self, num_samples: int, *, generator: Generator | None = None) -> Tensor:
        assert len(self.draws) == num_samples
        return self.draws

    def log_prob(self, classes: Tensor) -> Tensor:
        return self.q.log()[classes]


def test_a_step_with_nothing_but_hits() -> None:
    sampler = Prescribed(torch.full((CLASSES,), 1 / CLASSES, dtype=torch.float64))
    head = make_head(sampler=sampler, num_samples=2)
    sampler.draws = torch.tensor([4, 4])
    for target in (torch.tensor([4, 4]), torch.tensor([[4, 4], [4, 4]])):
        h, target = make_batch(target)
        value = head(h, target)
        value.backward()
        assert value == 0
        assert not any(grad.any() for grad in gradients(head, h)), "0, and not NaN"


def test_targets_that_are_never_drawn() -> None:
    counts = COUNTS.clone()
    counts[3] = counts[7] = 0
    head = make_head(sampler="unigram", counts=counts)
    for target in TARGETS.values():
        h, target = make_batch(target)
        value = head(h, target)
        value.backward()
        assert value.isfinite()
        assert all(grad.isfinite().all() for grad in gradients(head, h))


# ---- expectations ----------------------------------------------------------------------------------------------------
#
# With three classes the loss depends on how often each was drawn, and there are few enough such counts to sum over all
# of them with their multinomial probabilities: these are expectations, not means of a sample.

THREE = 3
Q = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)


def all_draws(num_samples: int) -> Iterator[tuple[float, Tensor]]:
    """Every outcome of the draws, up to their order, with its probability."""
    for first, second in itertools.product(range(num_samples + 1), repeat=2):
        counts = torch.tensor([first, second, num_samples - first - second])
        if counts[2] >= 0:
            log_ways = math.lgamma(num_samples + 1) - torch.lgamma(counts.double() + 1).sum()
            probability = (log_ways + (counts * Q.log()).sum()).exp().item()
            yield probability, torch.arange(THREE).repeat_interleave(counts)


class SignFlipped(SampledSoftmax):
    """Wrong: log(S q) is added."""

    def _per_target(self, own: Tensor, drawn: Tensor, index: Tensor, draws: Tensor) -> Tensor:
        return super()._per_target(own, drawn + 2 * self._log_expected(draws), index, draws)


class TargetCorrected(SampledSoftmax):
    """Wrong: log(S q) is subtracted from the activation of the target as well."""

    def _per_target(self, own: Tensor, drawn: Tensor, index: Tensor, draws: Tensor) -> Tensor:
        return super()._per_target(own - self._log_expected(index), drawn, index, draws)


def with_hits(*args: Any, **options: Any) -> SampledSoftmax:
    """Wrong: the target is counted twice."""
    return SampledSoftmax(*args, remove_accidental_hits=False, **options)


WRONG = [SignFlipped, TargetCorrected, with_hits]
LOGITS = torch.tensor([0.3, 1.1, -0.6], dtype=torch.float64)  # of an example whose h is 1


def expectations(make: Callable[..., SampledSoftmax], num_samples: int) -> tuple[Tensor, Tensor]:
    """The expected normaliser, from the loss, and the expected gradient, for target 1."""
    sampler = Prescribed(Q)
    head = make(1, THREE, num_samples=num_samples, sampler=sampler, dtype=torch.float64)
    head.linear.weight.data[:, 0] = LOGITS
    normalizer, gradient = torch.zeros(()).double(), torch.zeros(THREE).double()
    for probability, sampler.draws in all_draws(num_samples):
        loss = head(torch.ones(1, 1, dtype=torch.float64), torch.tensor([1]))
        (grad,) = torch.autograd.grad(loss, head.linear.weight)
        normalizer += probability * (loss.detach() + LOGITS[1]).exp()
        gradient += probability * grad.to_dense()[:, 0]
    return normalizer, gradient


def normalizer_error(make: Callable[..., SampledSoftmax], num_samples: int) -> float:
    return float((expectations(make, num_samples)[0] - LOGITS.exp().sum()).abs())


def gradient_bias(make: Callable[..., SampledSoftmax], num_samples: int) -> float:
    exact = LOGITS.softmax(0) - torch.tensor([0.0, 1.0, 0.0])
    return float((expectations(make, num_samples)[1] - exact).norm())


@pytest.mark.parametrize("num_samples", [1, 2, 9])
def test_the_normalizer_is_unbiased(num_samples: int) -> None:
    # 55 terms, each with a probability from lgamma, good to 1e-14.
    assert normalizer_error(SampledSoftmax, num_samples) < 1e-12


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_normalizers_are_not(wrong: Callable[..., SampledSoftmax]) -> None:
    assert normalizer_error(wrong, 9) > 0.1


def test_the_bias_of_the_gradient_falls_as_one_over_the_number_of_samples() -> None:
    bias = {
        num_samples: gradient_bias(SampledSoftmax, num_samples) for num_samples in (4, 8, 16, 32)
    }
    # bias = c / S + O(1 / S^2), from the second term of the expansion of the logarithm: doubling S halves it, the more
    # exactly the larger S is.
    assert 1.6 < bias[4] / bias[8] < 2.4
    assert 1.8 < bias[8] / bias[16] < 2.2
    assert 1.9 < bias[16] / bias[32] < 2.1
    assert bias[32] < 0.003, "of a gradient of length 0.5"


@pytest.mark.parametrize("wrong", WRONG)
def test_the_bias_of_wrong_gradients_does_not(wrong: Callable[..., SampledSoftmax]) -> None:
    bias = {num_samples: gradient_bias(wrong, num_samples) for num_samples in (4, 16)}
    assert bias[16] > bias[4] / 2
    assert bias[16] > 0.05


@every_sampler
@every_target
def test_with_many_samples_a_single_gradient_is_that_of_the_softmax(
    sampler: str, target: Tensor
) -> None:
    head = make_head(num_samples=100_000, bias=True, **SAMPLER_OPTIONS[sampler])
    h, target = make_batch(target)
    value = head(h, target)
    value.backward()
    grads = gradients(head, h)
    valid = target.reshape(len(h), -1) != -100
    log_p = head.linear(h).log_softmax(1).gather(1, target.reshape(len(h), -1).clamp_min(0))
    expected = (
        -(torch.where(valid, log_p, 0).sum(1) / valid.sum(1).clamp_min(1)).sum()
        / valid.any(1).sum()
    )
    expected.backward()
    # A class is drawn some 3,000 times or more, give or take 55: two per cent, and all errors are shares of that.
    assert relative_error(value, expected) < 0.05
    for grad, expected_grad in zip(grads, gradients(head, h), strict=True):
        assert relative_error(grad, expected_grad) < 0.05


# ---- sparse gradients and steps --------------------------------------------------------------------------------------


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
    # Two steps' worth of draws; the ignored target stands at class 0, where its gradient is 0.
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


# ---- precision -------------------------------------------------------------------------------------------------------


@every_loss
@every_target
def test_half_precision_of_the_products_only(
    loss: str, target: Tensor, device: torch.device
) -> None:
    head = make_head(device, loss=loss, bias=True, dtype=torch.float32)
    h, target = make_batch(target, device)
    h = h.detach().float()
    exact = head(h, target)
    head.generator = Generator(device).manual_seed(SEED)
    with torch.autocast(device.type, torch.bfloat16):
        value = head(h.bfloat16(), target)
    assert value.dtype == torch.float32
    # Activations up to 8 with 8 bits are good to 0.02, those of the inputs included; the loss follows them.
    torch.testing.assert_close(value, exact, rtol=0.02, atol=0.03)
    value.backward()
    assert all(
        parameter.grad is not None and parameter.grad.dtype == torch.float32
        for parameter in head.parameters()
    )


@every_loss
def test_a_layer_in_half_precision(loss: str, device: torch.device) -> None:
    head = make_head(
        device, loss=loss, bias=True, sampler="unigram", counts=COUNTS, dtype=torch.float32
    )
    half = copy.deepcopy(head).to(torch.bfloat16)
    h, target = make_batch(THREE_TARGETS, device)
    half.generator = Generator(device).manual_seed(SEED)
    # As above, with weights and biases rounded too.
    torch.testing.assert_close(
        half(h.bfloat16(), target), head(h.float(), target), rtol=0.04, atol=0.05
    )


@every_loss
def test_large_activations(loss: str) -> None:
    head = make_head(loss=loss, dtype=torch.float32)
    h, target = make_batch(THREE_TARGETS)
    h = (1e4 * h.detach()).float().requires_grad_()
    value = head(h, target)
    value.backward()
    assert value.isfinite()
    assert all(grad.isfinite().all() for grad in gradients(head, h))


# ---- training --------------------------------------------------------------------------------------------------------


def make_problem(num_classes: int, hidden: int) -> Callable[[int], tuple[Tensor, Tensor]]:
    """Batches of classes by Zipf's law; h is a noisy point of its class."""
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
    # To know nothing but the frequencies costs 4.1. The noise of 40 draws may cost a tenth of what is left, some 1.6.
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
    # It is slower than the softmax: after as many steps as above between its 1.6 and the 4.1 of the frequencies.
    assert math.log(head.perplexity(h, target)) < 3
    assert head.logits(h).logsumexp(1).mean().abs() < 0.3


def test_nce_starts_normalized() -> None:
    head = SampledSoftmax(8, 1000, loss="nce", bias=True)
    # Weights of nn.Linear are within 1/sqrt(H), so activations spread by 0.6 and exp of them is 1.2 on average.
    assert head.logits(torch.randn(50, 8)).logsumexp(1).abs().max() < 1


# ---- options and bad input -------------------------------------------------------------------------------------------


def test_number_of_samples_by_default() -> None:
    for classes, samples in ((2, 1), (10_000, 1250), (10_000_000, 8192)):
        assert SampledSoftmax(4, classes, device="meta").num_samples == samples


def test_draws_come_from_the_global_generator_unless_one_is_given() -> None:
    head = make_head(generator=None)
    h, target = make_batch(ONE_TARGET)
    torch.manual_seed(5)
    first, second = head(h, target), head(h, target)
    torch.manual_seed(5)
    assert torch.equal(head(h, target), first)
    assert not torch.equal(first, second)


def test_the_state_dict_brings_the_sampler_along() -> None:
    head = make_head(sampler="unigram", counts=COUNTS)
    other = make_head(
        sampler="unigram", counts=torch.ones(CLASSES), generator=Generator().manual_seed(SEED)
    )
    other.load_state_dict(head.state_dict())
    h, target = make_batch(ONE_TARGET)
    twin = copy.deepcopy(head)
    assert head(h, target) == other(h, target) == twin(h, target)


def test_evaluation_is_that_of_the_full_softmax(device: torch.device) -> None:
    head = make_head(device, bias=True)
    h, _ = make_batch(ONE_TARGET, device)
    logits = head.linear(h)
    torch.testing.assert_close(head.log_prob(h), logits.log_softmax(1).detach(), rtol=0, atol=1e-13)
    assert torch.equal(head.topk(h, 3)[1], logits.topk(3)[1])
    assert head.is_likelihood


BAD_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "no samples": ({"num_samples": 0}, "num_samples must be at least 1, got 0"),
    "unknown sampler": (
        {"sampler": "zipf"},
        "one of log_uniform, unigram, uniform or a Sampler, got 'zipf'",
    ),
    "unknown loss": ({"loss": "hinge"}, "loss must be one of softmax, nce, got 'hinge'"),
    "unknown reduction": (
        {"reduction": "average"},
        "reduction must be one of none, mean, sum, got 'average'",
    ),
    "counts missing": ({"sampler": "unigram"}, '"unigram" needs counts='),
    "counts too many": (
        {"sampler": "unigram", "counts": torch.ones(13)},
        r"shape \(12,\), got \(13,\)",
    ),
    "counts negative": ({"counts": -torch.ones(CLASSES)}, "finite numbers >= 0"),
    "counts all zero": (
        {"sampler": "unigram", "counts": torch.zeros(CLASSES)},
        "counts are all zero",
    ),
    "sampler of other classes": (
        {"sampler": UniformSampler(5)},
        "draws from 5 classes, but the head has 12",
    ),
    "counts for a sampler": (
        {"sampler": UnigramSampler(COUNTS), "counts": COUNTS},
        "build this one with them",
    ),
    "noise that is not everywhere": (
        {"loss": "nce", "sampler": "unigram", "counts": torch.arange(CLASSES) // 2},
        "never draws 2 of 12, class 0 for one; add one to the counts",
    ),
}


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS.values(), ids=BAD_OPTIONS.keys())
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SampledSoftmax(HIDDEN, CLASSES, **options)


@contextmanager
def refuses(head: SampledSoftmax, message: str) -> Iterator[None]:
    state = {name: tensor.clone() for name, tensor in head.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        yield
    for name, tensor in head.state_dict().items():
        assert torch.equal(tensor, state[name]), name
    assert all(parameter.grad is None for parameter in head.parameters())


BAD_BATCHES: dict[str, tuple[Callable[[Tensor, Tensor], tuple[Any, Any]], str]] = {
    "target too large": (
        lambda h, t: (h, t + 1),
        "target 12 is out of range: expected 0 <= target < 12",
    ),
    "target negative": (lambda h, t: (h, t - 1), "target -1 is out of range"),
    "target float": (
        lambda h, t: (h, t.float()),
        r"integer class indices, got dtype torch\.float32",
    ),
    "target too short": (lambda h, t: (h, t[1:]), r"shape \(3,\) or \(3, K\).*got \(2,\)"),
    "h NaN": (lambda h, t: (h * math.nan, t), "h has a NaN or an infinity"),
    "h too narrow": (lambda h, t: (h[:, 1:], t), r"shape \(B, 5\), got \(3, 4\)"),
    "h wider than the layer": (
        lambda h, t: (h.double(), t),
        r"h has dtype torch\.float64 but the layer holds",
    ),
}


@every_loss
@pytest.mark.parametrize(("spoil", "message"), BAD_BATCHES.values(), ids=BAD_BATCHES.keys())
def test_bad_batches(
    spoil: Callable[[Tensor, Tensor], tuple[Any, Any]], message: str, loss: str
) -> None:
    head = make_head(loss=loss, dtype=torch.float32)
    batch = torch.randn(3, HIDDEN), torch.tensor([0, 5, 11])
    with refuses(head, message):
        head(*spoil(*batch))
    head(*batch)  # and it goes on


def test_bad_row_weights() -> None:
    head = make_head()
    h, target = make_batch(ONE_TARGET)
    with refuses(head, r"one entry per example, \(7,\), got \(6,\)"):
        head(h, target, weight=torch.ones(6))


def test_weight_decay_is_refused() -> None:
    with pytest.raises(ValueError, match=r"weight_decay=0\.1 would change every row"):
        make_head().sgd(0.1, weight_decay=0.1)


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
    """A graph would not know of it, and draw the same classes for ever or fail."""
    assert SampledSoftmax(4, 10).is_capturable
    assert not SampledSoftmax(4, 10, generator=torch.Generator()).is_capturable
