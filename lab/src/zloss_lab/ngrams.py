"""N-grams of a text as batches on a device: n words of context and the word to predict, in a seeded order.

    batches = NgramBatches(corpus.split("train"), context=6, batch_size=250, device="cuda", seed=1)
    context, target = batches.batch(epoch=0, index=17)      # (B, n), (B,): a pure function of seed, epoch and index

Only the tokens themselves are held, in the narrow type of their file. Contexts are cut out of them on the device,
batch by batch, without a loop over examples. On a CPU the array is used in place, memory-mapped or not. On a GPU a
batch is one kernel launch if Triton is installed.

There are two modes. In the mode `running`, example t predicts token t + n from the n tokens before it, across the ends
of sentences. In the mode `sentence`, every token is predicted from the words of its own sentence only. The token
`padding` fills the context before the start of a sentence. The token `boundary` ends a sentence, and is predicted too.

Inside a CUDA graph, call `at(index)` with a tensor on the device as the index, and `start(epoch)` between replays.

Shape letters: B examples, n words of context.
"""

import copy
import math
import warnings
from collections.abc import Iterator
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from zloss_lab import kernels
from zloss_lab.permutation import Permutation

Mode = Literal["running", "sentence"]
TokenSource = np.ndarray[Any, Any] | Tensor
NgramBatch = tuple[Tensor, Tensor]  # contexts (B, n), targets (B,), both int64


class Ngrams:
    """The n-grams of a text, numbered 0 .. len - 1 in the order of the text.

    >>> ngrams = Ngrams(torch.tensor([5, 6, 0, 7]), context=2, mode="sentence", boundary=0, padding=0)
    >>> ngrams.read(torch.arange(4))
    (tensor([[0, 0], [0, 5], [5, 6], [0, 0]]), tensor([5, 6, 0, 7]))
    """

    def __init__(
        self,
        tokens: TokenSource,
        *,
        context: int,
        mode: Mode = "running",
        boundary: int | None = None,
        padding: int | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if context < 1:
            raise ValueError(f"context must be at least 1 word, got {context}")
        _check_mode(mode, boundary, padding)
        self.tokens = _on_device(tokens, device)
        self.context, self.mode, self.boundary, self.padding = context, mode, boundary, padding
        self._length = len(self.tokens) - (context if mode == "running" else 0)
        if self._length < 1:
            raise ValueError(
                f"a text of {len(self.tokens)} tokens has no example with {context} words of context"
            )
        # Places of the context and the target in the text, relative to the number of the example.
        first = 0 if mode == "running" else -context
        self._offsets = torch.arange(first, first + context + 1, device=self.tokens.device)

    def __len__(self) -> int:
        return self._length

    def read(self, examples: Tensor) -> NgramBatch:  # (B,) int64
        """Return the contexts and targets of these examples."""
        places = examples[:, None] + self._offsets
        if self.mode == "running":
            window = self._tokens_at(places)
            return window[:, :-1], window[:, -1]
        window = self._tokens_at(places.clamp_min(0))
        context, target = window[:, :-1], window[:, -1]
        ends = (context == self.boundary) | (places[:, :-1] < 0)
        # If a sentence ends at a word or between it and the target, the word belongs to an earlier sentence.
        is_foreign = ends.flip(1).cumsum(1).flip(1) > 0
        assert self.padding is not None, "checked in __init__"
        return context.masked_fill(is_foreign, self.padding), target

    def _tokens_at(self, places: Tensor) -> Tensor:
        narrow = self.tokens[places]
        bits = 8 * narrow.itemsize
        # Token ids are unsigned, but torch gathers signed integers only: the mask removes the sign.
        return narrow.long() if bits == 64 else narrow.long() & (2**bits - 1)


class NgramBatches:
    """Batches of n-grams, in an order that is a pure function of seed and epoch.

    Args:
        tokens: class ids in one dimension, a numpy array (also a memory map) or a tensor of any integer type. Negative
            numbers of a signed type are read as unsigned numbers.
        context: n, the number of words before the word to predict.
        batch_size: B.
        mode: "running" or "sentence", see the top of this file.
        boundary: the token at the end of every sentence. The mode "sentence" needs it.
        padding: the token that fills a context before the start of a sentence. The mode "sentence" needs it.
        device: the device that batches are made on. Tokens on another device are copied to it once.
        seed: seed of the order.
        shuffle: take a new order in every epoch, in full batches only. The examples that are left over differ from
            epoch to epoch. Without `shuffle` all examples come in the order of the text, and the last batch may be
            smaller.
        sample: number of examples of a fixed random sample, without `shuffle`. A smaller sample is the beginning of a
            larger one.

    >>> batches = NgramBatches(torch.arange(100), context=3, batch_size=10)
    >>> len(batches), batches.examples
    (9, 97)
    >>> context, target = batches.batch(epoch=0, index=8)
    >>> bool((context[:, -1] + 1 == target).all())
    True
    """

    def __init__(
        self,
        tokens: TokenSource,
        *,
        context: int,
        batch_size: int,
        mode: Mode = "running",
        boundary: int | None = None,
        padding: int | None = None,
        device: torch.device | str | None = None,
        seed: int = 0,
        shuffle: bool = True,
        sample: int | None = None,
    ) -> None:
        self.ngrams = Ngrams(
            tokens, context=context, mode=mode, boundary=boundary, padding=padding, device=device
        )
        self.seed = seed
        self._arrange(batch_size, shuffle, sample)

    def _arrange(self, batch_size: int, shuffle: bool, sample: int | None) -> None:
        """Set the size of a batch and the order of the examples."""
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if sample is not None and (shuffle or sample < 1):
            raise ValueError(
                f"sample must be at least 1, and shuffle=False, got sample={sample}, shuffle={shuffle}"
            )
        if shuffle and self.population < batch_size:
            raise ValueError(
                f"the text has {self.population} n-grams, too few for one batch of {batch_size}"
            )
        self.batch_size, self.shuffle = batch_size, shuffle
        self.examples = self.population if sample is None else min(sample, self.population)
        is_in_order = not shuffle and self.examples == self.population
        self._order = (
            None
            if is_in_order
            else Permutation(self.population, seed=self.seed, device=self.device)
        )
        self._rows = torch.arange(batch_size, device=self.device)

    @property
    def population(self) -> int:
        """The number of n-grams in the text. For a sample, `examples` is smaller."""
        return len(self.ngrams)

    @property
    def device(self) -> torch.device:
        """The device that batches are made on."""
        return self.ngrams.tokens.device

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return (
            self.examples // self.batch_size
            if self.shuffle
            else math.ceil(self.examples / self.batch_size)
        )

    def batch(self, epoch: int, index: int) -> NgramBatch:
        """Return a batch of an epoch. Without `shuffle` all epochs are the same."""
        self.start(epoch)
        return self.at(index)

    def start(self, epoch: int) -> None:
        """Switch to the order of an epoch, in place, if it is not the current one."""
        if self.shuffle and self._order is not None and self._order.epoch != epoch:
            self._order.start(epoch)

    def at(self, index: int | Tensor) -> NgramBatch:
        """Return a batch of the current epoch.

        An index that is a tensor on the device, () int64, is not checked, and must be the index of a full batch.
        """
        rows = self.batch_size
        if not isinstance(index, Tensor):
            if not 0 <= index < len(self):
                raise ValueError(f"there are {len(self)} batches an epoch, got index {index}")
            rows = min(rows, self.examples - index * self.batch_size)
        if self.device.type == "cuda" and kernels.available():
            return self._in_one_launch(index, rows)
        positions = index * self.batch_size + self._rows[:rows]
        return self.ngrams.read(positions if self._order is None else self._order(positions))

    def _in_one_launch(self, index: int | Tensor, rows: int) -> NgramBatch:
        ngrams = self.ngrams
        batch: NgramBatch = kernels.load("ngram_batches").batch(
            ngrams.tokens,
            index if isinstance(index, Tensor) else torch.full((), index, device=self.device),
            rows=rows,
            batch_size=self.batch_size,
            context=ngrams.context,
            order=None if self._order is None else self._order.tables,
            ends=None if ngrams.mode == "running" else (ngrams.boundary, ngrams.padding),
        )
        return batch

    def sampled(self, sample: int, *, batch_size: int | None = None) -> "NgramBatches":
        """Return batches of a fixed random sample of the same text, for a quick evaluation. The tokens are shared.

        A sample of all examples comes in the order of the text.
        """
        other = copy.copy(self)
        other._arrange(batch_size or self.batch_size, shuffle=False, sample=sample)
        return other

    def __iter__(self) -> Iterator[NgramBatch]:
        """Return an iterator over the batches of the current epoch."""
        return (self.at(index) for index in range(len(self)))


def _check_mode(mode: str, boundary: int | None, padding: int | None) -> None:
    if mode not in get_args(Mode):
        raise ValueError(f"mode must be one of {', '.join(get_args(Mode))}, got {mode!r}")
    if mode == "sentence" and (boundary is None or padding is None):
        raise ValueError(
            f"mode 'sentence' needs the tokens for boundary and padding, got {boundary} and {padding}; "
            "a text without sentences can be read in mode 'running' only"
        )


def _on_device(tokens: TokenSource, device: torch.device | str | None) -> Tensor:
    """Return the tokens on the device, as signed integers of the same width; they are copied only if necessary."""
    if not isinstance(tokens, Tensor):
        tokens = _as_tensor(tokens)
    if (
        tokens.dim() != 1
        or tokens.is_floating_point()
        or tokens.is_complex()
        or tokens.dtype == torch.bool
    ):
        raise ValueError(
            f"tokens must be integers in one dimension, got {tokens.dtype} {tuple(tokens.shape)}"
        )
    signed = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tokens.itemsize]
    return tokens.view(signed).to(device)


def _as_tensor(tokens: np.ndarray[Any, Any]) -> Tensor:
    """Return a tensor that shares the memory of the array.

    Nothing in this file writes to it, so the warning of torch about a read-only array is not shown.
    """
    if (
        not isinstance(tokens, np.ndarray)
        or tokens.dtype.kind not in "iu"
        or not tokens.dtype.isnative
    ):
        got = tokens.dtype.str if isinstance(tokens, np.ndarray) else type(tokens).__name__
        raise ValueError(
            f"tokens must be an array of integers in the byte order of this machine, got {got}"
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(tokens.view(f"i{tokens.itemsize}"))
