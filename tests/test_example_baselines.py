"""The baselines of the examples against their definitions, on tiny random data."""

import math
import random
from types import ModuleType

import pytest
import torch

from tests.loaded_examples import copied

SEEDS = range(10)


@pytest.fixture(scope="module")
def next_item(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return copied("next_item", tmp_path_factory.mktemp("copy"))


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return copied("tagger", tmp_path_factory.mktemp("copy"))


def random_sessions(chance: random.Random, items: int) -> list[list[int]]:
    return [
        chance.choices(range(items), k=chance.randrange(1, 6))
        for _ in range(chance.randrange(5, 30))
    ]


def popular(sessions: list[list[int]], item: int) -> float:
    """Return a millionth of the clicks on an item, relative to the most popular one."""
    clicks = [one for session in sessions for one in session]
    return 1e-6 * clicks.count(item) / max(map(clicks.count, clicks))


@pytest.mark.parametrize("seed", SEEDS)
def test_popularity(seed: int, next_item: ModuleType) -> None:
    sessions = random_sessions(random.Random(seed), items=7)
    clicks = [one for session in sessions for one in session]
    scores = next_item.popularity(sessions, 7)([0])
    assert scores.tolist() == [clicks.count(item) for item in range(7)]


@pytest.mark.parametrize("seed", SEEDS)
def test_co_occurrence(seed: int, next_item: ModuleType) -> None:
    sessions = random_sessions(random.Random(seed), items=7)
    scorer = next_item.companions(sessions, 7)
    for last in range(7):
        expected = [popular(sessions, item) for item in range(7)]
        for session in sessions:
            for place, own in enumerate(session):
                for other_place, other in enumerate(session):
                    if own == last and place != other_place:
                        is_later = other_place > place
                        share = 1 / abs(other_place - place) / (1 if is_later else 3)
                        expected[other] += share
        # Sums of some ten terms in float64, in another order.
        assert scorer([3, last]).tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_session_knn(seed: int, next_item: ModuleType) -> None:
    chance = random.Random(seed)
    sessions = random_sessions(chance, items=7)
    recent, nearest = 5, 3
    scorer = next_item.neighbours(sessions, 7, recent=recent, nearest=nearest)
    for session in random_sessions(chance, items=7):
        weight = {item: 1 / (1 + session[::-1].index(item)) for item in session}
        similarity = {}
        for number, other in enumerate(sessions):
            if shared := set(session) & set(other):
                latest = {
                    item
                    for item in shared
                    if number in [n for n, one in enumerate(sessions) if item in one][-recent:]
                }
                if latest:
                    length = math.sqrt(len(set(other)))
                    similarity[number] = sum(weight[item] for item in latest) / length
        compared = sorted(similarity)[-recent:]
        chosen = sorted(compared, key=lambda n: (round(similarity[n], 12), n))[-nearest:]
        expected = [popular(sessions, item) for item in range(7)]
        for number in chosen:
            for item in set(sessions[number]):
                expected[item] += similarity[number]
        # Sums of some ten terms in float64, in another order.
        assert scorer(session).tolist() == pytest.approx(expected, rel=1e-12)


def test_ranks_follow_the_rule_of_the_library(next_item: ModuleType) -> None:
    """The rank is 1 + the number of items with strictly higher scores."""
    scores = torch.tensor([3.0, 5.0, 3.0, 1.0])
    examples = [([0], item) for item in range(4)]
    assert next_item.counting_ranks(lambda session: scores, examples).tolist() == [2, 1, 2, 4]


def random_texts(tagger: ModuleType, chance: random.Random, number: int) -> list:  # type: ignore[type-arg]
    return [
        tagger.Text(
            torch.tensor(sorted(chance.sample(range(8), k=chance.randrange(1, 6)))),
            torch.zeros(0),
            torch.tensor(sorted(chance.sample(range(6), k=chance.randrange(1, 4)))),
        )
        for _ in range(number)
    ]


def dense_vectors(texts: list, idf: torch.Tensor) -> torch.Tensor:  # type: ignore[type-arg]
    """Return tf-idf vectors by their definition: log(1 + count) times idf, with a norm of 1."""
    rows = torch.zeros(len(texts), len(idf), dtype=torch.double)
    for row, text in zip(rows, texts, strict=True):
        for word, count in zip(text.words.tolist(), text.counts.tolist(), strict=True):
            row[word] = math.log(1 + count) * idf[word].double()
    unit: torch.Tensor = rows / rows.norm(dim=1, keepdim=True)
    return unit


@pytest.mark.parametrize("seed", SEEDS)
def test_linear_classifiers_and_nearest_texts(seed: int, tagger: ModuleType) -> None:
    chance = random.Random(seed)
    torch.manual_seed(seed)
    texts, asked = (
        [
            text._replace(counts=torch.randint(1, 5, (len(text.words),)))
            for text in random_texts(tagger, chance, number)
        ]
        for number in (25, 10)
    )
    idf = 0.1 + torch.rand(8)
    x, queries = dense_vectors(texts, idf), dense_vectors(asked, idf)
    tagged = torch.zeros(25, 6, dtype=torch.double)
    for row, text in zip(tagged, texts, strict=True):
        row[text.tags] = 1
    weights = torch.linalg.solve(x.T @ x + 0.5 * torch.eye(8), x.T @ tagged)
    cosines = queries @ x.T
    cosines = torch.where(cosines >= cosines.topk(4, dim=1).values[:, -1:], cosines, 0)
    proposals = {
        "linear": (tagger.linear(texts, idf, 6, decay=0.5), queries @ weights),
        "nearest": (tagger.nearest_texts(texts, idf, 6, nearest=4), cosines @ tagged),
    }
    for name, (propose, scores) in proposals.items():
        found = scores.gather(1, propose(asked))
        # Conjugate gradients stop at a thousandth of the right side, and cosines are in float32.
        tolerance = 3e-3 if name == "linear" else 1e-5
        assert (found - scores.topk(5).values).abs().max() < tolerance


def test_precision_at_k(tagger: ModuleType) -> None:
    texts = random_texts(tagger, random.Random(0), 20)
    proposed = [random.Random(number).sample(range(6), k=5) for number in range(20)]
    own = [set(text.tags.tolist()) for text in texts]
    found = tagger.precisions(lambda part: torch.tensor(proposed), texts)
    for k in (1, 3, 5):
        right = sum(len(set(best[:k]) & tags) for best, tags in zip(proposed, own, strict=True))
        assert found[f"P@{k}"] == pytest.approx(right / (20 * k))
