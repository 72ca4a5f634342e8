"""N-grams of a text as batches on a device: the last n words and the word to predict, in a seeded order.

    batches = NgramBatches(corpus.split("train"), context=6, batch_size=250, device="cuda", seed=1)
    context, target = batches.batch(epoch=0, index=17)      # (B, n), (B,): a pure function of seed, epoch and index

Nothing is prepared but the tokens themselves, in the narrow type of their file: contexts are cut out of them on the
device, batch by batch, without a loop over examples. On a CPU the array is used where it is, memory-mapped or not; on
a GPU a batch is one launch where Triton is installed.

Two modes. **Running** text: example t predicts token t + n from the n before it, across the ends of sentences. By
**sentence**: every token is predicted, from the words of its own sentence alone, with `padding` for those that would
stand before it; a sentence ends with the token `boundary`, which is predicted too.

Inside a CUDA graph, use `at(index)` with an index that is a tensor on the device, and `start(epoch)` between replays.

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
    """The n-grams of a text by number, 0 .. len - 1 in the order of the text.

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
        # Of the context and the target, from the number of the example.
        first = 0 if mode == "running" else -context
        self._offsets = torch.arange(first, first + context + 1, device=self.tokens.device)

    def __len__(self) -> int:
        return self._length

    def read(self, examples: Tensor) -> NgramBatch:  # (B,) int64
        """Contexts and targets of these examples."""
        places = examples[:, None] + self._offsets
        if self.mode == "running":
            window = self._tokens_at(places)
            return window[:, :-1], window[:, -1]
        window = self._tokens_at(places.clamp_min(0))
        context, target = window[:, :-1], window[:, -1]
        ends = (context == self.boundary) | (places[:, :-1] < 0)
        # Where a sentence ends here or further on, the target belongs to a later one.
        is_foreign = ends.flip(1).cumsum(1).flip(1) > 0
        assert self.padding is not None, "checked when it was made"
        return context.masked_fill(is_foreign, self.padding), target

    def _tokens_at(self, places: Tensor) -> Tensor:
        narrow = self.tokens[places]
        bits = 8 * narrow.itemsize
        # Ids are unsigned, but torch gathers signed integers only: the mask undoes their sign.
        return narrow.long() if bits == 64 else narrow.long() & (2**bits - 1)


class NgramBatches:
    """Batches of n-grams, in an order that is a pure function of seed and epoch.

    Args:
        tokens: class ids, a numpy array (a memmap, say) or a tensor of any integer type, one-dimensional. Negative
            numbers of a signed type are read as unsigned ones.
        context: n, words before the one to predict.
        batch_size: B.
        mode: "running" or "sentence", see above.
        boundary: the token at the end of every sentence; needed by sentence.
        padding: the token that stands for words before a sentence; needed by sentence.
        device: where batches are made. Elsewhere than the tokens, these are copied there once.
        seed: of the order.
        shuffle: another order every epoch, in full batches only, where the examples left over are others every time.
            Without it all examples in the order of the text, the last batch being what is left.
        sample: so many examples, drawn once and for all; not with shuffle. A smaller sample is the beginning of a
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
        """Decide on the order."""
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
        """The number of n-grams in the text; `examples` is less where there is a sample of them only."""
        return len(self.ngrams)

    @property
    def device(self) -> torch.device:
        """Where batches are made."""
        return self.ngrams.tokens.device

    def __len__(self) -> int:
        """Batches an epoch."""
        return (
            self.examples // self.batch_size
            if self.shuffle
            else math.ceil(self.examples / self.batch_size)
        )

    def batch(self, epoch: int, index: int) -> NgramBatch:
        """A batch of an epoch; without shuffle every epoch is the same."""
        self.start(epoch)
        return self.at(index)

    def start(self, epoch: int) -> None:
        """Change over to the order of an epoch, in place, if it is not there yet."""
        if self.shuffle and self._order is not None and self._order.epoch != epoch:
            self._order.start(epoch)

    def at(self, index: int | Tensor) -> NgramBatch:
        """A batch of the epoch that was started. An index on the device, () int64, is not checked: a full batch."""
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
        batch: NgramBatch = kernels.load("ngrams").batch(
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
        """A fixed sample of the same text, for a quick evaluation; all of it is in order. Shares the tokens."""
        other = copy.copy(self)
        other._arrange(batch_size or self.batch_size, shuffle=False, sample=sample)
        return other

    def __iter__(self) -> Iterator[NgramBatch]:
        """The batches of the epoch that was started."""
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
    """The tokens as a tensor of a signed type of the same width, not copied where they are there already."""
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
    """Shares the memory. Nothing here ever writes into it, so that torch need not warn of a read-only array."""
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
