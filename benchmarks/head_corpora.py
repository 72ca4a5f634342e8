"""Four corpora as tensors, with the small networks that read them, for the trials of `benchmarks.head_defaults`.

    data = load("yoochoose", folder)        files of the corpus, below `folder`, in the forms named at each reader
    reader = data.reader()
    h = reader(data.train.inputs[rows])     (B, WIDTH), for any head

Every input is a row of numbers of items or words, padded with -1. The order and the places of validation examples
follow from a seed.
"""

import io
import random
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

CorpusName = Literal["ptb", "yoochoose", "diginetica", "citeulike"]
WIDTH = 64  # of embeddings and of the hidden layer: H
CONTEXT = 4  # words before the predicted one
LATEST = 10  # items of a session that the network reads
MOST_TAGS = 24  # of a text in training; a text with more trains on some of them
HELD_OUT = 5_000  # examples of validation and of the test, at most
PADDING = -1
_SEED = 0


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Inputs and targets, one example in a row."""

    inputs: Tensor  # (N, T), padded
    targets: Tensor  # (N, K), padded with the ignore_index

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True, kw_only=True)
class Splits:
    """A corpus: its splits, its classes and the network that reads it."""

    name: CorpusName
    inputs: int  # different words or items among the inputs
    classes: int
    train: Examples
    validation: Examples
    test: Examples
    reader: Callable[[], nn.Module]

    @property
    def counts(self) -> Tensor:  # (C,)
        """The number of training examples of each class, and one more, so that samplers can draw every class."""
        targets = self.train.targets.flatten()
        return 1 + torch.bincount(targets[targets >= 0], minlength=self.classes)


class WordReader(nn.Module):
    """Embeddings of the words of a context, one after the other, and a hidden layer."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embedding = _embedding(words)
        self.hidden = nn.Linear(CONTEXT * WIDTH, WIDTH)

    def forward(self, context: Tensor) -> Tensor:  # (B, CONTEXT) -> (B, WIDTH)
        h: Tensor = self.hidden(self.embedding(1 + context).flatten(1)).relu()
        return h


class SessionReader(nn.Module):
    """The embedding of the last item and the mean of all items, and a hidden layer."""

    def __init__(self, items: int) -> None:
        super().__init__()
        self.embedding = _embedding(items)
        self.hidden = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, items: Tensor) -> Tensor:  # (B, LATEST), the last item first -> (B, WIDTH)
        vectors, is_item = self.embedding(1 + items), (items >= 0)[:, :, None]
        mean = (vectors * is_item).sum(1) / is_item.sum(1)
        h: Tensor = self.hidden(torch.cat([vectors[:, 0], mean], 1)).relu()
        return h


class TextReader(nn.Module):
    """The sum of the embeddings of the words of a text, normalised, and a hidden layer."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(1 + words, WIDTH, mode="sum", sparse=True, padding_idx=0)
        nn.init.normal_(self.words.weight[1:], std=0.1)
        self.layers = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()
        )

    def forward(self, words: Tensor) -> Tensor:  # (B, T) -> (B, WIDTH)
        h: Tensor = self.layers(self.words(1 + words))
        return h


def _embedding(numbers: int) -> nn.Embedding:
    embedding = nn.Embedding(1 + numbers, WIDTH, sparse=True)  # row 0 is the padding
    nn.init.normal_(embedding.weight, std=0.1)
    return embedding


def load(name: CorpusName, folder: Path) -> Splits:
    """Return a corpus from its files below `folder`."""
    random.seed(_SEED)
    torch.manual_seed(_SEED)
    return _LOADERS[name](name, folder)


def _words(name: CorpusName, folder: Path) -> Splits:
    """Penn Treebank: `ptb/ptb.{train,valid,test}.txt`, a sentence on each line."""
    texts = {
        split: (folder / "ptb" / f"ptb.{split}.txt").read_text().replace("\n", " <eos> ").split()
        for split in ("train", "valid", "test")
    }
    number = {word: place for place, word in enumerate(dict.fromkeys(texts["train"]))}

    def examples(split: str) -> Examples:
        tokens = torch.tensor([number[word] for word in texts[split]])
        windows = tokens.unfold(0, CONTEXT + 1, 1)
        return Examples(inputs=windows[:, :-1].contiguous(), targets=windows[:, -1:].contiguous())

    return Splits(
        name=name,
        inputs=len(number),
        classes=len(number),
        train=examples("train"),
        validation=_sample(examples("valid")),
        test=_sample(examples("test")),
        reader=lambda: WordReader(len(number)),
    )


def _sessions(name: CorpusName, folder: Path) -> Splits:
    """Sessions: `sessions/NAME.tar.xz` with `train_sessions.txt` and `test_examples.txt` (session, tab, next item).

    The last tenth of the training sessions is for validation.
    """
    archive = {"yoochoose": "yoochoose1_64", "diginetica": "diginetica"}[name]
    files = _unpacked(folder / "sessions" / f"{archive}.tar.xz")
    lines = [line.split() for line in files["train_sessions.txt"].splitlines()]
    number = {
        item: place for place, item in enumerate(dict.fromkeys(i for line in lines for i in line))
    }
    sessions = [[number[item] for item in line] for line in lines]
    cut = len(sessions) * 9 // 10
    tested = []
    for line in files["test_examples.txt"].splitlines():
        prefix, target = line.rsplit("\t", 1)
        known = [number[item] for item in prefix.split() if item in number]
        if known and target in number:
            tested.append((known, number[target]))
    return Splits(
        name=name,
        inputs=len(number),
        classes=len(number),
        train=_prefixes(_every_prefix(sessions[:cut])),
        validation=_sample(_prefixes(_every_prefix(sessions[cut:]))),
        test=_sample(_prefixes(tested)),
        reader=lambda: SessionReader(len(number)),
    )


def _every_prefix(sessions: Sequence[list[int]]) -> list[tuple[list[int], int]]:
    return [
        (session[:place], session[place])
        for session in sessions
        for place in range(1, len(session))
    ]


def _prefixes(pairs: Sequence[tuple[list[int], int]]) -> Examples:
    rows = [prefix[: -LATEST - 1 : -1] + [PADDING] * (LATEST - len(prefix)) for prefix, _ in pairs]
    return Examples(
        inputs=torch.tensor(rows), targets=torch.tensor([[target] for _, target in pairs])
    )


def _tags(name: CorpusName, folder: Path) -> Splits:
    """Tags of citeulike-t: `multilabel/citeulike-t.tar.xz` with `mult.dat` (words) and `tag-item.dat` (tags)."""
    files = _unpacked(folder / "multilabel" / "citeulike-t.tar.xz")
    tagged = [line.split()[1:] for line in files["tag-item.dat"].splitlines()]
    bags = [
        [int(pair.split(":")[0]) for pair in line.split()[1:]]
        for line in files["mult.dat"].splitlines()
    ]
    tags_of: list[list[int]] = [[] for _ in bags]
    for tag, texts in enumerate(tagged):
        for text in texts:
            tags_of[int(text)].append(tag)
    pairs = [(bag, tags) for bag, tags in zip(bags, tags_of, strict=True) if bag and tags]
    random.shuffle(pairs)
    words, tenth = 1 + max(max(bag) for bag, _ in pairs), len(pairs) // 10
    return Splits(
        name=name,
        inputs=words,
        classes=len(tagged),
        train=_bags([(bag, _at_most(tags, MOST_TAGS)) for bag, tags in pairs[2 * tenth :]]),
        validation=_bags(pairs[tenth : 2 * tenth]),
        test=_bags(pairs[:tenth]),
        reader=lambda: TextReader(words),
    )


def _at_most(tags: list[int], number: int) -> list[int]:
    return tags if len(tags) <= number else random.sample(tags, number)


def _bags(pairs: Sequence[tuple[list[int], list[int]]]) -> Examples:
    inputs, targets = (
        pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=padding)
        for rows, padding in zip(zip(*pairs, strict=True), (PADDING, -100), strict=True)
    )
    return Examples(inputs=inputs, targets=targets)


def _sample(examples: Examples) -> Examples:
    rows = torch.randperm(len(examples))[:HELD_OUT]
    return Examples(inputs=examples.inputs[rows], targets=examples.targets[rows])


def _unpacked(archive: Path) -> dict[str, str]:
    """Return the texts in an archive, by the last part of their names."""
    with tarfile.open(archive) as opened:
        files = {member.name: opened.extractfile(member) for member in opened if member.isfile()}
        return {
            Path(name).name: io.TextIOWrapper(file, "utf-8", errors="replace").read()
            for name, file in files.items()
            if file is not None
        }


_LOADERS: dict[CorpusName, Callable[[CorpusName, Path], Splits]] = {
    "ptb": _words,
    "yoochoose": _sessions,
    "diginetica": _sessions,
    "citeulike": _tags,
}
