"""Next-item recommendation with any number of items: a GRU over the items of a session, and one head for all items.

    python examples/next_item.py                                          # made-up sessions over 10,000 items
    python examples/next_item.py --sessions train.txt --examples test.txt
    python examples/next_item.py --head dense --loss softmax              # the same with a full softmax

`--sessions` names a file with one session on each line, its items separated by spaces. `--examples` names a file with
a session, a tab and the item that followed on each line. Items may have any names. The program needs zloss and torch
only.
"""

import argparse
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from command_line import add_training_options, optimizer_of, parse, positive, read_or_exit
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

import zloss

Session = list[int]
LONGEST = 20  # the latest items of a session, which the network reads


class Recommender(nn.Module):
    """A network that reads a session and returns a state after each of its items."""

    def __init__(self, items: int, width: int, dropout: float) -> None:
        super().__init__()
        # With dense gradients every step would cost a pass over the embeddings of all items.
        self.embedding = nn.Embedding(items, width, sparse=True)
        self.dropout = nn.Dropout(dropout)
        self.gru = nn.GRU(width, width, batch_first=True)
        nn.init.normal_(self.embedding.weight, std=0.1)

    def forward(self, sessions: Tensor) -> Tensor:  # (B, T) -> (B, T, width)
        states: Tensor = self.gru(self.dropout(self.embedding(sessions)))[0]
        return states


def train_epoch(
    model: Recommender,
    head: zloss.Head,
    optimizers: Sequence[torch.optim.Optimizer],
    sessions: list[Session],
    batch: int,
) -> float:
    """Make one pass over all sessions, and return the mean loss."""
    device = model.embedding.weight.device
    model.train()
    total, steps = 0.0, 0
    for part in shuffled_batches(sessions, batch):
        items = pad_sequence(
            [torch.tensor(session) for session in part], batch_first=True, padding_value=-1
        ).to(device)
        inputs, targets = items[:, :-1].clamp_min(0), items[:, 1:]
        # Every position with a next item is an example. Padding is left out before it costs anything.
        h = model(inputs)[targets >= 0]
        loss = head(h, targets[targets >= 0])
        loss.backward()
        zloss.clip_grad_norm_([model.gru, head], max_norm=5.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        total, steps = total + loss.item(), steps + 1
    return total / steps


@torch.inference_mode()
def evaluate(
    model: Recommender, head: zloss.Head, examples: list[tuple[Session, int]], k: int
) -> tuple[float, float]:
    """Return recall and mean reciprocal rank of the items that followed, both at k."""
    device = model.embedding.weight.device
    model.eval()
    ranks = []
    for start in range(0, len(examples), 1000):
        part = examples[start : start + 1000]
        sessions = pad_sequence(
            [torch.tensor(session) for session, _ in part], batch_first=True
        ).to(device)
        last = torch.tensor([len(session) - 1 for session, _ in part], device=device)
        h = model(sessions)[torch.arange(len(part), device=device), last]
        ranks.append(head.rank(h, torch.tensor([item for _, item in part], device=device)).cpu())
    rank = torch.cat(ranks)
    found = rank <= k
    return found.double().mean().item(), torch.where(found, 1 / rank, 0).double().mean().item()


def popular(sessions: list[Session], examples: list[tuple[Session, int]], k: int) -> float:
    """Return the recall of a recommendation of the most frequent items, which a model has to beat."""
    counts = torch.bincount(torch.tensor([item for session in sessions for item in session[1:]]))
    best = set(counts.topk(min(k, len(counts))).indices.tolist())
    return sum(item in best for _, item in examples) / len(examples)


def shuffled_batches(sessions: list[Session], batch: int) -> Iterator[list[Session]]:
    """Yield sessions of similar length together, so that little is padded; the batches are in random order."""
    order = sorted(sessions, key=lambda session: (len(session), random.random()))
    batches = [order[start : start + batch] for start in range(0, len(order), batch)]
    random.shuffle(batches)
    yield from batches


def build_head(options: argparse.Namespace, items: int) -> zloss.Head:
    """Return the head of the options, with an `a` for items.

    The default `a` of `HeadConfig` is for classes like words, where a few classes make up most of a text. Items have
    more equal frequencies. The z of a target is then at most about sqrt(width), whatever the number of items.
    """
    loss = {"a": options.a or 10 / options.width**0.5} if options.loss == "z_loss" else {}
    return zloss.HeadConfig(head=options.head, loss=options.loss, options=loss).build(
        options.width, items
    )


def read(sessions: Path, examples: Path) -> tuple[list[Session], list[tuple[Session, int]], int]:
    """Return both files with items as numbers, and the number of items. Only items of the training file count."""
    lines = [line.split() for line in sessions.read_text().splitlines()]
    number = {
        item: i for i, item in enumerate(dict.fromkeys(item for line in lines for item in line))
    }
    pairs = (line.rsplit("\t", 1) for line in examples.read_text().splitlines())
    known = ((numbered(prefix.split(), number), number.get(item)) for prefix, item in pairs)
    tested = [(prefix[-LONGEST:], item) for prefix, item in known if prefix and item is not None]
    trained = [numbered(line, number)[-LONGEST - 1 :] for line in lines if len(line) > 1]
    if not (trained and tested):
        raise ValueError(
            "there is no session of two items, or no example of items that occur in one"
        )
    return trained, tested, len(number)


def numbered(items: Iterable[str], number: dict[str, int]) -> Session:
    """Return the numbers of the items that have one."""
    return [number[item] for item in items if item in number]


def made_up(items: int, sessions: int) -> tuple[list[Session], list[tuple[Session, int]], int]:
    """Return sessions in which one of three items follows each item, and one time in ten any other item."""
    following = torch.randint(items, (items, 3)).tolist()

    def walk() -> Session:
        # Some items are visited far more often than others.
        first = int(items * random.random() ** 3)
        session = [first]
        for _ in range(random.randint(1, 8)):
            strays = random.random() < 0.1
            session.append(
                random.randrange(items) if strays else random.choice(following[session[-1]])
            )
        return session

    tested = [walk() for _ in range(2000)]
    return (
        [walk() for _ in range(sessions)],
        [(session[:-1], session[-1]) for session in tested],
        items,
    )


def main(arguments: Sequence[str] | None = None) -> float:
    """Train, print the scores, and return the last recall."""
    options = parsed(arguments)
    random.seed(options.seed)
    torch.manual_seed(options.seed)
    if options.sessions is None:
        sessions, examples, items = made_up(options.items, 5 * options.items)
    else:
        sessions, examples, items = read_or_exit(read, options.sessions, options.examples)
    print(f"{len(sessions):,} sessions, {items:,} items, {len(examples):,} examples to test")
    print(
        f"recall@{options.k} of the most popular items: {popular(sessions, examples, options.k):.2%}"
    )

    model = Recommender(items, options.width, options.dropout).to(options.device)
    head = build_head(options, items).to(options.device)
    optimizers = [
        torch.optim.SparseAdam(model.embedding.parameters(), lr=1e-3),
        torch.optim.Adam(model.gru.parameters(), lr=1e-3),
        optimizer_of(head, options.lr),
    ]
    schedules = [
        torch.optim.lr_scheduler.ExponentialLR(optimizer, options.decay) for optimizer in optimizers
    ]
    recall = 0.0
    for epoch in range(1, options.epochs + 1):
        begun = time.perf_counter()
        loss = train_epoch(model, head, optimizers, sessions, options.batch)
        seconds = time.perf_counter() - begun
        recall, mrr = evaluate(model, head, examples, options.k)
        scores = f"recall@{options.k} {recall:.2%}, MRR@{options.k} {mrr:.2%}"
        print(f"epoch {epoch}: loss {loss:.3f}, {scores}, {seconds:.0f} s")
        for schedule in schedules:
            schedule.step()
    return recall


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options. A mistake ends the program with a message."""
    parser = argparse.ArgumentParser(
        description="Next-item recommendation with any number of items."
    )
    parser.add_argument("--sessions", type=Path, help="sessions for training, one on each line")
    parser.add_argument(
        "--examples", type=Path, help="examples for the test: session, tab, next item"
    )
    parser.add_argument(
        "--items", type=positive, default=10_000, help="number of items without files (%(default)s)"
    )
    parser.add_argument("--a", type=float, help="a of the Z-loss (10 / sqrt(width))")
    add_training_options(parser, example="sessions")
    parser.set_defaults(decay=0.7, epochs=5, dropout=0.0, k=20)
    return parse(parser, arguments, "sessions", "examples")


if __name__ == "__main__":
    main()
