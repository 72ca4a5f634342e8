"""Clusterings: their construction, the heads and checkpoints that have them, and the input that they refuse."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

import zloss
from tests.heads.hierarchical_problems import HIDDEN, families, make_head
from zloss import Clustering, HierarchicalSoftmax


@pytest.mark.parametrize("num_classes", [2, 3, 10, 99, 100, 101, 12_345])
def test_equal_clusters_about_the_root_of_the_classes(num_classes: int) -> None:
    clustering = Clustering.in_order(num_classes)
    assert len(clustering.sizes) == round(math.sqrt(num_classes))
    assert max(clustering.sizes) - min(clustering.sizes) <= 1
    assert sum(clustering.sizes) == num_classes
    assert torch.equal(clustering.order, torch.arange(num_classes))


def test_by_frequency() -> None:
    clustering = Clustering.by_frequency(torch.tensor([5, 80, 5, 1, 7, 80]), 2)
    assert clustering.order.tolist() == [1, 5, 4, 0, 2, 3], (
        "equally frequent ones in the order of their numbers"
    )
    assert clustering.sizes == [3, 3]


def test_by_labels() -> None:
    clustering = Clustering.by_labels(torch.tensor([7, -1, 7, 9, 7]))
    assert [part.tolist() for part in families(clustering)] == [[1], [0, 2, 4], [3]]


def test_the_same_seed_gives_the_same_clusters() -> None:
    torch.manual_seed(1)
    first = Clustering.shuffled(100, 8, seed=4)
    torch.manual_seed(2)
    again, other = Clustering.shuffled(100, 8, seed=4), Clustering.shuffled(100, 8, seed=5)
    assert torch.equal(first.order, again.order)
    assert not torch.equal(first.order, other.order)
    assert not torch.equal(first.order, torch.arange(100))
    assert first.sizes == again.sizes == Clustering.in_order(100, 8).sizes


@pytest.mark.parametrize("counts", [None, torch.arange(30)], ids=["in order", "by frequency"])
def test_a_head_is_built_where_torch_is_told_to(counts: Tensor | None) -> None:
    with torch.device("meta"):
        head, clustering = zloss.HierarchicalSoftmax(8, 30, counts=counts), Clustering.shuffled(30)
    assert {tensor.device.type for tensor in head.state_dict().values()} == {"meta"}
    assert clustering.order.device.type == "cpu"


@pytest.mark.parametrize("given_as", ["counts", "clustering"])
def test_counts_are_a_clustering_by_frequency(given_as: str) -> None:
    counts = torch.randint(100, (30,))
    options: dict[str, dict[str, Any]] = {
        "counts": {"counts": counts, "clusters": 4},
        "clustering": {"clusters": Clustering.by_frequency(counts, 4)},
    }
    head = make_head(30, **options[given_as])
    assert head.order is not None
    assert torch.equal(head.order.classes, counts.argsort(descending=True, stable=True))
    assert head.blocks.sizes.tolist() == [8, 8, 7, 7]


def test_heads_with_one_clustering_have_an_order_each() -> None:
    """A checkpoint contains its order. Loading it must not reorder another head or the clustering of both heads."""
    clustering = Clustering.in_order(30, 5)
    first, second = make_head(30, clusters=clustering), make_head(30, clusters=clustering)
    shuffled = make_head(30, clusters=Clustering.shuffled(30, 5))
    h, target = torch.randn(4, HIDDEN, dtype=torch.float64), torch.arange(4)
    before = second(h, target)
    first.load_state_dict(shuffled.state_dict())
    assert torch.equal(first(h, target), shuffled(h, target))
    assert torch.equal(second(h, target), before)
    assert torch.equal(clustering.order, torch.arange(30))
    save(nn.ModuleList([first, second]).state_dict())  # it refuses tensors that share their memory


# ---- checkpoints -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        Clustering.in_order(30, 6),
        Clustering.by_labels(torch.arange(30) // 7),  # as many clusters, of other sizes
        Clustering.in_order(30, 1),
    ],
    ids=["more clusters", "other sizes", "one cluster"],
)
def test_a_checkpoint_with_other_clusters_is_refused(other: Clustering) -> None:
    head, state = make_head(30, clusters=5), make_head(30, clusters=other).state_dict()
    before = {name: tensor.clone() for name, tensor in head.state_dict().items()}
    message = rf"the clusters of the checkpoint \({len(other.sizes)} of them\) have other sizes than those here \(5\)"
    for strict in (True, False):
        with pytest.raises(ValueError, match=message):
            head.load_state_dict(load(save(state)), strict=strict)
    assert all(torch.equal(tensor, before[name]) for name, tensor in head.state_dict().items())


def test_a_checkpoint_within_a_model() -> None:
    """The names of the state have a prefix then, and so has the name of the offsets."""
    model = nn.Sequential(nn.Linear(3, HIDDEN), make_head(30, dtype=torch.float32))
    state = model.state_dict()
    assert "1.blocks.offsets" in state
    nn.Sequential(nn.Linear(3, HIDDEN), make_head(30, dtype=torch.float32)).load_state_dict(state)
    with pytest.raises(ValueError, match="have other sizes"):
        nn.Sequential(nn.Linear(3, HIDDEN), make_head(30, clusters=4)).load_state_dict(state)
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "1.blocks.offsets"'):
        model.load_state_dict(
            {name: tensor for name, tensor in state.items() if name != "1.blocks.offsets"}
        )
    model.load_state_dict(
        {name: tensor for name, tensor in state.items() if name != "1.blocks.offsets"}, strict=False
    )


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (Clustering.in_order, (10, 0), "expected between 1 and 10 clusters, one per class, got 0"),
        (
            Clustering.in_order,
            (10, 11),
            "expected between 1 and 10 clusters, one per class, got 11",
        ),
        (
            Clustering.in_order,
            (10, "three"),
            "expected between 1 and 10 clusters, one per class, got 'three'",
        ),
        (
            Clustering.shuffled,
            (10, -2),
            "expected between 1 and 10 clusters, one per class, got -2",
        ),
        (
            Clustering.by_frequency,
            ([3, 4],),
            "counts must be a tensor with one number per class.*got list",
        ),
        (
            Clustering.by_frequency,
            (3,),
            "counts must be a tensor with one number per class.*got int",
        ),
        (
            Clustering.by_frequency,
            (torch.ones(2, 2),),
            r"one number per class, shape \(4,\), got \(2, 2\)",
        ),
        (
            Clustering.by_frequency,
            (torch.tensor([1.0, math.nan]),),
            "counts must be finite numbers >= 0",
        ),
        (Clustering.by_frequency, (torch.tensor([1, -1]),), "counts must be finite numbers >= 0"),
        (
            Clustering.by_labels,
            ([1, 2],),
            "labels must be a one-dimensional tensor of integers, one per class",
        ),
        (
            Clustering.by_labels,
            (torch.ones(3),),
            "labels must be a one-dimensional tensor of integers",
        ),
        (
            Clustering.by_labels,
            (torch.ones(3, 1).long(),),
            "labels must be a one-dimensional tensor of integers",
        ),
        (
            Clustering,
            ([1, 0], [2]),
            "order must be a one-dimensional int64 tensor of classes, got list",
        ),
        (Clustering, (torch.ones(2), [2]), r"order must be .* got dtype torch\.float32"),
        (Clustering, (torch.tensor([0, 0, 1]), [3]), "order must have each class from 0 to 2 once"),
        (Clustering, (torch.tensor([0, 1, 3]), [3]), "order must have each class from 0 to 2 once"),
        (
            Clustering,
            (torch.arange(5), [2, 2]),
            "add up to the 5 classes, got 2 of them .* the sum 4",
        ),
        (Clustering, (torch.arange(5), [5, 0]), "at least 1 each .* the smallest 0"),
        (Clustering, (torch.arange(0), []), "at least 1 each"),
    ],
)
def test_bad_clusterings(
    make: Callable[..., Clustering], arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make(*arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clusters": Clustering.in_order(9)}, "the Clustering has 9 classes, the head 10"),
        (
            {"clusters": Clustering.in_order(10), "counts": torch.ones(10)},
            "give counts or a Clustering, not both",
        ),
        (
            {"counts": torch.ones(9)},
            r"counts must be a tensor with one number per class, shape \(10,\), got \(9,\)",
        ),
        ({"counts": 3}, "counts must be a tensor with one number per class.*got int"),
        ({"counts": -torch.ones(10)}, "counts must be finite numbers >= 0"),
        ({"clusters": 11}, "expected between 1 and 10 clusters"),
        ({"reduction": "avg"}, "reduction must be one of none, mean, sum, got 'avg'"),
    ],
)
def test_bad_constructions(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HierarchicalSoftmax(HIDDEN, 10, **options)


def test_an_implementation_that_does_not_exist_is_refused() -> None:
    with pytest.raises(
        ValueError, match="implementation must be one of auto, torch, triton, got 'cuda'"
    ):
        make_head(10, implementation="cuda")
