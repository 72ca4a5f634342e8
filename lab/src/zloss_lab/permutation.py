"""A seeded permutation of [0, N) in O(sqrt(N)) memory, which shuffles hundreds of millions of examples without a list.

With a = ceil(sqrt(N)), a number below a^2 has two digits in base a. A Feistel network mixes them:

    (high, low)  <-  (low, (high + F_r(low)) mod a)        r = 1 .. 4

A round can be inverted whatever F_r is, so this is a bijection of [0, a^2). With tables of random digits for F_r, four
rounds look random (Luby and Rackoff, 1988). Fewer than 2 a images are in [N, a^2). They go through the network again
until they are below N, which makes a bijection of [0, N). A table holds the final image of each of them, so a batch
needs no loop, and a GPU need not wait for the host.
"""

import math

import numpy as np
import torch
from torch import Tensor

_ROUNDS = 4


class Permutation:
    """A permutation for every epoch: a pure function of size, seed and epoch, equal on all devices.

    Args:
        size: N.
        seed: an integer >= 0.
        device: device of the tables and of the positions.

    >>> permutation = Permutation(6, seed=1)
    >>> sorted(permutation(torch.arange(6)).tolist())
    [0, 1, 2, 3, 4, 5]
    """

    epoch: int  # the epoch of the current permutation

    def __init__(self, size: int, *, seed: int, device: torch.device | str | None = None) -> None:
        if size < 1:
            raise ValueError(f"a permutation needs at least 1 element, got size={size}")
        if seed < 0:
            raise ValueError(f"seed must be an integer >= 0, got {seed}")
        self.size, self.seed = size, seed
        base = math.isqrt(size - 1) + 1
        self._digits = torch.empty(_ROUNDS, base, dtype=torch.int64, device=device)
        self._returns = torch.empty(base**2 - size, dtype=torch.int64, device=device)
        self.start(0)

    def start(self, epoch: int) -> None:
        """Switch to the permutation of an epoch, in place: a CUDA graph that was captured before uses the new one."""
        if epoch < 0:
            raise ValueError(f"epoch must be an integer >= 0, got {epoch}")
        digits = _random_digits(self._digits.shape[1], self.seed, epoch)
        self._digits.copy_(digits)
        self._returns.copy_(_returns(digits, self.size))
        self.epoch = epoch

    @property
    def tables(self) -> tuple[Tensor, Tensor]:  # (rounds, a), (a^2 - N,)
        """The tables for a kernel: F_r, and the final images for the images from N on."""
        return self._digits, self._returns

    def __call__(self, positions: Tensor) -> Tensor:  # int64, of any shape
        """Return the elements at these positions. Positions and elements are in [0, N)."""
        image = _mixed(positions, self._digits)
        if not len(self._returns):
            return image
        outside = image - self.size
        return torch.where(outside >= 0, self._returns[outside.clamp_min(0)], image)


def _random_digits(base: int, seed: int, epoch: int) -> Tensor:  # (rounds, base)
    """Return the tables F_r. They come from raw bits, which numpy promises never to change between versions."""
    bits = np.random.PCG64(np.random.SeedSequence([seed, epoch])).random_raw(_ROUNDS * base)
    return torch.from_numpy((bits % np.uint64(base)).astype(np.int64)).reshape(_ROUNDS, base)


def _mixed(numbers: Tensor, digits: Tensor) -> Tensor:
    """Return the images of numbers under the Feistel network."""
    base = digits.shape[1]
    high, low = numbers // base, numbers % base
    for table in digits:
        high, low = low, (high + table[low]) % base
    return high * base + low


def _returns(digits: Tensor, size: int) -> Tensor:  # (base^2 - size,)
    """Return the final image of each number in size .. base^2 - 1: the first one of its walk that is below size.

    Every round of the loop doubles the number of steps, so few rounds cover the longest walk. A cycle that never falls
    below size is never entered from below size either, so its entries are never read.
    """
    ends = _mixed(torch.arange(size, digits.shape[1] ** 2), digits)
    for _ in range(len(ends).bit_length()):
        ends = torch.where(ends >= size, ends[(ends - size).clamp_min(0)], ends)
    return ends
