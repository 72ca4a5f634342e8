"""Conversion of words to numbers, on all cores.

Every block of text is encoded separately: its words get numbers in the order of their first occurrence. The result is
the list of the different words of the block, and the number of every word. This is nearly all of the work, and blocks
do not depend on each other. The main process, which combines the blocks, looks at the different words only. They are a
few per cent of all words.
"""

import itertools
import multiprocessing
import os
import signal
import threading
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zloss_lab.corpora.errors import CorpusError
from zloss_lab.corpora.reading import Block
from zloss_lab.corpora.tokenizing import TextFormat

WordNumbers = npt.NDArray[np.uint32]


class EncodedBlock(NamedTuple):
    """A block of text as its different words, and for every word the number of the different word."""

    words: bytes  # separated by spaces: one object is faster to send than many, and fragments the memory less
    numbers: npt.NDArray[np.unsignedinteger[Any]]


class Numbering(defaultdict[bytes, int]):
    """Numbers for words: a new word gets the next number when it is looked up.

    >>> numbering = Numbering()
    >>> numbering.of([b"to", b"be", b"or", b"not", b"to", b"be"]).tolist()
    [0, 1, 2, 3, 0, 1]
    """

    def __init__(self) -> None:
        # Not `self.__len__`: a reference cycle would keep the words of every block in memory.
        super().__init__(itertools.count().__next__)

    def of(self, words: list[bytes]) -> WordNumbers:
        """Return the number of each word."""
        return np.fromiter(map(self.__getitem__, words), dtype=np.uint32, count=len(words))


def encode_block(block: Block, text: TextFormat) -> EncodedBlock:
    """Return the words of a block as numbers. Bytes that are not UTF-8 text are refused."""
    if text.tokenizer != "whitespace":
        block.check(block.text)  # tokenisers take characters, not bytes
    numbering = Numbering()
    numbers = numbering.of(text.words(block.text, starts_line=block.starts_line))
    words = b" ".join(numbering)
    block.check(words)
    narrow = len(numbering) <= 2**16  # half as much to send
    return EncodedBlock(words, numbers.astype(np.uint16) if narrow else numbers)


class Encoder:
    """Encodes a stream of blocks in order, in this process (`workers=0`) or in worker processes.

    Workers are spawned, not forked. A process that has used torch or shows a progress bar has threads, and a fork of
    it may hang. Therefore a script must have its main code below `if __name__ == "__main__":`.
    """

    def __init__(self, text: TextFormat, workers: int) -> None:
        self.text = text
        # The most blocks in work at a time: enough to keep all workers busy, few enough to limit the memory.
        self._window = 2 * workers + 2
        self._pool: ProcessPoolExecutor | None = None
        if workers:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin_work)

    def __enter__(self) -> "Encoder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._pool:
            self._pool.shutdown(cancel_futures=True)

    def encode(self, blocks: Iterable[Block]) -> Iterator[EncodedBlock]:
        """Yield the encoded blocks in their order. Only a few of them are in memory at a time."""
        if not self._pool:
            yield from (encode_block(block, self.text) for block in blocks)
            return
        try:
            yield from self._encode_elsewhere(self._pool, blocks)
        except BrokenProcessPool as error:
            raise CorpusError(
                "a worker process ended unexpectedly: was it killed, or is the memory full? Try fewer workers; "
                "workers=0 needs none. A script must protect its own work by `if __name__ == '__main__':`"
            ) from error

    def _encode_elsewhere(
        self, pool: ProcessPoolExecutor, blocks: Iterable[Block]
    ) -> Iterator[EncodedBlock]:
        under_way: deque[Future[EncodedBlock]] = deque()
        for block in blocks:
            under_way.append(pool.submit(encode_block, block, self.text))
            if len(under_way) >= self._window:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()


def _begin_work() -> None:
    """Prepare a worker: it ignores Ctrl-C, which the parent handles, and it ends when the parent has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)
