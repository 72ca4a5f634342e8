"""Tagging with any number of tags: a bag of words, a hidden layer, and one head. A text may have several tags.

    python examples/tagger.py                                            # made-up texts with 20,000 tags
    python examples/tagger.py --texts mult.dat --tags tag-item.dat       # the files of citeulike-t
    python examples/tagger.py --head sampled --loss softmax              # the same with a sampled softmax

Line i of `--texts` has the words of text i as `N WORD:COUNT WORD:COUNT ...`, where a word is a number. Line j of
`--tags` has the numbers of the texts with tag j as `N TEXT TEXT ...`. A tenth of the texts is held out. The program
needs zloss and torch only.
"""

import argparse
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from command_line import add_training_options, optimizer_of, parse, positive, read_or_exit
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

import zloss


class Text(NamedTuple):
    """A text as a bag of words, and its tags."""

    words: Tensor  # (n,) all different
    counts: Tensor  # (n,) how often each occurs
    tags: Tensor  # (K,)


class Reader(nn.Module):
    """A network that reads texts and returns the hidden batch for the head."""

    def __init__(self, words: int, width: int, dropout: float) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(words, width, mode="sum")
        self.layers = nn.Sequential(
            nn.LayerNorm(width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, width), nn.ReLU()
        )
        nn.init.normal_(self.words.weight, std=0.1)

    def forward(self, texts: Sequence[Text]) -> Tensor:  # (B, width)
        device = self.words.weight.device
        lengths = torch.tensor([0, *(len(text.words) for text in texts[:-1])], device=device)
        words = torch.cat([text.words for text in texts]).to(device)
        weights = torch.cat([text.counts for text in texts]).to(device).float().log1p()
        h: Tensor = self.layers(self.words(words, lengths.cumsum(0), weights))
        return h


def train_epoch(
    reader: Reader,
    head: zloss.Head,
    optimizers: Sequence[torch.optim.Optimizer],
    texts: list[Text],
    batch: int,
) -> float:
    """Make one pass over all texts, and return the mean loss."""
    reader.train()
    total, steps = 0.0, 0
    for part in parts(random.sample(texts, len(texts)), batch):
        # Texts have different numbers of tags. The rest of a row is padding, which adds nothing to the loss.
        tags = pad_sequence([text.tags for text in part], batch_first=True, padding_value=-100)
        h = reader(part)
        loss = head(h, tags.to(h.device))
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        total, steps = total + loss.item(), steps + 1
    return total / steps


@torch.inference_mode()
def precision(reader: Reader, head: zloss.Head, texts: list[Text], k: int) -> float:
    """Return the share of right tags among the k tags with the highest scores."""
    reader.eval()
    right = 0
    for part in parts(texts, 500):
        _, tags = head.topk(reader(part), k)
        right += sum(
            int(torch.isin(own, text.tags).sum())
            for own, text in zip(tags.cpu(), part, strict=True)
        )
    return right / (k * len(texts))


def popular(trained: list[Text], tested: list[Text], tags: int, k: int) -> float:
    """Return the precision of a guess of the most frequent tags, which a model has to beat."""
    best = (
        torch.bincount(torch.cat([text.tags for text in trained]), minlength=tags).topk(k).indices
    )
    return sum(torch.isin(best, text.tags).sum().item() for text in tested) / (k * len(tested))


def parts(texts: list[Text], size: int) -> list[list[Text]]:
    """Return the texts in parts of equal size; the last one may be smaller."""
    return [texts[start : start + size] for start in range(0, len(texts), size)]


def read(texts: Path, tags: Path) -> tuple[list[Text], int, int]:
    """Return the texts that have words and tags, the number of words, and the number of tags."""
    tagged = [[int(text) for text in line.split()[1:]] for line in tags.read_text().splitlines()]
    bags = [
        [pair.split(":") for pair in line.split()[1:]] for line in texts.read_text().splitlines()
    ]
    own: list[list[int]] = [[] for _ in bags]
    for tag, having in enumerate(tagged):
        for text in having:
            own[text].append(tag)
    found = []
    for bag, mine in zip(bags, own, strict=True):
        if bag and mine:
            words, counts = torch.tensor([[int(number) for number in pair] for pair in bag]).T
            found.append(Text(words, counts, torch.tensor(mine)))
    if not found:
        raise ValueError("no text has words and tags")
    return found, 1 + max(int(text.words.max()) for text in found), len(tagged)


def made_up(tags: int, texts: int) -> tuple[list[Text], int, int]:
    """Return texts with one to eight tags. A text has some of the five words of each tag, and ten random words."""
    words = 5000
    telling = torch.randint(words, (tags, 5))

    def write() -> Text:
        # The third power makes some tags far more frequent than others.
        own = (tags * torch.rand(random.randint(1, 8)) ** 3).long().unique()
        brought = telling[own][torch.rand(len(own), 5) < 0.7]
        bag, counts = torch.cat([brought, torch.randint(words, (10,))]).unique(return_counts=True)
        return Text(bag, counts, own)

    return [write() for _ in range(texts)], words, tags


def main(arguments: Sequence[str] | None = None) -> float:
    """Train, print the scores, and return the last precision."""
    options = parsed(arguments)
    random.seed(options.seed)
    torch.manual_seed(options.seed)
    if options.texts is None:
        texts, words, tags = made_up(options.made_up_tags, options.made_up_texts)
    else:
        texts, words, tags = read_or_exit(read, options.texts, options.tags)
    if len(texts) < 10:
        raise SystemExit(f"{len(texts)} texts are too few: a tenth of them is held out")
    random.shuffle(texts)
    tested, trained = texts[: len(texts) // 10], texts[len(texts) // 10 :]
    many = sum(len(text.tags) for text in texts) / len(texts)
    print(f"{len(texts):,} texts, {words:,} words, {tags:,} tags, {many:.1f} of them a text")
    print(
        f"precision@{options.k} of the most popular tags: {popular(trained, tested, tags, options.k):.2%}"
    )

    reader = Reader(words, options.width, options.dropout).to(options.device)
    head = (
        zloss.HeadConfig(head=options.head, loss=options.loss)
        .build(options.width, tags)
        .to(options.device)
    )
    optimizers = [torch.optim.Adam(reader.parameters(), lr=1e-3), optimizer_of(head, options.lr)]
    schedules = [
        torch.optim.lr_scheduler.ExponentialLR(optimizer, options.decay) for optimizer in optimizers
    ]
    found = 0.0
    for epoch in range(1, options.epochs + 1):
        begun = time.perf_counter()
        loss = train_epoch(reader, head, optimizers, trained, options.batch)
        seconds = time.perf_counter() - begun
        found = precision(reader, head, tested, options.k)
        print(f"epoch {epoch}: loss {loss:.3f}, precision@{options.k} {found:.2%}, {seconds:.0f} s")
        for schedule in schedules:
            schedule.step()
    return found


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options. A mistake ends the program with a message."""
    parser = argparse.ArgumentParser(description="Tagging with any number of tags.")
    parser.add_argument("--texts", type=Path, help="a bag of words on each line: N WORD:COUNT ...")
    parser.add_argument("--tags", type=Path, help="the texts of a tag on each line: N TEXT ...")
    parser.add_argument(
        "--made-up-tags",
        type=positive,
        default=20_000,
        help="number of tags without files (%(default)s)",
    )
    parser.add_argument(
        "--made-up-texts",
        type=positive,
        default=40_000,
        help="number of texts without files (%(default)s)",
    )
    add_training_options(parser, example="texts")
    parser.set_defaults(decay=0.85, epochs=8, dropout=0.3, k=5)
    return parse(parser, arguments, "texts", "tags")


if __name__ == "__main__":
    main()
