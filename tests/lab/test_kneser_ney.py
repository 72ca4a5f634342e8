"""The n-gram model against its definition in dictionaries, on random texts."""

import json
import math
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from tests.lab.command_line import zloss
from tests.lab.pets import pets_corpus
from zloss_lab.corpora import Corpus
from zloss_lab.kneser_ney import KneserNey, evaluate_counts
from zloss_lab.ngrams import Mode, NgramBatches, Ngrams

Gram = tuple[int, ...]


class Definition:
    """The formula of `kneser_ney.py`, a word at a time."""

    def __init__(self, grams: Sequence[Gram], num_classes: int) -> None:
        self.num_classes = num_classes
        counts = Counter(grams)
        self.by_length = {len(grams[0]): counts}
        for length in range(len(grams[0]) - 1, 0, -1):
            counts = Counter(gram[1:] for gram in counts)  # the words before it, each once
            self.by_length[length] = counts

    def probability(self, context: Gram, word: int) -> float:
        counts = self.by_length[len(context) + 1]
        values = list(counts.values())
        once, twice = values.count(1), values.count(2)
        discount = once / (once + 2 * twice) if once else 0.5
        shorter = self.probability(context[1:], word) if context else 1 / self.num_classes
        following = {gram: count for gram, count in counts.items() if gram[:-1] == context}
        if not following:
            return shorter
        total = sum(following.values())
        own = max(following.get((*context, word), 0) - discount, 0.0)
        return own / total + discount * len(following) / total * shorter


def random_text(chance: random.Random, classes: int) -> torch.Tensor:
    """Return a text in which small words are frequent; the last two classes may be absent."""
    length = chance.randrange(8, 60)
    return torch.tensor([int((classes - 2) * chance.random() ** 2) for _ in range(length)])


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("mode", ["running", "sentence"])
def test_probabilities_are_those_of_the_definition(seed: int, mode: Mode) -> None:
    chance = random.Random(seed)
    classes, order = chance.randrange(3, 7), chance.randrange(1, 4) + 1
    ngrams = Ngrams(
        random_text(chance, classes), context=order - 1, mode=mode, boundary=0, padding=0
    )
    contexts, targets = ngrams.read(torch.arange(len(ngrams)))
    grams = [
        (*context, target)
        for context, target in zip(contexts.tolist(), targets.tolist(), strict=True)
    ]
    model, definition = KneserNey.count(ngrams, classes), Definition(grams, classes)
    unseen = [chance.choices(range(classes), k=order - 1) for _ in range(10)]
    for context in (*contexts.tolist(), *unseen):
        expected = [definition.probability(tuple(context), word) for word in range(classes)]
        # Both are some ten operations in float64.
        assert model.probabilities(context).tolist() == pytest.approx(expected, rel=1e-13)
        assert sum(expected) == pytest.approx(1, rel=1e-13)


def test_a_text_in_parts_has_the_same_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    ngrams = Ngrams(random_text(random.Random(0), 6), context=2)
    whole = KneserNey.count(ngrams, 6)
    monkeypatch.setattr("zloss_lab.kneser_ney._CHUNK", 3)
    reported: list[tuple[int, int]] = []
    parts = KneserNey.count(ngrams, 6, progress=lambda done, of: reported.append((done, of)))
    for context in ngrams.read(torch.arange(len(ngrams)))[0].tolist():
        assert parts.probabilities(context).tolist() == whole.probabilities(context).tolist()
    assert reported[-1] == (len(ngrams), len(ngrams))
    assert len(reported) > 3


def test_scores_follow_from_the_probabilities() -> None:
    chance = random.Random(1)
    text, tested = random_text(chance, 8), random_text(chance, 8)
    model = KneserNey.count(Ngrams(text, context=2), 8)
    batches = NgramBatches(tested, context=2, batch_size=4, shuffle=False)
    result = evaluate_counts(model, batches, ks=(1, 3))
    contexts, targets = batches.ngrams.read(torch.arange(len(batches.ngrams)))
    ranks, logs = [], []
    for context, target in zip(contexts.tolist(), targets.tolist(), strict=True):
        found = model.probabilities(context).tolist()
        ranks.append(1 + sum(one > found[target] for one in found))
        logs.append(math.log(found[target]))
    assert result.mean_rank == sum(ranks) / len(ranks)
    assert result.top_k_error[3] == sum(rank > 3 for rank in ranks) / len(ranks)
    # The mean of some 50 logarithms in float64.
    assert result.perplexity == pytest.approx(math.exp(-sum(logs) / len(logs)), rel=1e-12)
    assert len(set(ranks)) > 2, "the text is too easy to tell ranks apart"


def test_without_structure_all_words_are_alike() -> None:
    """In this cycle every pair of words occurs once. A uniform model gives a perplexity of C and ranks of 1."""
    text = torch.tensor([0, 0, 1, 0, 2, 1, 1, 2, 2, 0])
    model = KneserNey.count(Ngrams(text, context=1), 3)
    batches = NgramBatches(text, context=1, batch_size=5, shuffle=False)
    result = evaluate_counts(model, batches, ks=(1,))
    # Three operations in float64 for each word.
    assert result.perplexity == pytest.approx(3, rel=1e-13)
    assert result.mean_rank == 1  # equal scores share the better rank


def test_n_grams_that_fit_no_number_are_refused() -> None:
    ngrams = Ngrams(torch.arange(9), context=3)
    with pytest.raises(ValueError, match="take a smaller order"):
        KneserNey.count(ngrams, 60_000)


def test_a_context_of_another_length_is_refused() -> None:
    model = KneserNey.count(Ngrams(torch.arange(9), context=2), 9)
    with pytest.raises(ValueError, match="must have 2 words, got 1"):
        model.probabilities([1])


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = pets_corpus(tmp_path)
    assert zloss("baseline", folder, "--json") == 0
    scores = json.loads(capsys.readouterr().out)
    corpus = Corpus.open(folder)
    model = KneserNey.count(Ngrams(corpus.split("train"), context=2), len(corpus.vocabulary))
    batches = NgramBatches(corpus.split("test"), context=2, batch_size=64, shuffle=False)
    assert scores["3-grams"] == evaluate_counts(model, batches).to_record()
    assert scores["3-grams"]["top_1_error"] < scores["most frequent words"]["top_1_error"]
    assert zloss("baseline", folder, "--limit", 20, "--order", 2, "--mode", "sentence") == 0
    assert "±" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--split", "tset"), "has no split 'tset'"),
        (("--limit", "0"), "Invalid value for '--limit'"),
        (("--order", "1"), "Invalid value for '--order'"),
    ],
)
def test_mistakes(
    options: tuple[str, ...],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert zloss("baseline", pets_corpus(tmp_path), *options) in (1, 2)
    assert message in " ".join(capsys.readouterr().err.split())
