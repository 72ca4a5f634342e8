"""Tagging with any number of tags, in one file that needs zloss and torch only. A text may have several tags.

    python tagger.py                                              # made-up texts with 20,000 tags
    python tagger.py --texts papers.jsonl --save model.pt         # a tenth of the texts is the test
    python tagger.py --test newer.jsonl --load model.pt           # scores of a saved model
    python tagger.py --texts mult.dat --tags tag-item.dat         # the files of citeulike-t
    python tagger.py --texts papers.csv --head sampled            # the same with a sampled softmax

A line of a .jsonl file is an object such as {"text": "some words", "tags": ["a tag", "another"]}. A .csv file has a
header and the columns `text` and `tags`, in any order and among others; a semicolon separates the tags of a text.
Options give the columns other names. Words are sequences of letters and digits in lower case.

With `--tags` the words are counted already. Line i of `--texts` has the words of text i as `N WORD:COUNT ...`. Line j
of `--tags` has the numbers of the texts with tag j as `N TEXT ...`. Texts and tags are counted from 0.

The network adds up the embeddings of the words, weighted by tf-idf. The program prints the precision of the network and
of three simple baselines, over all tags.
"""

# Long because a program that is copied out alone has one file.

import argparse
import csv
import json
import math
import pickle
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

import zloss

KS = (1, 3, 5)  # the precision is printed at each

Thing = TypeVar("Thing")


class Rates(NamedTuple):
    """Learning rates at the start of a training, and the optimizer of the head. The rates fall to zero in a line."""

    network: float
    head: float
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam


# Each head has rates of its own. With one rate for all, a comparison of heads would be a comparison of rates.
RATES = {
    "factored": Rates(network=3e-3, head=30.0, optimizer=zloss.FactoredSGD),
    "sampled": Rates(network=1e-2, head=1e-2, optimizer=torch.optim.SparseAdam),
    "hierarchical": Rates(network=3e-3, head=0.1, optimizer=torch.optim.Adagrad),
}
OTHER_RATES = Rates(network=3e-3, head=3e-3)
HEAD_OPTIONS: dict[str, dict[str, Any]] = {
    "sampled": {"num_samples": 512, "sampler": "unigram"},
}


class Text(NamedTuple):
    """A text as a bag of words, and its tags, all as numbers."""

    words: Tensor  # (n,) all different
    counts: Tensor  # (n,) how often each occurs
    tags: Tensor  # (K,) those that a training text has; others cannot be found


Proposer = Callable[[Sequence[Text]], Tensor]  # returns the best tags (B, max(KS)), in order


class Data(NamedTuple):
    """Texts to learn from, texts to test, and the names of words and tags."""

    trained: list[Text]
    tested: list[Text]
    words: list[str]
    tags: list[str]


class Tagger(nn.Module):
    """A network that adds up embeddings of words, weighted by normalised tf-idf, with a head for all tags."""

    def __init__(self, head: zloss.Head, frequency: Tensor, texts: int, dropout: float) -> None:
        super().__init__()
        self.head, self.dropout = head, dropout
        self.idf: Tensor
        rarity = (texts / frequency.clamp_min(1)).log().clamp_min(0.1)  # (words,)
        self.register_buffer("idf", rarity)
        # With dense gradients every step would cost a pass over the embeddings of all words.
        self.words = nn.EmbeddingBag(len(frequency), head.in_features, mode="sum", sparse=True)
        nn.init.normal_(self.words.weight, std=0.1)

    def forward(self, texts: Sequence[Text]) -> Tensor:  # (B, width)
        """Return the hidden batch for the head. In training some words of each text are left out."""
        device = self.words.weight.device
        idf = self.idf.cpu()
        weights = [tf_idf(text, idf) for text in texts]
        if self.training:
            weights = [one * (torch.rand(len(one)) >= self.dropout) for one in weights]
        lengths = torch.tensor([0, *(len(text.words) for text in texts[:-1])], device=device)
        words = torch.cat([text.words for text in texts]).to(device)
        h: Tensor = self.words(words, lengths.cumsum(0), torch.cat(weights).to(device))
        return h


def tf_idf(text: Text, idf: Tensor) -> Tensor:  # (n,)
    """Return log(1 + count) times log(texts / texts with the word), scaled to a norm of 1."""
    weight: Tensor = text.counts.log1p() * idf[text.words]
    unit: Tensor = weight / weight.norm().clamp_min(1e-6)
    return unit


class Settings(NamedTuple):
    """The values from which a network can be built again."""

    head: str
    loss: str
    a: float | None
    width: int
    dropout: float
    texts: int  # to learn from

    def build(self, word_texts: Tensor, tag_texts: Tensor) -> Tagger:
        """Return a new network, from the numbers of texts with each word and with each tag."""
        options = HEAD_OPTIONS.get(self.head, {}) | ({} if self.a is None else {"a": self.a})
        config = zloss.HeadConfig(head=self.head, loss=self.loss, options=options)
        # Sampling needs a probability above zero for each tag.
        head = config.build(self.width, len(tag_texts), counts=tag_texts.clamp_min(1))
        return Tagger(head, word_texts, self.texts, self.dropout)


def optimizers_of(model: Tagger, head: str) -> list[torch.optim.Optimizer]:
    """Return an optimizer for the embeddings of words and one for the head, with their rates at the start."""
    rates = RATES.get(head, OTHER_RATES)
    network = torch.optim.SparseAdam(model.words.parameters(), lr=rates.network)
    layer = getattr(model.head, "layer", None)
    if isinstance(layer, zloss.FactoredLinear):
        return [network, rates.optimizer(layer, rates.head)]
    return [network, rates.optimizer(list(model.head.parameters()), rates.head)]


def train(
    model: Tagger,
    optimizers: Sequence[torch.optim.Optimizer],
    texts: Sequence[Text],
    *,
    epochs: int,
    batch: int,
    seconds: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[tuple[float, float]]:
    """Take all steps, and yield the share of the training that is done and the loss after each step."""
    first_rates = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    steps, begun = epochs * math.ceil(len(texts) / batch), clock()
    model.train()
    batches = (
        part for _ in range(epochs) for part in parts(random.sample(texts, len(texts)), batch)
    )
    for done, part in enumerate(batches):
        share = max(done / steps, (clock() - begun) / seconds)
        if share >= 1:
            return
        for optimizer, rate in zip(optimizers, first_rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate * (1 - share)
        # Texts have different numbers of tags. The rest of a row is padding, which adds nothing to the loss.
        tags = pad_sequence([text.tags for text in part], batch_first=True, padding_value=-100)
        h = model(part)
        loss = model.head(h, tags.to(h.device))
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        yield share, loss.item()


def network_proposer(model: Tagger) -> Proposer:
    """Return the proposer that ranks all tags by the network."""

    @torch.inference_mode()
    def propose(texts: Sequence[Text]) -> Tensor:
        model.eval()
        _, tags = model.head.topk(model(texts), max(KS))
        return tags.cpu()

    return propose


def watched(things: Sequence[Thing], what: str) -> Iterator[Thing]:
    """Yield things, and say every five seconds how many of them are done."""
    said = time.perf_counter()
    for done, thing in enumerate(things):
        if time.perf_counter() > said + 5:
            said = time.perf_counter()
            print(f"  {what}: {done / len(things):.0%} done", file=sys.stderr)
        yield thing


def precisions(proposer: Proposer, texts: Sequence[Text]) -> dict[str, float]:
    """Return the share of right tags among the k best ones, for each k."""
    right = torch.zeros(max(KS))
    for part in watched(parts(texts, 250), "ranking"):
        for proposed, text in zip(proposer(part), part, strict=True):
            right += torch.isin(proposed, text.tags)
    return {f"P@{k}": float(right[:k].sum()) / (k * len(texts)) for k in KS}


def parts(texts: Sequence[Text], size: int) -> list[Sequence[Text]]:
    """Return the texts in parts of equal size; the last one may be smaller."""
    return [texts[start : start + size] for start in range(0, len(texts), size)]


def texts_with(numbers: Sequence[Tensor], size: int) -> Tensor:
    """Return how many texts have each word or tag."""
    return torch.bincount(torch.cat(list(numbers)), minlength=size)


def tf_idf_matrix(texts: Sequence[Text], idf: Tensor) -> Tensor:  # (texts, words), sparse
    """Return the tf-idf vectors of texts."""
    return sparse_rows(
        [text.words for text in texts], [tf_idf(one, idf) for one in texts], len(idf)
    )


def sparse_rows(columns: Sequence[Tensor], values: Sequence[Tensor], size: int) -> Tensor:
    """Return a sparse matrix from the columns and values of its rows."""
    rows = torch.arange(len(columns)).repeat_interleave(torch.tensor(list(map(len, columns))))
    places = torch.stack([rows, torch.cat(list(columns))])
    shape = (len(columns), size)
    return torch.sparse_coo_tensor(
        places, torch.cat(list(values)), shape, check_invariants=True
    ).coalesce()


def best(scores: Tensor) -> Tensor:  # (B, C) -> (B, max(KS))
    """Return the tags with the highest scores, the best first."""
    return scores.topk(max(KS)).indices


def popularity(texts: Sequence[Text], idf: Tensor, tags: int) -> Proposer:
    """Return the proposer that gives every text the most frequent tags."""
    frequent = best(texts_with([text.tags for text in texts], tags)[None])
    return lambda asked: frequent.expand(len(asked), -1)


def nearest_texts(texts: Sequence[Text], idf: Tensor, tags: int, *, nearest: int = 30) -> Proposer:
    """Return the proposer that adds up the tags of the texts with the nearest tf-idf vectors, by their cosines."""
    vectors, tagged = tf_idf_matrix(texts, idf), tag_matrix(texts, tags)

    def propose(asked: Sequence[Text]) -> Tensor:
        cosines = vectors @ tf_idf_matrix(asked, idf).to_dense().T  # (texts, B)
        least = cosines.topk(min(nearest, len(texts)), dim=0).values[-1]
        return best((tagged.t() @ torch.where(cosines >= least, cosines, 0)).T)

    return propose


def linear(texts: Sequence[Text], idf: Tensor, tags: int, *, decay: float = 1.0) -> Proposer:
    """Return the proposer of linear one-vs-rest classifiers on tf-idf with a squared error.

    With rows x of X and targets Y of ones and zeros, the weights of all tags minimise |X W - Y|^2 + decay |W|^2. Then
    x W = x X^T (X X^T + decay)^-1 Y. Conjugate gradients find the first two factors for the texts that are asked
    about, so that W with all its words and tags is never formed.
    """
    vectors, tagged = tf_idf_matrix(texts, idf), tag_matrix(texts, tags)

    def propose(asked: Sequence[Text]) -> Tensor:
        right = vectors @ tf_idf_matrix(asked, idf).to_dense().T  # (texts, B)
        found = conjugate_gradients(lambda v: vectors @ (vectors.t() @ v) + decay * v, right)
        return best((tagged.t() @ found).T)

    return propose


def conjugate_gradients(apply: Callable[[Tensor], Tensor], right: Tensor) -> Tensor:
    """Return the solutions v of `apply(v) = right`, for each column, to a thousandth."""
    found, rest = torch.zeros_like(right), right.clone()
    direction, square = rest.clone(), rest.square().sum(0)
    enough = 1e-6 * square
    for _ in range(200):
        if bool((square <= enough).all()):
            break
        image = apply(direction)
        length = square / (direction * image).sum(0).clamp_min(1e-30)
        found += length * direction
        rest -= length * image
        before, square = square, rest.square().sum(0)
        direction = rest + square / before.clamp_min(1e-30) * direction
    return found


def tag_matrix(texts: Sequence[Text], tags: int) -> Tensor:  # (texts, tags), sparse
    """Return ones where a text has a tag."""
    own = [text.tags for text in texts]
    return sparse_rows(own, [torch.ones(len(one)) for one in own], tags)


BASELINES = {
    "popularity": popularity,
    "nearest texts by tf-idf": nearest_texts,
    "linear one-vs-rest on tf-idf": linear,
}


class Columns(NamedTuple):
    """The names of the columns of a CSV file, or of the keys of the objects in a .jsonl file."""

    text: str = "text"
    tags: str = "tags"


Written = tuple[Counter[str], list[str]]  # the words of a text, and its tags


def words_of(text: str) -> Counter[str]:
    """Return the words of a text and their numbers.

    >>> words_of("To be, or not to be?")["to"]
    2
    """
    return Counter(re.findall(r"\w+", text.lower()))


def read_jsonl(path: Path, columns: Columns) -> list[Written]:
    """Return the texts of a file with a JSON object on each line."""
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"line {number} is no JSON: {error}") from error
        text, tags = map(row.get, columns) if isinstance(row, dict) else (None, None)
        if not (isinstance(text, str) and isinstance(tags, list) and all_text(tags)):
            raise ValueError(
                f"line {number} must be an object with a text {columns.text!r} and a list of texts "
                f"{columns.tags!r}, got {line[:60]}"
            )
        found.append((words_of(text), tags))
    return found


def all_text(values: list[Any]) -> bool:
    """Return whether all values of a list are texts."""
    return all(isinstance(value, str) for value in values)


def read_csv(path: Path, columns: Columns) -> list[Written]:
    """Return the texts of a CSV file."""
    found = []
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.reader(file, strict=True)
        header = next(rows, [])
        for column in columns:
            if column not in header:
                raise ValueError(
                    f"line 1 has no column {column!r} but {header}: name it with --text-column and so on"
                )
        text, tags = (header.index(column) for column in columns)
        for row in filter(None, rows):
            if len(row) != len(header):
                where = f"line {rows.line_num}"
                raise ValueError(f"{where} has {len(row)} fields, and the header has {len(header)}")
            own = [tag.strip() for tag in row[tags].split(";")]
            found.append((words_of(row[text]), [tag for tag in own if tag]))
    return found


def read_counted(texts: Path, tags: Path) -> list[Written]:
    """Return the texts of two files with numbers in the format of citeulike-t."""
    found: list[Written] = []
    for number, line in enumerate(texts.read_text().splitlines(), start=1):
        pairs = [re.fullmatch(r"(\d+):(\d+)", pair) for pair in line.split()[1:]]
        if not all(pairs) or line.split()[:1] != [str(len(pairs))]:
            raise ValueError(
                f"{texts}, line {number}, must be N and N pairs WORD:COUNT, got {line[:60]!r}"
            )
        found.append((Counter({pair[1]: int(pair[2]) for pair in pairs if pair}), []))
    for number, line in enumerate(tags.read_text().splitlines(), start=1):
        having = line.split()[1:]
        if line.split()[:1] != [str(len(having))] or not all(text.isdecimal() for text in having):
            raise ValueError(
                f"{tags}, line {number}, must be N and N numbers of texts, got {line[:60]!r}"
            )
        for text in map(int, having):
            if text >= len(found):
                raise ValueError(
                    f"{tags}, line {number}, names text {text}, and there are {len(found)}"
                )
            found[text][1].append(str(number - 1))
    return found


def read(path: Path, tags: Path | None, columns: Columns) -> list[Written]:
    """Return the texts of a file. A mistake in it ends the program with one line that names it."""
    try:
        if tags is not None:
            return read_counted(path, tags)
        readers = {".jsonl": read_jsonl, ".csv": read_csv}
        if path.suffix not in readers:
            raise ValueError("the name must end in .jsonl or .csv; files in numbers need --tags")
        return readers[path.suffix](path, columns)
    except (ValueError, csv.Error, OSError) as error:
        raise SystemExit(f"{path}: {error}") from error


def known_in(texts: Sequence[Written]) -> tuple[list[str], list[str]]:
    """Return the words of two texts or more, and all tags, the most frequent first."""
    words = Counter(word for counts, _ in texts for word in counts)
    tags = Counter(tag for _, own in texts for tag in own)
    return [word for word, n in words.most_common() if n > 1], [
        tag for tag, _ in tags.most_common()
    ]


def numbered(texts: Sequence[Written], words: list[str], tags: list[str]) -> list[Text]:
    """Return the texts with known words and any tags, in numbers."""
    word_number = {word: place for place, word in enumerate(words)}
    tag_number = {tag: place for place, tag in enumerate(tags)}
    found = []
    for counts, own in texts:
        known = {word_number[word]: count for word, count in counts.items() if word in word_number}
        numbers = sorted({tag_number[tag] for tag in own if tag in tag_number})
        if known and own:
            bag = torch.tensor(list(known)), torch.tensor(list(known.values()))
            found.append(Text(*bag, torch.tensor(numbers, dtype=torch.long)))
    return found


def made_up(tags: int, texts: int) -> list[Written]:
    """Return texts with one to eight tags. A text has some of the five words of each tag, and ten random words."""
    words = 5000
    telling = [random.choices(range(words), k=5) for _ in range(tags)]

    def write() -> Written:
        # The third power makes some tags far more frequent than others.
        own = {int(tags * random.random() ** 3) for _ in range(random.randint(1, 8))}
        brought = [word for tag in own for word in telling[tag] if random.random() < 0.7]
        bag = Counter(map(str, brought + random.choices(range(words), k=10)))
        return bag, [str(tag) for tag in own]

    return [write() for _ in range(texts)]


def save(
    path: Path, settings: Settings, model: Tagger, counts: Sequence[Tensor], data: Data
) -> None:
    """Write a model to a file. It holds tensors, numbers and text alone, so that `load` can refuse everything else."""
    content = {
        "settings": settings._asdict(),
        "counts": list(counts),
        "weights": {name: tensor.cpu() for name, tensor in model.state_dict().items()},
        "words": data.words,
        "tags": data.tags,
    }
    torch.save(content, path)


def load(path: Path) -> tuple[Settings, Tagger, list[str], list[str]]:
    """Return a saved model. The file may be from anybody: `weights_only` refuses all code."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        settings = Settings(**content["settings"])
        model = settings.build(*content["counts"])
        model.load_state_dict(content["weights"])
        if [len(content["words"]), len(content["tags"])] != [len(one) for one in content["counts"]]:
            raise ValueError("words, tags and names differ in number")
        return settings, model, content["words"], content["tags"]
    except (pickle.UnpicklingError, EOFError, LookupError, AttributeError) as error:
        fault: Exception = error
    except (TypeError, ValueError, RuntimeError) as error:
        fault = error
    first = str(fault).strip().partition("\n")[0]
    raise SystemExit(f"{path} is not a model that --save has written: {first}") from fault


def fit(model: Tagger, settings: Settings, data: Data, options: argparse.Namespace) -> None:
    """Train a model, and say how far it is."""
    optimizers = optimizers_of(model, settings.head)
    for optimizer, rate in zip(optimizers, (options.network_lr, options.lr), strict=True):
        optimizer.param_groups[0]["lr"] = rate or optimizer.param_groups[0]["lr"]
    texts = [text for text in data.trained if len(text.tags)]
    seconds = 60 * options.minutes
    steps = train(
        model, optimizers, texts, epochs=options.epochs, batch=options.batch, seconds=seconds
    )
    begun = said = time.perf_counter()
    mean = 0.0
    for step, (share, loss) in enumerate(steps, start=1):
        mean += (loss - mean) / min(step, 100)
        if time.perf_counter() > said + 5:
            said = time.perf_counter()
            print(f"  {share:.0%} done, loss {mean:.3f}, {said - begun:.0f} s", file=sys.stderr)
    print(f"trained for {time.perf_counter() - begun:.0f} s, loss {mean:.3f}")


def show(name: str, proposer: Proposer, texts: Sequence[Text]) -> dict[str, float]:
    """Print the scores on one line, and return them."""
    begun = time.perf_counter()
    scores = precisions(proposer, texts)
    line = ", ".join(f"{score} {value:.2%}" for score, value in scores.items())
    print(f"{name}: {line} ({time.perf_counter() - begun:.0f} s)")
    return scores


def gathered(options: argparse.Namespace, words: list[str], tags: list[str]) -> Data:
    """Return the texts of the options. Without names, the texts to learn from give them."""
    columns = Columns(options.text_column, options.tags_column)
    if options.texts is None and options.test is None:
        texts = made_up(options.made_up_tags, 2 * options.made_up_tags)
    else:
        texts = read(options.texts, options.tags, columns) if options.texts else []
    if options.test:
        tested = read(options.test, None, columns)
    else:
        random.shuffle(texts)
        tested, texts = texts[: len(texts) // 10], texts[len(texts) // 10 :]
    if not (words and tags):
        words, tags = known_in(texts)
    data = Data(numbered(texts, words, tags), numbered(tested, words, tags), words, tags)
    if not data.tested or not (options.load or (len(tags) >= max(KS) and data.trained)):
        raise SystemExit(
            f"{options.texts or options.test}: too few texts with known words and with tags: {len(data.trained)} to "
            f"learn from and {len(data.tested)} to test, with {len(tags)} tags (at least {max(KS)} are needed)"
        )
    return data


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train or load a network, print the scores of everything, and return the scores of the network."""
    options = parsed(arguments)
    words: list[str] = []
    tags: list[str] = []
    if options.load:
        settings, model, words, tags = load(options.load)
    random.seed(options.seed)
    torch.manual_seed(options.seed)
    data = gathered(options, words, tags)
    print(
        f"{len(data.trained):,} texts to learn from, {len(data.tested):,} to test, {len(data.words):,} words, "
        f"{len(data.tags):,} tags"
    )
    if not options.load:
        trained = data.trained
        counts = (
            texts_with([text.words for text in trained], len(data.words)),
            texts_with([text.tags for text in trained], len(data.tags)),
        )
        settings = Settings(
            options.head, options.loss, options.a, options.width, options.dropout, len(trained)
        )
        model = settings.build(*counts).to(options.device)
        for name, baseline in BASELINES.items():
            show(name, baseline(trained, model.idf.cpu(), len(data.tags)), data.tested)
        fit(model, settings, data, options)
        if options.save:
            save(options.save, settings, model, counts, data)
    return show(settings.head, network_proposer(model.to(options.device)), data.tested)


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
    add("--texts", type=Path, help="texts to learn from: .jsonl or .csv, or in numbers with --tags")
    add("--tags", type=Path, help="the texts of each tag, in numbers")
    add("--test", type=Path, help="texts to test: .jsonl or .csv (a tenth of --texts)")
    add("--text-column", default="text", help="column or key of the texts (%(default)s)")
    add("--tags-column", default="tags", help="column or key of their tags (%(default)s)")
    add("--made-up-tags", type=positive, default=20_000, help="tags without files (%(default)s)")
    add("--save", type=Path, metavar="FILE", help="write the trained model")
    add("--load", type=Path, metavar="FILE", help="score a saved model instead of training one")
    add("--head", default="factored", help="a head of zloss.HeadConfig (%(default)s)")
    add("--loss", default="", help="a loss of this head (its first one)")
    add("--a", type=above_zero, help="a of the Z-loss (10 / sqrt(tags))")
    add("--lr", type=above_zero, help="learning rate of the head, in place of the one in RATES")
    add("--network-lr", type=above_zero, help="learning rate of the embeddings (0.003)")
    add("--epochs", type=positive, default=8, help="passes over the texts (%(default)s)")
    add("--minutes", type=above_zero, default=math.inf, help="longest time of training (no limit)")
    add("--batch", type=positive, default=100, help="texts in a step (%(default)s)")
    add("--width", type=positive, default=256, help="width of the embeddings (%(default)s)")
    add("--dropout", type=share, default=0.5, help="share of the words to drop (%(default)s)")
    add("--device", default=here, choices=("cpu", "cuda", "mps"), help="(%(default)s)")
    add("--seed", type=int, default=0, help="seed of random numbers (%(default)s)")
    options = parser.parse_args(arguments)
    for path in filter(None, (options.texts, options.tags, options.test, options.load)):
        if not path.is_file():
            parser.error(f"there is no file {path}")
    if options.tags and not options.texts:
        parser.error("--tags needs the words of the texts: give --texts")
    if options.test and not (options.texts or options.load):
        parser.error("--test needs --texts to learn from, or a model to --load")
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
