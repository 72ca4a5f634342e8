"""Samplers: their distributions, their state, and the input that they refuse."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor

from tests.gpu import no_synchronisation
from zloss.heads.samplers import (
    LogUniformSampler,
    Sampler,
    UniformSampler,
    UnigramSampler,
    log_uniform_rank,
    make_sampler,
)

CLASSES = 40
COUNTS = (torch.arange(CLASSES) * 7 % 17 + 1) ** 2  # in no order, with ties
# Each sampler, and the slow definition of its distribution.
SAMPLERS: dict[str, tuple[Callable[[], Sampler], Callable[[int], float]]] = {
    "uniform": (lambda: UniformSampler(CLASSES), lambda c: 1.0),
    "log-uniform": (lambda: LogUniformSampler(CLASSES), lambda c: math.log((c + 2) / (c + 1))),
    "log-uniform by counts": (
        lambda: LogUniformSampler(CLASSES, counts=COUNTS),
        lambda c: math.log((rank_of(c) + 2) / (rank_of(c) + 1)),
    ),
    "unigram": (lambda: UnigramSampler(COUNTS, power=0.75), lambda c: float(COUNTS[c]) ** 0.75),
    "unigram as it is": (lambda: UnigramSampler(COUNTS, power=1.0), lambda c: float(COUNTS[c])),
}
every_sampler = pytest.mark.parametrize(("make", "weight"), SAMPLERS.values(), ids=SAMPLERS.keys())


def rank_of(c: int) -> int:
    """Return the rank of a class: more frequent classes come first, then equally frequent ones by number."""
    return sum(1 for d in range(CLASSES) if (-COUNTS[d], d) < (-COUNTS[c], c))


def normalized(weight: Callable[[int], float]) -> Tensor:
    weights = [weight(c) for c in range(CLASSES)]
    return torch.tensor([w / math.fsum(weights) for w in weights], dtype=torch.float64)


@every_sampler
def test_log_prob_is_that_of_the_definition(
    make: Callable[[], Sampler], weight: Callable[[int], float], device: torch.device
) -> None:
    sampler = make().to(device)
    classes = torch.arange(CLASSES, device=device).reshape(4, -1)  # any shape
    log_q = sampler.log_prob(classes)
    assert log_q.dtype == torch.float64
    # A dozen roundings of numbers up to 4: far below 1e-13.
    torch.testing.assert_close(log_q.flatten().cpu(), normalized(weight).log(), rtol=0, atol=1e-13)


@every_sampler
def test_draws_have_the_stated_distribution(
    make: Callable[[], Sampler], weight: Callable[[int], float], device: torch.device
) -> None:
    draws = make().to(device).draw(400_000)
    assert (draws.dtype, draws.device, draws.shape) == (torch.int64, device, (400_000,))
    expected = normalized(weight) * len(draws)
    chi2 = ((draws.bincount(minlength=CLASSES).cpu() - expected) ** 2 / expected).sum()
    # Chi-square with 39 degrees of freedom: 39 on average, and above 100 with a probability of 3e-7.
    assert chi2 < 100


def test_the_test_of_the_distribution_sees_a_wrong_one() -> None:
    expected = normalized(SAMPLERS["unigram"][1]) * 400_000
    draws = UnigramSampler(COUNTS, power=0.73).draw(400_000)
    assert ((draws.bincount(minlength=CLASSES) - expected) ** 2 / expected).sum() > 100


@every_sampler
def test_draws_follow_the_seed(
    make: Callable[[], Sampler], weight: Callable[[int], float], device: torch.device
) -> None:
    sampler = make().to(device)

    def by_own_generator(seed: int) -> Tensor:
        return sampler.draw(50, generator=Generator(device).manual_seed(seed))

    def by_global_generator(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return sampler.draw(50)

    for draw in (by_own_generator, by_global_generator):
        assert torch.equal(draw(3), draw(3))
        assert not torch.equal(draw(3), draw(4))
    assert not torch.equal(by_global_generator(3), sampler.draw(50)), "the next draws are others"


@every_sampler
def test_state_and_copies_are_complete(
    make: Callable[[], Sampler], weight: Callable[[int], float]
) -> None:
    sampler, classes = make(), torch.arange(CLASSES)
    fresh = copy.deepcopy(sampler)
    for buffer in fresh.buffers():
        buffer.zero_()
    fresh.load_state_dict(sampler.state_dict())
    for twin in (fresh, copy.deepcopy(sampler)):
        assert torch.equal(twin.log_prob(classes), sampler.log_prob(classes))
        assert torch.equal(
            twin.draw(99, generator=Generator().manual_seed(1)),
            sampler.draw(99, generator=Generator().manual_seed(1)),
        )


@every_sampler
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_converting_a_model_does_not_coarsen_the_sampler(
    make: Callable[[], Sampler], weight: Callable[[int], float], dtype: torch.dtype
) -> None:
    sampler = make().to(dtype)
    classes = torch.arange(CLASSES)
    assert torch.equal(sampler.log_prob(classes), make().log_prob(classes))
    assert torch.equal(
        sampler.draw(999, generator=Generator().manual_seed(1)),
        make().draw(999, generator=Generator().manual_seed(1)),
    )


# ---- the log-uniform inverse -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_classes", [1, 2, 3, 1000, 793_471, 50_000_000])
def test_every_rank_has_its_share_of_the_unit_interval(num_classes: int) -> None:
    ranks = torch.cat(
        [
            torch.arange(min(num_classes, 5000)),
            torch.arange(max(0, num_classes - 5000), num_classes),
        ]
    )
    start, stop = ((ranks.double() + end).log() / math.log(num_classes + 1) for end in (1, 2))
    # With 50 million classes a share is 1e-9 wide, and float64 resolves 1e-16. The margin is a hundredth of the share.
    margin = (stop - start) / 100
    assert torch.equal(log_uniform_rank(start + margin, num_classes), ranks)
    assert torch.equal(log_uniform_rank(stop - margin, num_classes), ranks)


def test_ends_of_the_unit_interval() -> None:
    u = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    for num_classes in range(1, 3000):
        assert log_uniform_rank(u, num_classes).tolist() == [0, num_classes - 1]


@given(st.integers(1, 2**40))
@settings(deadline=None)
def test_uniform_numbers_next_to_one_are_classes(num_classes: int) -> None:
    sampler = UniformSampler(num_classes)
    sampler._uniform = lambda n, generator: torch.full((n,), 1 - 2**-53, dtype=torch.float64)  # type: ignore[assignment]
    assert sampler.draw(1).item() == num_classes - 1


# ---- bad input -------------------------------------------------------------------------------------------------------


def named(
    sampler: Any, num_classes: int = CLASSES, counts: Any = None, power: float = 0.75
) -> Sampler:
    return make_sampler(
        sampler, num_classes, counts=counts, power=power, device=torch.device("cpu")
    )


BAD_SAMPLERS: dict[str, tuple[Callable[[], object], str]] = {
    "no classes": (
        lambda: UniformSampler(0),
        "num_classes must be a whole number of at least 1 that fits into memory, got 0",
    ),
    "no samples": (
        lambda: UniformSampler(5).draw(0),
        "num_samples must be a whole number of at least 1 that fits into memory, got 0",
    ),
    "counts too few": (
        lambda: LogUniformSampler(5, counts=torch.ones(4)),
        r"shape \(5,\), got \(4,\)",
    ),
    "counts two-dimensional": (
        lambda: UnigramSampler(torch.ones(2, 3)),
        r"shape \(6,\), got \(2, 3\)",
    ),
    "counts a list": (lambda: UnigramSampler([1, 2]), "must be a tensor .* got list"),  # type: ignore[arg-type]
    "counts negative": (lambda: UnigramSampler(torch.tensor([1, -1])), "finite numbers >= 0"),
    "counts NaN": (lambda: UnigramSampler(torch.tensor([1, math.nan])), "finite numbers >= 0"),
    "counts infinite": (lambda: UnigramSampler(torch.tensor([1, math.inf])), "finite numbers >= 0"),
    "counts all zero": (lambda: UnigramSampler(torch.zeros(7)), "counts are all zero"),
    "power negative": (
        lambda: UnigramSampler(torch.ones(7), power=-1),
        "power must be a finite number >= 0, got -1",
    ),
    "unknown name": (
        lambda: named("zipf"),
        "one of log_uniform, unigram, uniform or a Sampler, got 'zipf'",
    ),
    "no counts": (lambda: named("unigram"), '"unigram" needs counts='),
    "bad counts unused": (
        lambda: named("uniform", counts=torch.ones(4)),
        r"shape \(40,\), got \(4,\)",
    ),
    "other classes": (
        lambda: named(UniformSampler(5)),
        "draws from 5 classes, but the head has 40",
    ),
    "counts to spare": (
        lambda: named(UniformSampler(CLASSES), counts=COUNTS),
        "build this one with them",
    ),
}


@pytest.mark.parametrize(("make", "message"), BAD_SAMPLERS.values(), ids=BAD_SAMPLERS.keys())
def test_bad_input(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_samplers_by_name() -> None:
    assert isinstance(named("uniform"), UniformSampler)
    assert isinstance(named("log_uniform"), LogUniformSampler)
    unigram = named("unigram", counts=COUNTS, power=0.5)
    assert isinstance(unigram, UnigramSampler)
    assert unigram.power == 0.5
    assert named(unigram) is unigram
    classes = torch.arange(CLASSES)
    by_counts = LogUniformSampler(CLASSES, counts=COUNTS)
    assert torch.equal(
        named("log_uniform", counts=COUNTS).log_prob(classes), by_counts.log_prob(classes)
    )


def test_huge_counts_do_not_overflow() -> None:
    sampler = UnigramSampler(torch.tensor([1e300, 1e300], dtype=torch.float64), power=2.0)
    assert sampler.log_prob(torch.arange(2)).exp().tolist() == [0.5, 0.5]


# ---- on a GPU --------------------------------------------------------------------------------------------------------


@every_sampler
def test_drawing_never_waits_for_the_device(
    make: Callable[[], Sampler], weight: Callable[[int], float], cuda: torch.device
) -> None:
    sampler = make().to(cuda)
    sampler.log_prob(sampler.draw(8))
    with no_synchronisation():
        sampler.log_prob(sampler.draw(1000))


@every_sampler
def test_a_replayed_graph_draws_anew(
    make: Callable[[], Sampler], weight: Callable[[int], float], cuda: torch.device
) -> None:
    sampler = make().to(cuda)
    sampler.draw(8)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        draws = sampler.draw(1000)
    graph.replay()
    first = draws.clone()
    graph.replay()
    assert not torch.equal(first, draws)


def test_a_generator_from_elsewhere_is_refused(cuda: torch.device) -> None:
    with pytest.raises(ValueError, match="generator is on cpu but the sampler is on cuda"):
        UniformSampler(5, device=cuda).draw(3, generator=Generator())
