"""Next-item recommendation with any number of items, in one file that needs zloss and torch only.

    python next_item.py                                           # made-up sessions over 10,000 items
    python next_item.py --sessions clicks.csv --save model.pt     # the last tenth of the sessions is the test
    python next_item.py --examples newer.csv --load model.pt      # scores of a saved model
    python next_item.py --sessions clicks.csv --head sampled      # the same with a sampled softmax

A CSV file has a header and a click on each line: the columns `session` and `item`, in any order and among others, and
perhaps `time`. Options give them other names. Clicks and sessions are put in the order of their times. Without times
they stay in the order of the file.

A file with another ending than .csv is text. In `--sessions` each line is a session, its items separated by spaces.
In `--examples` each line is a session, a tab and the item that followed.

The network reads the last item of a session and the mean of all its items. The embeddings of items are the rows of the
output layer. The program prints the scores of the network and of three ways of counting, over all items.
"""

# Long because a program that is copied out alone has one file.

import argparse
import csv
import math
import pickle
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

import zloss

KS = (1, 5, 20, 100)  # recall is printed at each, and the mean reciprocal rank at 20
LONGEST = 20  # the number of latest items of a session that are read
NO_ITEM = -1  # fills the rows of a batch

Session = list[int]
Example = tuple[Session, int]  # a session, and the item that followed
Scorer = Callable[[Session], Tensor]  # returns the scores of all items (C,)
Thing = TypeVar("Thing")


class Rates(NamedTuple):
    """Learning rates at the start of a training, and the optimizer of the head. The rates fall to zero in a line."""

    network: float
    head: float
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam


# Each head has rates of its own. With one rate for all, a comparison of heads would be a comparison of rates.
RATES = {
    "factored": Rates(network=3e-3, head=5.0, optimizer=zloss.FactoredSGD),
    "sampled": Rates(network=3e-3, head=3e-3, optimizer=torch.optim.SparseAdam),
    "hierarchical": Rates(network=3e-3, head=0.1, optimizer=torch.optim.Adagrad),
}
OTHER_RATES = Rates(network=3e-3, head=3e-3)
# A target with f clicks in training has the weight f^-BALANCE. Spherical losses need it: without weights they spend
# themselves on frequent items.
BALANCE = {"factored": 0.5, "gram": 0.5}
A = 1.0  # of the Z-loss
HEAD_OPTIONS: dict[str, dict[str, Any]] = {
    "sampled": {"num_samples": 512, "sampler": "unigram"},
}


class Data(NamedTuple):
    """Sessions to learn from, the latest one last, examples to test, and the names of the items."""

    sessions: list[Session]
    examples: list[Example]
    names: list[str]
    # Examples more, in which all items are unknown or the next one is: nobody can be right.
    unknown: int = 0


class Recommender(nn.Module):
    """A network that reads the last item of a session and the mean of all, with a head for all items."""

    def __init__(self, head: zloss.Head, dropout: float) -> None:
        super().__init__()
        width = head.in_features
        self.head = head
        shares = isinstance(head, zloss.SphericalOutput | zloss.DenseOutput | zloss.SampledSoftmax)
        self.own_embedding = nn.Embedding(0 if shares else head.num_classes, width)
        self.layers = nn.Sequential(
            nn.Dropout(dropout), nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, width)
        )

    def embedding(self, items: Tensor) -> Tensor:  # (B, T) -> (B, T, width)
        """Return the rows of the output layer. Heads without a row for each item have embeddings of their own."""
        head = self.head
        if isinstance(head, zloss.SphericalOutput):
            rows: Tensor = zloss.TiedEmbedding(head.layer)(items)
        elif isinstance(head, zloss.DenseOutput | zloss.SampledSoftmax):
            rows = F.embedding(items, head.linear.weight, sparse=head.is_row_sparse)
        else:
            rows = self.own_embedding(items)
        return rows

    def forward(self, sessions: Tensor, wanted: Tensor) -> Tensor:  # (B, T) twice -> (n, width)
        """Return the hidden batch for the head: a row after each wanted item."""
        is_item = sessions != NO_ITEM
        items = self.embedding(sessions.clamp_min(0)) * is_item[..., None]
        means = items.cumsum(1) / is_item.cumsum(1).clamp_min(1)[..., None]
        h: Tensor = self.layers(torch.cat([items[wanted], means[wanted]], dim=1))
        return h


class Settings(NamedTuple):
    """The values from which a network can be built again."""

    head: str
    loss: str
    a: float | None
    width: int
    dropout: float

    def build(self, counts: Tensor) -> Recommender:
        """Return a new network for items with these numbers of clicks."""
        options = dict(HEAD_OPTIONS.get(self.head, {}))
        if zloss.HeadConfig(head=self.head, loss=self.loss).loss == "z_loss":
            options["a"] = A if self.a is None else self.a
        config = zloss.HeadConfig(head=self.head, loss=self.loss, options=options)
        # Sampling needs a probability above zero for each item.
        head = config.build(self.width, len(counts), counts=counts.clamp_min(1))
        return Recommender(head, self.dropout)


def optimizers_of(model: Recommender, head: str) -> list[torch.optim.Optimizer]:
    """Return an optimizer for the layers and one for the head, with their rates at the start."""
    rates = RATES.get(head, OTHER_RATES)
    layers = [p for name, p in model.named_parameters() if not name.startswith("head.")]
    network = torch.optim.Adam(layers, lr=rates.network)
    layer = getattr(model.head, "layer", None)
    if isinstance(layer, zloss.FactoredLinear):
        return [network, rates.optimizer(layer, rates.head)]
    return [network, rates.optimizer(list(model.head.parameters()), rates.head)]


def padded(sessions: Sequence[Session], device: torch.device) -> Tensor:  # (B, T)
    """Return sessions as rows of one tensor."""
    rows = [torch.tensor(session) for session in sessions]
    return pad_sequence(rows, batch_first=True, padding_value=NO_ITEM).to(device)


def batches_of(sessions: Sequence[Session], batch: int) -> list[list[Session]]:
    """Return sessions of similar length together, so that little is padded; the batches are in random order."""
    order = sorted(sessions, key=lambda session: (len(session), random.random()))
    batches = [order[start : start + batch] for start in range(0, len(order), batch)]
    random.shuffle(batches)
    return batches


def train(
    model: Recommender,
    optimizers: Sequence[torch.optim.Optimizer],
    sessions: Sequence[Session],
    weight: Tensor,  # (C,) the weights of the items as targets
    *,
    epochs: int,
    batch: int,
    seconds: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[tuple[float, float]]:
    """Take all steps, and yield the share of the training that is done and the loss after each step."""
    device = weight.device
    first_rates = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    steps, begun = epochs * math.ceil(len(sessions) / batch), clock()
    model.train()
    parts = (part for _ in range(epochs) for part in batches_of(sessions, batch))
    for done, part in enumerate(parts):
        share = max(done / steps, (clock() - begun) / seconds)
        if share >= 1:
            return
        for optimizer, rate in zip(optimizers, first_rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate * (1 - share)
        items = padded(part, device)
        inputs, targets = items[:, :-1], items[:, 1:]
        is_target = targets != NO_ITEM  # every position with a next item is an example
        target = targets[is_target]
        loss = model.head(model(inputs, is_target), target, weight=weight[target])
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        yield share, loss.item()


def watched(things: Sequence[Thing], what: str) -> Iterator[Thing]:
    """Yield things, and say every five seconds how many of them are done."""
    said = time.perf_counter()
    for done, thing in enumerate(things):
        if time.perf_counter() > said + 5:
            said = time.perf_counter()
            print(f"  {what}: {done / len(things):.0%} done", file=sys.stderr)
        yield thing


@torch.inference_mode()
def network_ranks(model: Recommender, examples: Sequence[Example]) -> Tensor:  # (n,)
    """Return the ranks of the items that followed: 1 + the number of items with higher scores."""
    device = next(model.parameters()).device
    model.eval()
    ranks = []
    for start in watched(range(0, len(examples), 1000), "ranking"):
        part = examples[start : start + 1000]
        sessions = padded([session for session, _ in part], device)
        is_last = F.one_hot((sessions != NO_ITEM).sum(1) - 1, sessions.shape[1]).bool()
        target = torch.tensor([item for _, item in part], device=device)
        ranks.append(model.head.rank(model(sessions, is_last), target).cpu())
    return torch.cat(ranks)


def counting_ranks(scorer: Scorer, examples: Sequence[Example]) -> Tensor:  # (n,)
    """Return the ranks of the items that followed, by the same rule."""
    found = []
    for session, item in watched(examples, "ranking"):
        scores = scorer(session)
        found.append(1 + int((scores > scores[item]).sum()))
    return torch.tensor(found)


def scores_of(ranks: Tensor, unknown: int = 0) -> dict[str, float]:
    """Return recall at each k and the mean reciprocal rank at 20. Unknown examples are counted as not found.

    >>> scores_of(torch.tensor([1, 4, 30, 200]))
    {'recall@1': 0.25, 'recall@5': 0.5, 'recall@20': 0.5, 'recall@100': 0.75, 'MRR@20': 0.3125}
    """
    examples = len(ranks) + unknown
    recall = {f"recall@{k}": int((ranks <= k).sum()) / examples for k in KS}
    return recall | {"MRR@20": (1 / ranks[ranks <= 20].double()).sum().item() / examples}


def clicks_of(sessions: Sequence[Session], items: int) -> Tensor:  # (C,)
    """Return the number of clicks of each item."""
    clicked = torch.tensor([item for session in sessions for item in session], dtype=torch.long)
    return torch.bincount(clicked, minlength=items)


def popularity(sessions: Sequence[Session], items: int) -> Scorer:
    """Return the scorer that knows the number of clicks of each item, and ignores the session."""
    clicks = clicks_of(sessions, items).double()
    return lambda session: clicks


def companions(sessions: Sequence[Session], items: int) -> Scorer:
    """Return the scorer that counts what was near the last item in sessions.

    A click d places later counts 1 / d, and a click d places before a third of that.
    """
    popular = clicks_of(sessions, items).double()
    near: list[defaultdict[int, float]] = [defaultdict(float) for _ in range(items)]
    for session in sessions:
        for place, item in enumerate(session):
            for distance, later in enumerate(session[place + 1 :], start=1):
                near[item][later] += 1 / distance
                near[later][item] += 1 / (3 * distance)

    return lambda session: with_scores(popular, near[session[-1]])


def neighbours(
    sessions: Sequence[Session], items: int, *, recent: int = 1000, nearest: int = 100
) -> Scorer:
    """Return the scorer of vector session kNN: what is in similar sessions is recommended.

    The similarity is the cosine of two sessions as sets of items. In the session at hand the last item weighs 1, the
    one before it 1/2, and so on. Of the sessions that share an item, the `recent` latest are compared, and the
    `nearest` most similar ones count. Each gives its similarity to all its items.
    """
    popular = clicks_of(sessions, items).double()
    sets = [sorted(set(session)) for session in sessions]
    having: list[list[int]] = [[] for _ in range(items)]  # sessions, the latest last
    for number, own in enumerate(sets):
        for item in own:
            having[item].append(number)

    def score(session: Session) -> Tensor:
        weight = {item: 1 / (len(session) - place) for place, item in enumerate(session)}
        shared: defaultdict[int, float] = defaultdict(float)
        for item, one in weight.items():
            for number in having[item][-recent:]:
                shared[number] += one
        latest = sorted(shared)[-recent:]
        similarity = {number: shared[number] / math.sqrt(len(sets[number])) for number in latest}
        found: defaultdict[int, float] = defaultdict(float)
        for number in sorted(latest, key=lambda n: (similarity[n], n))[-nearest:]:
            for item in sets[number]:
                found[item] += similarity[number]
        return with_scores(popular, found)

    return score


def with_scores(popular: Tensor, found: Mapping[int, float]) -> Tensor:
    """Return the scores of all items, where a millionth of the popularity decides between equal ones."""
    scores = 1e-6 * popular / popular.max()
    scores[list(found)] += torch.tensor(list(found.values()), dtype=torch.double)
    return scores


BASELINES = {
    "popularity": popularity,
    "co-occurrence with the last item": companions,
    "session kNN": neighbours,
}


def read_clicks(path: Path, columns: "Columns") -> list[list[str]]:
    """Return the sessions of a CSV file in the order of their last clicks."""
    sessions: dict[str, list[tuple[float, str]]] = {}
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.reader(file, strict=True)
        header = next(rows, [])
        has_time = columns.time is not None or "time" in header
        wanted = [columns.session, columns.item, *([columns.time or "time"] if has_time else [])]
        for column in wanted:
            if column not in header:
                raise ValueError(
                    f"line 1 has no column {column!r} but {header}: name it with --session-column and so on"
                )
        places = [header.index(column) for column in wanted]
        for row in filter(None, rows):
            where = f"line {rows.line_num}"
            if len(row) != len(header):
                raise ValueError(f"{where} has {len(row)} fields, and the header has {len(header)}")
            session, item, *moment = (row[place].strip() for place in places)
            if not (session and item):
                raise ValueError(f"{where} has an empty {wanted[0 if not session else 1]!r}")
            when = seconds_of(moment[0], where) if moment else rows.line_num
            sessions.setdefault(session, []).append((when, item))
    clicks = [sorted(session, key=lambda click: click[0]) for session in sessions.values()]
    clicks.sort(key=lambda session: session[-1][0])
    return [[item for _, item in session] for session in clicks]


def seconds_of(text: str, where: str) -> float:
    """Return a time from a number or a date, such as 1609459200 or 2021-01-01T00:00:00.

    >>> seconds_of("2021-01-01T00:00:01+00:00", "line 2") - seconds_of("1609459200", "line 3")
    1.0
    """
    try:
        when = float(text)
    except ValueError:
        try:
            when = datetime.fromisoformat(text).timestamp()
        except ValueError as error:
            raise ValueError(f"{where}: {text!r} is neither a number nor a date") from error
    if not math.isfinite(when):
        raise ValueError(f"{where}: a time must be finite, got {text!r}")
    return when


class Columns(NamedTuple):
    """The names of the columns of a CSV file. Without a name for the times, there may be a column `time`."""

    session: str = "session"
    item: str = "item"
    time: str | None = None


def read_sessions(path: Path, columns: Columns) -> list[list[str]]:
    """Return the sessions of a file, the latest one last."""
    if path.suffix == ".csv":
        return read_clicks(path, columns)
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    return [line.split() for line in lines if line.strip()]


def read_examples(path: Path, columns: Columns) -> list[tuple[list[str], str]]:
    """Return the examples of a file. In a CSV file, each click after the first of its session is one."""
    if path.suffix == ".csv":
        return examples_of(read_clicks(path, columns))
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), start=1):
        prefix, tab, item = line.rpartition("\t")
        if not (tab and prefix.split() and len(item.split()) == 1):
            raise ValueError(f"line {number} must be a session, a tab and one item, got {line!r}")
        found.append((prefix.split(), item.strip()))
    return found


def examples_of(sessions: Sequence[list[str]]) -> list[tuple[list[str], str]]:
    """Return every click after the first of its session, with the clicks before it."""
    return [
        (session[:place], session[place])
        for session in sessions
        for place in range(1, len(session))
    ]


def numbered(
    sessions: Sequence[list[str]], examples: Sequence[tuple[list[str], str]], names: list[str]
) -> Data:
    """Return the data with items as numbers. Items without a name in `names` are unknown."""
    number = {name: place for place, name in enumerate(names)}

    def known(session: list[str]) -> Session:
        return [number[item] for item in session if item in number]

    tested = [(known(session)[-LONGEST:], number.get(item)) for session, item in examples]
    fit = [(session, item) for session, item in tested if session and item is not None]
    if not fit:
        raise ValueError("there is no example with a known item after a known item")
    trained = [known(session)[-LONGEST - 1 :] for session in sessions]
    return Data(trained, fit, names, unknown=len(tested) - len(fit))


def read(sessions: Path | None, examples: Path | None, columns: Columns, names: list[str]) -> Data:
    """Return the contents of the files. Without names the items of the sessions are the known ones."""
    clicks = [] if sessions is None else at(sessions, read_sessions, columns)
    if examples is None:
        tenth = len(clicks) // 10
        clicks, latest = clicks[: len(clicks) - tenth], clicks[len(clicks) - tenth :]
        tested = examples_of(latest)
    else:
        tested = at(examples, read_examples, columns)
    if not names:
        names = list(dict.fromkeys(item for session in clicks for item in session))
    if sessions is not None and not any(len(session) > 1 for session in clicks):
        raise SystemExit(f"{sessions} has no session of two items to learn from")
    try:
        return numbered(clicks, tested, names)
    except ValueError as error:
        raise SystemExit(f"{examples or sessions}: {error}") from error


def at(path: Path, reader: Callable[[Path, Columns], Any], columns: Columns) -> Any:
    """Return what the reader finds. A mistake in the file ends the program with one line that names it."""
    try:
        return reader(path, columns)
    except (ValueError, csv.Error, OSError) as error:
        raise SystemExit(f"{path}: {error}") from error


def made_up(items: int) -> Data:
    """Return sessions in which one of three items follows each item, and one time in ten any other item."""
    following = torch.randint(items, (items, 3)).tolist()

    def walk() -> Session:
        # Some items are visited far more often than others.
        session = [int(items * random.random() ** 3)]
        for _ in range(random.randint(1, 8)):
            strays = random.random() < 0.1
            session.append(
                random.randrange(items) if strays else random.choice(following[session[-1]])
            )
        return session

    tested = [walk() for _ in range(max(items // 5, 100))]
    return Data(
        [walk() for _ in range(5 * items)],
        [(session[:-1], session[-1]) for session in tested],
        [str(item) for item in range(items)],
    )


def save(
    path: Path, settings: Settings, model: Recommender, clicks: Tensor, names: list[str]
) -> None:
    """Write a model to a file. It holds tensors, numbers and text alone, so that `load` can refuse everything else."""
    weights = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
    content = {"settings": settings._asdict(), "weights": weights, "clicks": clicks, "names": names}
    torch.save(content, path)


def load(path: Path) -> tuple[Settings, Recommender, list[str]]:
    """Return a saved model. The file may be from anybody: `weights_only` refuses all code."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        settings = Settings(**content["settings"])
        model = settings.build(content["clicks"])
        model.load_state_dict(content["weights"])
        if len(content["names"]) != len(content["clicks"]):
            raise ValueError("items and names differ in number")
        return settings, model, content["names"]
    except (pickle.UnpicklingError, EOFError, LookupError, AttributeError) as error:
        fault: Exception = error
    except (TypeError, ValueError, RuntimeError) as error:
        fault = error
    first = str(fault).strip().partition("\n")[0]
    raise SystemExit(f"{path} is not a model that --save has written: {first}") from fault


def target_weights(clicks: Tensor, head: str) -> Tensor:  # (C,) -> (C,)
    """Return the weights of the items as targets, with a mean of 1 over all clicks."""
    weight = clicks.clamp_min(1).double() ** -BALANCE.get(head, 0.0)
    return (weight * clicks.sum() / (clicks * weight).sum()).float()


def fit(model: Recommender, settings: Settings, data: Data, options: argparse.Namespace) -> None:
    """Train a model, and say how far it is."""
    weight = target_weights(clicks_of(data.sessions, len(data.names)), settings.head)
    optimizers = optimizers_of(model, settings.head)
    for optimizer, rate in zip(optimizers, (options.network_lr, options.lr), strict=True):
        optimizer.param_groups[0]["lr"] = rate or optimizer.param_groups[0]["lr"]
    steps = train(
        model,
        optimizers,
        [session for session in data.sessions if len(session) > 1],
        weight.to(options.device),
        epochs=options.epochs,
        batch=options.batch,
        seconds=60 * options.minutes,
    )
    begun = said = time.perf_counter()
    mean = 0.0
    for step, (share, loss) in enumerate(steps, start=1):
        mean += (loss - mean) / min(step, 100)
        if time.perf_counter() > said + 5:
            said = time.perf_counter()
            print(f"  {share:.0%} done, loss {mean:.3f}, {said - begun:.0f} s", file=sys.stderr)
    print(f"trained for {time.perf_counter() - begun:.0f} s, loss {mean:.3f}")


def show(name: str, ranks: Tensor, unknown: int, seconds: float) -> dict[str, float]:
    """Print the scores on one line, and return them."""
    scores = scores_of(ranks, unknown)
    line = ", ".join(f"{score} {value:.2%}" for score, value in scores.items())
    print(f"{name}: {line} ({seconds:.0f} s)")
    return scores


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train or load a network, print the scores of everything, and return the scores of the network."""
    options = parsed(arguments)
    names: list[str] = []
    if options.load:
        settings, model, names = load(options.load)
    random.seed(options.seed)
    torch.manual_seed(options.seed)
    if options.sessions or options.examples:
        columns = Columns(options.session_column, options.item_column, options.time_column)
        data = read(options.sessions, options.examples, columns, names)
    else:
        data = made_up(options.items)
    items = len(data.names)
    print(f"{len(data.sessions):,} sessions, {items:,} items, {len(data.examples):,} examples")
    if data.unknown:
        print(f"{data.unknown:,} more examples have unknown items: they count as not found")
    if data.sessions:
        for name, baseline in BASELINES.items():
            begun = time.perf_counter()
            ranks = counting_ranks(baseline(data.sessions, items), data.examples)
            show(name, ranks, data.unknown, time.perf_counter() - begun)
    if not options.load:
        settings = Settings(options.head, options.loss, options.a, options.width, options.dropout)
        clicks = clicks_of(data.sessions, items)
        model = settings.build(clicks).to(options.device)
        fit(model, settings, data, options)
        if options.save:
            save(options.save, settings, model, clicks, data.names)
    model.to(options.device)
    begun = time.perf_counter()
    ranks = network_ranks(model, data.examples)
    return show(settings.head, ranks, data.unknown, time.perf_counter() - begun)


def positive(text: str) -> int:
    """Return a whole number from the command line; a number below 1 is an error."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be 1 at least, got {text}")
    return number


def above_zero(text: str) -> float:
    """Return a number from the command line; 0 and below is an error."""
    if not (number := float(text)) > 0:
        raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
    return number


def share(text: str) -> float:
    """Return a share from the command line, from 0 to below 1."""
    if not 0 <= (number := float(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be from 0 to below 1, got {text}")
    return number


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options. A mistake ends the program with a message."""
    here = "cuda" if torch.cuda.is_available() else "cpu"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--sessions", type=Path, help="sessions to learn from: .csv, or text")
    add("--examples", type=Path, help="sessions to test: .csv, or text")
    add("--session-column", default="session", help="column of a CSV file (%(default)s)")
    add("--item-column", default="item", help="column of a CSV file (%(default)s)")
    add("--time-column", help="column of a CSV file with numbers or dates (time, if there is one)")
    add("--items", type=positive, default=10_000, help="made-up items without files (%(default)s)")
    add("--save", type=Path, metavar="FILE", help="write the trained model")
    add("--load", type=Path, metavar="FILE", help="score a saved model instead of training one")
    add("--head", default="factored", help="a head of zloss.HeadConfig (%(default)s)")
    add("--loss", default="", help="a loss of this head (its first one)")
    add("--a", type=above_zero, help="a of the Z-loss (1)")
    add("--lr", type=above_zero, help="learning rate of the head, in place of the one in RATES")
    add("--network-lr", type=above_zero, help="learning rate of the layers below it (0.003)")
    add("--epochs", type=positive, default=5, help="passes over the sessions (%(default)s)")
    add("--minutes", type=above_zero, default=math.inf, help="longest time of training (no limit)")
    add("--batch", type=positive, default=128, help="sessions in a step (%(default)s)")
    add("--width", type=positive, default=128, help="width of all layers (%(default)s)")
    add("--dropout", type=share, default=0.2, help="share of the inputs to drop (%(default)s)")
    add("--device", default=here, choices=("cpu", "cuda", "mps"), help="(%(default)s)")
    add("--seed", type=int, default=0, help="seed of random numbers (%(default)s)")
    options = parser.parse_args(arguments)
    for path in filter(None, (options.sessions, options.examples, options.load)):
        if not path.is_file():
            parser.error(f"there is no file {path}")
    if options.examples and not (options.sessions or options.load):
        parser.error("--examples needs --sessions to learn from, or a model to --load")
    if options.save and not options.save.absolute().parent.is_dir():
        parser.error(f"there is no folder {options.save.absolute().parent} for --save")
    if options.load and options.save:
        parser.error("--load trains nothing that --save could write: give one of them")
    try:
        own = {} if options.a is None else {"a": options.a}
        zloss.HeadConfig(head=options.head, loss=options.loss, options=own)
    except ValueError as error:
        parser.error(str(error))
    return options


if __name__ == "__main__":
    main()
