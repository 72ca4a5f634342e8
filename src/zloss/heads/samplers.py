r"""Samplers, which draw the classes of a step of `SampledSoftmax`.

    classes = sampler.draw(8192)              with replacement, O(1) per sample, does not wait for a GPU
    log_q = sampler.log_prob(classes)         the probability of each class in one draw

A sampler is a module, so the state dict of its head contains it, and it moves with its head. A new sampler derives
from `Sampler` and implements `draw` and `log_prob`.

Samplers compute in float64, because float32 has only 24 bits. It could not represent the numbers of more than 2^24
classes. With fewer classes, rare ones would be drawn too often or never.
"""

import math
from abc import ABC, abstractmethod
from typing import Literal, get_args

import torch
from torch import Generator, Tensor, nn

from zloss.heads.class_order import ClassOrder, checked_counts
from zloss.inputs import (
    check_count,
    check_device,
    check_number,
    checked_classes,
    shown,
)

SamplerName = Literal["log_uniform", "unigram", "uniform"]


class Sampler(nn.Module, ABC):
    """A fixed distribution q over the classes."""

    _home: Tensor  # (0,) on the device of the sampler: some samplers have no other tensor

    def __init__(self, num_classes: int, *, device: torch.device | str | None = None) -> None:
        super().__init__()
        check_count("num_classes", num_classes)
        check_device("device", device)
        self.num_classes = num_classes
        self.register_buffer("_home", torch.empty(0, device=device), persistent=False)

    def follow_(self, device: torch.device) -> None:
        """Draw on this device from now on, if the sampler has been on the "meta" device so far."""
        check_device("device", device, must_exist=self._home.is_meta)
        if self._home.is_meta:
            self._home = torch.empty(0, device=device)

    @abstractmethod
    def draw(self, num_samples: int, *, generator: Generator | None = None) -> Tensor:  # (S,) int64
        """Return independent draws from q, on the device of the sampler, by default from torch's global generator."""

    @abstractmethod
    def log_prob(self, classes: Tensor) -> Tensor:  # as classes, float64
        """Return `log q` of these classes: -inf for a class that is never drawn."""

    def _uniform(
        self, num_samples: int, generator: Generator | None
    ) -> Tensor:  # (S,) float64 in [0, 1)
        """Return uniform random numbers, the only random numbers that samplers use.

        `torch.randint` is not used. It takes the remainder of 32 random bits, which makes some of 10 million classes
        more likely than others by 0.2 %.
        """
        check_count("num_samples", num_samples)
        check_generator(generator)
        device = self._home.device
        if generator is not None and generator.device.type != device.type:
            raise ValueError(
                f"the generator is on {generator.device} but the sampler is on {device}"
            )
        return torch.rand(num_samples, generator=generator, dtype=torch.float64, device=device)

    def _anywhere(self, num_samples: int, generator: Generator | None) -> Tensor:  # (S,) int64
        """Return draws from the numbers 0..C-1, all equally likely."""
        draws = (self._uniform(num_samples, generator) * self.num_classes).long()
        # For a u close to 1 the product may be rounded up to C.
        return draws.clamp_(max=self.num_classes - 1)

    def extra_repr(self) -> str:
        return f"num_classes={self.num_classes}"


def check_generator(generator: Generator | None) -> None:
    """Refuse anything but a generator of torch, or None."""
    if generator is not None and not isinstance(generator, Generator):
        raise ValueError(f"generator must be a torch.Generator or None, got {shown(generator)}")


class UniformSampler(Sampler):
    """A sampler that draws every class with the same probability.

    >>> sampler = UniformSampler(1000)
    >>> sampler.draw(5).shape, sampler.log_prob(torch.tensor([3])).exp()
    (torch.Size([5]), tensor([0.0010], dtype=torch.float64))
    """

    def draw(self, num_samples: int, *, generator: Generator | None = None) -> Tensor:
        return self._anywhere(num_samples, generator)

    def log_prob(self, classes: Tensor) -> Tensor:
        classes = checked_classes("classes", classes, self.num_classes)
        return torch.full(
            classes.shape, -math.log(self.num_classes), dtype=torch.float64, device=classes.device
        )


class LogUniformSampler(Sampler):
    r"""A sampler that draws classes by rank, nearly by Zipf's law.

    The class of rank k = 0, 1, ... has the probability `log((k + 2) / (k + 1)) / log(C + 1)`. The sampler needs the
    order of the classes, but no counts and no tables.

    Args:
        num_classes: C.
        counts: the number of occurrences of each class. The most frequent class has rank 0. Without counts, the rank of
            a class is its number.

    >>> LogUniformSampler(3).log_prob(torch.arange(3)).exp()    # log_4(2), log_4(3/2), log_4(4/3)
    tensor([0.5000, 0.2925, 0.2075], dtype=torch.float64)
    >>> LogUniformSampler(3, counts=torch.tensor([5, 1, 80])).log_prob(torch.arange(3)).exp()
    tensor([0.2925, 0.2075, 0.5000], dtype=torch.float64)
    """

    def __init__(
        self,
        num_classes: int,
        *,
        counts: Tensor | None = None,  # (C,)
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(num_classes, device=device)
        self.order: ClassOrder | None = None
        if counts is not None:
            self.order = ClassOrder.by_frequency(checked_counts(counts, num_classes)).to(
                self._home.device
            )

    def draw(self, num_samples: int, *, generator: Generator | None = None) -> Tensor:
        ranks = log_uniform_rank(self._uniform(num_samples, generator), self.num_classes)
        return ranks if self.order is None else self.order.class_at(ranks)

    def log_prob(self, classes: Tensor) -> Tensor:
        classes = checked_classes("classes", classes, self.num_classes)
        ranks = classes if self.order is None else self.order.position_of(classes)
        return (1 / (ranks.double() + 1)).log1p().log() - math.log(math.log(self.num_classes + 1))


def log_uniform_rank(u: Tensor, num_classes: int) -> Tensor:  # in [0, 1) -> int64
    """Return the rank at which the distribution function `P(rank < k) = log(k + 1) / log(C + 1)` reaches u."""
    ranks = (u * math.log(num_classes + 1)).exp().long() - 1
    return ranks.clamp_(0, num_classes - 1)


class UnigramSampler(Sampler):
    """A sampler that draws each class in proportion to a power of its count, in O(1) by the alias method.

    A class with the count 0 is never drawn, unless power is 0. A sampled softmax accepts such a class as a target, but
    no step ever lowers its score: add one to all counts where that matters. Noise-contrastive estimation refuses counts
    of 0.

    Args:
        counts: the number of occurrences of each class.
        power: 1 draws classes as often as they occur, and 0 draws all classes equally often. The default is the value
            of word2vec.

    >>> sampler = UnigramSampler(torch.tensor([1, 16, 0]), power=0.75)
    >>> sampler.log_prob(torch.arange(3)).exp()    # 1 and 8 parts of 9
    tensor([0.1111, 0.8889, 0.0000], dtype=torch.float64)
    >>> sampler.draw(1000).bincount(minlength=3)[2]
    tensor(0)
    """

    # The first two hold the bits of float64 numbers. `model.to(torch.bfloat16)` converts every floating-point buffer,
    # and the three digits of a bfloat16 are not enough for a log-probability.
    _keep_bits: Tensor  # (C,) int64
    _log_q_bits: Tensor  # (C,) int64
    alias: Tensor  # (C,) int64

    def __init__(
        self,
        counts: Tensor,  # (C,)
        *,
        power: float = 0.75,
        device: torch.device | str | None = None,
    ) -> None:
        weights = _powers(counts, power)
        super().__init__(len(weights), device=device)
        keep, alias = alias_table(weights)
        log_q = (weights / weights.sum()).log()
        self.power = power
        self.register_buffer("_keep_bits", keep.view(torch.int64).to(self._home.device))
        self.register_buffer("_log_q_bits", log_q.view(torch.int64).to(self._home.device))
        self.register_buffer("alias", alias.to(self._home.device))

    @property
    def keep(self) -> Tensor:  # (C,) float64
        """The probability that a hit class is drawn. Otherwise its `alias` is drawn."""
        return self._keep_bits.view(torch.float64)

    def draw(self, num_samples: int, *, generator: Generator | None = None) -> Tensor:
        hit = self._anywhere(num_samples, generator)
        stays = self._uniform(num_samples, generator) < self.keep[hit]
        return torch.where(stays, hit, self.alias[hit])

    def log_prob(self, classes: Tensor) -> Tensor:
        classes = checked_classes("classes", classes, self.num_classes)
        return self._log_q_bits.view(torch.float64)[classes]

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, power={self.power}"


def _powers(counts: Tensor, power: float) -> Tensor:  # (C,) float64, the largest is 1
    """Return `counts ** power`, with the counts scaled first so that nothing overflows."""
    check_number("power", power, least=0)
    counts = checked_counts(counts, counts.numel() if isinstance(counts, Tensor) else 0)
    if not counts.any():
        raise ValueError("counts are all zero: at least one class must occur")
    counts = counts.double()
    return (counts / counts.max()) ** power


def alias_table(weights: Tensor) -> tuple[Tensor, Tensor]:  # (C,) -> (C,) float64, (C,) int64
    """Return the tables `keep` and `alias` of Walker's alias method.

    The method hits a class i, with equal probability for all classes. It draws i with probability keep[i], and alias[i]
    otherwise.

    Scaled to mean 1, the weights fill C buckets of size 1. A light class leaves a deficit in its bucket, and a heavy
    class has an excess. Lay all deficits end to end on a line, and all excesses on a second line: both lines are
    equally long. A heavy class fills the deficits that begin within its own part of the line. The last of these
    deficits may reach beyond the end of this part. The heavy class fills it completely, which leaves a deficit in its
    own bucket, as large as the overhang. The next heavy class fills that deficit.

    So prefix sums and binary searches give both tables, without a loop over the classes (Hübschle-Schneider and
    Sanders, *Parallel Weighted Random Sampling*, 2019).
    """
    parts = weights.double() * (len(weights) / weights.sum(dtype=torch.float64))
    keep, alias = parts.clamp(max=1), torch.arange(len(parts), device=parts.device)
    light, heavy = (parts < 1).nonzero()[:, 0], (parts > 1).nonzero()[:, 0]
    if not (len(light) and len(heavy)):  # all weights are equal, up to rounding
        return torch.ones_like(keep), alias
    deficit, excess = 1 - parts[light], parts[heavy] - 1
    deficit_end, excess_end = deficit.cumsum(0), excess.cumsum(0)
    # Each deficit starts where the previous one ends, to the last bit: both searches need the same order.
    deficit_start = torch.cat([deficit_end.new_zeros(1), deficit_end[:-1]])
    # The filler of a deficit is the first excess that ends after the deficit starts. The last deficit that an excess
    # fills is the first one that ends no earlier than the excess.
    filler = torch.searchsorted(excess_end, deficit_start, right=True)
    last_filled = torch.searchsorted(deficit_end, excess_end)
    # The clamps are for the end of the lines, where rounding makes one of them a little longer.
    alias[light] = heavy[filler.clamp_(max=len(heavy) - 1)]
    alias[heavy[:-1]] = heavy[1:]
    overhang = deficit_end[last_filled.clamp_(max=len(light) - 1)] - excess_end
    keep[heavy[:-1]] = 1 - overhang[:-1].clamp_(0, 1)
    return keep, alias


def make_sampler(
    sampler: SamplerName | Sampler,
    num_classes: int,
    *,
    counts: Tensor | None,  # (C,)
    power: float,
    device: torch.device,
) -> Sampler:
    """Return the sampler with this name, or the given sampler itself, on the device of its head."""
    if isinstance(sampler, Sampler):
        return _own_sampler(sampler, num_classes, counts).to(device)
    if not isinstance(sampler, str) or sampler not in get_args(SamplerName):
        raise ValueError(
            f"sampler must be one of {', '.join(get_args(SamplerName))} or a Sampler, got {shown(sampler)}"
        )
    check_number("power", power, least=0)
    if counts is not None:
        counts = checked_counts(counts, num_classes)
    if sampler == "uniform":
        return UniformSampler(num_classes, device=device)
    if sampler == "log_uniform":
        return LogUniformSampler(num_classes, counts=counts, device=device)
    if counts is None:
        raise ValueError(
            'sampler "unigram" needs counts=, the number of occurrences of each class; "log_uniform" needs none'
        )
    return UnigramSampler(counts, power=power, device=device)


def _own_sampler(sampler: Sampler, num_classes: int, counts: Tensor | None) -> Sampler:
    if sampler.num_classes != num_classes:
        raise ValueError(
            f"the sampler draws from {sampler.num_classes} classes, but the head has {num_classes}"
        )
    if counts is not None:
        raise ValueError(
            "counts are for a sampler that is given by its name: build this one with them instead"
        )
    return sampler
