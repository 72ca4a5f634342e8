"""The tasks on which `benchmarks.rates` compares learning rates: texts, sessions of shops, tags, and made-up classes.

Every task is read from the files as they are distributed, in this layout below one folder:

    ptb/ptb.train.txt, ptb/ptb.valid.txt                   a sentence on each line
    epd48/epd48.valid.txt.xz, epd48/epd48.test.txt.xz      as above
    fil8/fil8.xz                                           words on one long line
    sessions/NAME.tar.xz                                   train_sessions.txt, test_examples.txt: numbers of items
    multilabel/citeulike-t.tar.xz                          mult.dat, tag-item.dat

Shape letters: N examples, n words or items of context, K targets, C classes.
"""

import lzma
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.long_run import ZipfCodes

Examples = tuple[Tensor, Tensor]  # inputs and targets
_CONTEXT, _EMBEDDING, _MOST_WORDS, _MOST_TAGS = 5, 48, 100, 11
_VALIDATION = 3000  # examples


@dataclass(frozen=True)
class RateTask:
    """A task: how to draw a batch, what to validate on, and the layers that turn inputs into numbers."""

    classes: int
    draw: Callable[[int, torch.Generator], Examples]
    validation: Examples
    inputs: Callable[[], tuple[nn.Module, int]]  # the first layers, and their width


def read_task(name: str, folder: Path) -> RateTask:
    """Return a task by its name: a text, a set of sessions, "citeulike-t", or "zipf-C" with C made-up classes."""
    if name.startswith("zipf-"):
        return _zipf(int(name.removeprefix("zipf-")))
    if name == "citeulike-t":
        return _tags(folder / "multilabel" / "citeulike-t.tar.xz")
    if name in ("yoochoose1_64", "diginetica"):
        return _sessions(folder / "sessions" / f"{name}.tar.xz")
    return _text(*_words_of(name, folder))


def _zipf(classes: int) -> RateTask:
    codes = ZipfCodes(classes=classes, inputs=32, noise=0.5, seed=0)
    validation = codes.draw(_VALIDATION // 5, torch.Generator().manual_seed(1))
    return RateTask(classes, codes.draw, validation, lambda: (nn.Identity(), 32))


def _words_of(name: str, folder: Path) -> tuple[list[str], list[str]]:
    """Return the words to train and to validate on. Of large texts this is the first part of them."""
    if name == "ptb":
        paths = [folder / name / f"ptb.{split}.txt" for split in ("train", "valid")]
        train, valid = (path.read_text("utf-8").replace("\n", " <eos> ").split() for path in paths)
    elif name == "epd48":
        paths = [folder / name / f"epd48.{split}.txt.xz" for split in ("valid", "test")]
        train, valid = (
            lzma.decompress(path.read_bytes()).decode("utf-8").split() for path in paths
        )
    else:
        with lzma.open(folder / name / f"{name}.xz", "rt", encoding="utf-8") as file:
            words = file.read(10_000_000).split()
        train, valid = words[:-100_000], words[-100_000:]
    return train, valid


def _text(train: list[str], valid: list[str]) -> RateTask:
    numbers: dict[str, int] = {}
    tokens = torch.tensor([numbers.setdefault(word, len(numbers)) for word in train])
    # A word that the training text does not have gets the number of another rare one.
    known = torch.tensor([numbers.get(word, len(numbers) - 1) for word in valid])

    def ngrams(text: Tensor) -> Examples:
        windows = text.unfold(0, _CONTEXT + 1, 1)
        return windows[:, :-1], windows[:, -1]

    return _lookup(len(numbers), ngrams(tokens), ngrams(known), inputs=len(numbers))


def _sessions(path: Path) -> RateTask:
    numbers: dict[str, int] = {}
    contexts, targets = [], []
    for line in _lines(path, "train_sessions.txt"):
        items = [numbers.setdefault(item, len(numbers)) for item in line.split()]
        for end in range(1, len(items)):
            contexts.append(items[max(0, end - _CONTEXT) : end])
            targets.append(items[end])
    asked, answers = [], []
    for line in _lines(path, "test_examples.txt"):
        before, _, answer = line.rstrip("\n").partition("\t")
        context = [numbers[item] for item in before.split() if item in numbers]
        if context and answer in numbers:
            asked.append(context[-_CONTEXT:])
            answers.append(numbers[answer])
    training = (_padded(contexts, _CONTEXT), torch.tensor(targets))
    validation = (_padded(asked, _CONTEXT), torch.tensor(answers))
    return _lookup(len(numbers), training, validation, inputs=len(numbers) + 1)


def _tags(path: Path) -> RateTask:
    words = [
        [int(pair.partition(":")[0]) for pair in line.split()[1:]]
        for line in _lines(path, "mult.dat")
    ]
    tags: list[list[int]] = [[] for _ in words]
    classes = 0
    for tag, line in enumerate(_lines(path, "tag-item.dat")):
        classes = tag + 1
        for document in line.split()[1:]:
            tags[int(document)].append(tag)
    inputs = _padded([document[:_MOST_WORDS] for document in words], _MOST_WORDS)
    targets = _padded([document[:_MOST_TAGS] for document in tags], _MOST_TAGS) - 1
    targets[targets < 0] = -100
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    order = order[(targets[order] >= 0).any(1)]
    first, rest = order[:_VALIDATION], order[_VALIDATION:]
    vocabulary = int(inputs.max()) + 1

    def bag() -> tuple[nn.Module, int]:
        return nn.EmbeddingBag(vocabulary, _EMBEDDING, mode="mean", padding_idx=0), _EMBEDDING

    draw = _drawing(inputs[rest], targets[rest])
    return RateTask(classes, draw, (inputs[first], targets[first]), bag)


def _lookup(classes: int, training: Examples, validation: Examples, *, inputs: int) -> RateTask:
    def embedding() -> tuple[nn.Module, int]:
        return nn.Sequential(nn.Embedding(inputs, _EMBEDDING), nn.Flatten()), _CONTEXT * _EMBEDDING

    rows = torch.randperm(len(validation[1]), generator=torch.Generator().manual_seed(0))
    rows = rows[:_VALIDATION]
    held_out = (validation[0][rows], validation[1][rows])
    return RateTask(classes, _drawing(*training), held_out, embedding)


def _drawing(x: Tensor, target: Tensor) -> Callable[[int, torch.Generator], Examples]:
    def draw(size: int, generator: torch.Generator) -> Examples:
        rows = torch.randint(len(x), (size,), generator=generator)
        return x[rows], target[rows]

    return draw


def _padded(lists: list[list[int]], width: int) -> Tensor:  # (N, width)
    """Return lists of numbers as rows, each one more than it was; 0 fills what is missing on the left."""
    return torch.tensor(
        [[0] * (width - len(one)) + [number + 1 for number in one] for one in lists]
    )


def _lines(archive: Path, name: str) -> Iterable[str]:
    """Yield the lines of a file in an archive."""
    with tarfile.open(archive) as files:
        member = next(one for one in files if one.name.endswith(f"/{name}"))
        file = files.extractfile(member)
        assert file is not None, "it is a regular file"
        yield from (line.decode("utf-8") for line in file)
