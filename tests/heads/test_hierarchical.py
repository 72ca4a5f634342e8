"""The hierarchical softmax: any clusters give exact probabilities, and a step touches those of its targets only."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import Tensor, nn

import zloss
from tests.graphs import Graphs
from tests.heads.registry import hierarchical_log_prob
from tests.memory import LargestTensor
from zloss import Clustering, HierarchicalSoftmax

HIDDEN, IGNORED = 6, -100
# float64, and sums of at most some hundred terms.
assert_close = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)


def make_head(
    num_classes: int, *, dtype: torch.dtype = torch.float64, **options: Any
) -> HierarchicalSoftmax:
    """Weights large enough that probabilities differ."""
    head = HierarchicalSoftmax(HIDDEN, num_classes, dtype=dtype, **options)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.mul_(3)
    return head


def families(clustering: Clustering) -> list[Tensor]:
    return list(clustering.order.split(clustering.sizes))


def assert_is_its_definition(
    head: HierarchicalSoftmax, clustering: Clustering, rows: int = 5
) -> None:
    """Probabilities of all classes, each class as a target, and the gradients of all of them together."""
    num_classes = head.num_classes
    h = torch.randn(rows, HIDDEN, dtype=torch.float64, device=head.members.device)
    weights = {
        name: parameter.detach().requires_grad_() for name, parameter in head.named_parameters()
    }
    expected = hierarchical_log_prob(families(clustering), weights, h)
    log_prob = head.log_prob(h)
    assert_close(log_prob, expected.detach())
    assert_close(log_prob.exp().sum(1), torch.ones_like(log_prob[:, 0]))

    target = torch.arange(num_classes, device=h.device).expand(rows, -1)
    loss = head(h, target)
    assert_close(loss, -expected.mean())
    loss.backward()
    (-expected.mean()).backward()
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None
        assert_close(parameter.grad.to_dense(), weights[name].grad)


# ---- the model -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("num_classes", "num_clusters"),
    [
        (2, None),
        (2, 1),
        (2, 2),
        (3, None),
        (10, None),
        (10, 7),
        (49, None),
        (53, None),
        (53, 52),
        (60, 1),
        (60, 60),
    ],
)
def test_any_number_of_classes_and_clusters(
    num_classes: int, num_clusters: int | None, bias: bool, device: torch.device
) -> None:
    head = make_head(num_classes, clusters=num_clusters, bias=bias, device=device)
    assert_is_its_definition(head, Clustering.in_order(num_classes, num_clusters))


@given(labels=st.lists(st.integers(-3, 6), min_size=2, max_size=30), bias=st.booleans())
@settings(deadline=None, max_examples=50)
def test_any_labels(labels: list[int], bias: bool) -> None:
    """Clusters of any size, and the classes of a cluster anywhere."""
    clustering = Clustering.by_labels(torch.tensor(labels))
    assert_is_its_definition(
        make_head(len(labels), clusters=clustering, bias=bias), clustering, rows=2
    )


def test_one_cluster_is_a_plain_softmax(device: torch.device) -> None:
    head = make_head(20, clusters=1, device=device)
    h, target = (
        torch.randn(7, HIDDEN, dtype=torch.float64, device=device),
        torch.arange(7, device=device),
    )
    loss = head(h, target)
    assert_close(loss, nn.functional.cross_entropy(h @ head.members.T, target))
    loss.backward()
    assert head.clusters.weight.grad is not None
    assert head.clusters.weight.grad.count_nonzero() == 0, "there is nothing to choose"


def test_a_cluster_for_each_class_is_a_plain_softmax(device: torch.device) -> None:
    head = make_head(20, clusters=20, device=device)
    h, target = (
        torch.randn(7, HIDDEN, dtype=torch.float64, device=device),
        torch.arange(7, device=device),
    )
    loss = head(h, target)
    assert_close(loss, nn.functional.cross_entropy(head.clusters(h), target))
    loss.backward()
    assert head.members.grad is not None
    assert head.members.grad.to_dense().count_nonzero() == 0, "there is nothing to choose"


def test_gradcheck() -> None:
    clustering = Clustering.by_labels(torch.tensor([1, 0, 1, 2, 1, 0]))
    head = make_head(6, clusters=clustering, bias=True)
    h = torch.randn(3, HIDDEN, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([[0, 3], [5, IGNORED], [2, 2]])
    assert torch.autograd.gradcheck(lambda h: head(h, target), h)


def test_extreme_scores_are_finite(device: torch.device) -> None:
    """A class far behind in its cluster, and a cluster far behind: log-probabilities, not logarithms of zero."""
    head = make_head(30, device=device, dtype=torch.float32)
    with torch.no_grad():
        head.members.mul_(1e3)
        head.clusters.weight.mul_(1e3)
    h = torch.randn(30, HIDDEN, device=device, requires_grad=True)
    loss = head(h, torch.arange(30, device=device))
    loss.backward()
    assert loss > 100
    assert loss.isfinite()
    assert h.grad is not None
    assert h.grad.isfinite().all()
    assert head.log_prob(h).isfinite().all()
    assert (head.rank(h, head.topk(h, 1)[1]) == 1).all()


def test_classes_with_equal_weights_tie(device: torch.device) -> None:
    """Two members of a cluster that are alike score alike to the last bit, whatever the blocks."""
    head = make_head(50, clusters=4, dtype=torch.float32, device=device)
    with torch.no_grad():
        head.members[3] = head.members[9]
    h = torch.randn(200, HIDDEN, device=device)
    target = torch.tensor([3, 9], device=device).expand(200, 2)
    for block_size in (1, 5, None):
        ranks = head.rank(h, target, block_size=block_size)
        assert torch.equal(ranks[:, 0], ranks[:, 1])


def test_the_best_class_has_rank_one(device: torch.device) -> None:
    """In float32 a score may differ in the last bit between two products; no class may outrank itself for it."""
    head = HierarchicalSoftmax(300, 1000, device=device)
    h = torch.randn(400, 300, device=device)
    assert (head.rank(h, head.topk(h, 1)[1]) == 1).all()


def test_many_rows_are_evaluated_in_parts(device: torch.device) -> None:
    clustering = Clustering.shuffled(40, 6)
    head = make_head(40, clusters=clustering, device=device)
    h = torch.randn(3000, HIDDEN, dtype=torch.float64, device=device)
    target = torch.randint(40, (3000,), device=device)
    weights = {name: parameter.detach() for name, parameter in head.named_parameters()}
    log_prob = hierarchical_log_prob(families(clustering), weights, h)
    own = log_prob.gather(1, target[:, None])
    assert_close(head.target_log_prob(h, target), own[:, 0])
    assert torch.equal(head.rank(h, target), 1 + (log_prob > own).sum(1))
    assert torch.equal(head.topk(h, 3)[1], log_prob.topk(3).indices)


# ---- what a step touches ---------------------------------------------------------------------------------------------


def test_only_the_clusters_of_the_targets_change(device: torch.device) -> None:
    clustering = Clustering.by_labels(torch.arange(60) % 7)
    head = make_head(60, clusters=clustering, bias=True, device=device)
    before = {name: parameter.detach().clone() for name, parameter in head.named_parameters()}
    # Classes 3 and 10 are both of cluster 3, class 5 is of cluster 5; row 2 counts for nothing.
    target = torch.tensor([[3, 10], [5, IGNORED], [IGNORED, IGNORED]], device=device)
    head(torch.randn(3, HIDDEN, dtype=torch.float64, device=device), target).backward()
    head.sgd(0.1).step()
    label = torch.arange(60, device=device)[head.class_at(torch.arange(60, device=device))] % 7
    touched = (label == 3) | (label == 5)
    changed = {name: parameter != before[name] for name, parameter in head.named_parameters()}
    assert torch.equal(changed["members"], touched[:, None].expand(60, HIDDEN))
    assert torch.equal(changed["member_bias"], touched)


def test_ignored_rows_touch_nothing(device: torch.device) -> None:
    head = make_head(60, device=device)
    state = {name: tensor.clone() for name, tensor in head.state_dict().items()}
    head(
        torch.randn(4, HIDDEN, dtype=torch.float64, device=device),
        torch.full((4,), IGNORED, device=device),
    ).backward()
    head.sgd(1.0).step()
    assert all(torch.equal(tensor, state[name]) for name, tensor in head.state_dict().items())


def test_a_gradient_has_the_rows_of_the_targets_clusters() -> None:
    head = make_head(1000)
    head(
        torch.randn(5, HIDDEN, dtype=torch.float64), torch.tensor([0, 5, 31, 500, IGNORED])
    ).backward()
    grad = head.members.grad
    assert grad is not None
    assert grad.layout == torch.sparse_coo
    # 1000 classes are 8 clusters of 32, the first of which has 0, 5 and 31, and 24 of 31, the eighth of which has 500.
    assert grad.coalesce().indices()[0].tolist() == [*range(32), *range(473, 504)]


def largest_tensor_of_a_step(head: zloss.Head) -> int:
    h, target = torch.randn(4, head.in_features), torch.tensor([0, 1, 5000, 9999])
    optimizer = head.sgd(0.1)
    with LargestTensor(head) as watch:
        head(h, target).backward()
        optimizer.step()
    return watch.numel


def test_a_step_holds_nothing_of_the_size_of_the_weights() -> None:
    num_classes, width = 10_000, 8
    largest = largest_tensor_of_a_step(HierarchicalSoftmax(width, num_classes, bias=True))
    assert 100 * width <= largest <= 4 * 100 * width, "rows of at most four clusters of 100"
    assert largest_tensor_of_a_step(zloss.DenseOutput(width, num_classes)) >= num_classes * width, (
        "the watch sees it"
    )


# ---- clusters --------------------------------------------------------------------------------------------------------


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
    """A checkpoint brings its order along. It must not reorder another head, nor the clustering that both came from."""
    clustering = Clustering.in_order(30, 5)
    first, second = make_head(30, clusters=clustering), make_head(30, clusters=clustering)
    shuffled = make_head(30, clusters=Clustering.shuffled(30, 5))
    h, target = torch.randn(4, HIDDEN, dtype=torch.float64), torch.arange(4)
    before = second(h, target)
    first.load_state_dict(shuffled.state_dict())
    assert torch.equal(first(h, target), shuffled(h, target))
    assert torch.equal(second(h, target), before)
    assert torch.equal(clustering.order, torch.arange(30))
    save(
        nn.ModuleList([first, second]).state_dict()
    )  # which refuses tensors that share their memory


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
    """Under a prefix, which the sizes of the clusters must have too."""
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
            "expected between 1 and 10 clusters, one per class, got three",
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
        (Clustering, (torch.ones(2), [2]), r"order must be .* got torch\.float32 \(2,\)"),
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
    head = make_head(10, implementation="cuda")
    with pytest.raises(
        ValueError, match="implementation must be auto, torch or triton, got 'cuda'"
    ):
        head(torch.randn(2, HIDDEN, dtype=torch.float64), torch.tensor([1, 2]))


@pytest.mark.parametrize("has_triton", [True, False])
def test_who_waits_for_the_device_is_not_captured(
    has_triton: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch multiplies block by block, and has to learn which."""
    monkeypatch.setattr("zloss.kernels.available", lambda: has_triton)
    found = {
        (implementation, exact_rows): HierarchicalSoftmax(
            4, 10, implementation=implementation, exact_rows=exact_rows
        ).is_capturable
        for implementation in ("auto", "torch", "triton")
        for exact_rows in (True, False)
    }
    assert {options for options, is_capturable in found.items() if is_capturable} == (
        {("auto", False), ("triton", False)} if has_triton else {("triton", False)}
    )


@pytest.mark.filterwarnings("ignore")  # of the compiler about its own doing
def test_batches_compile_nothing_anew() -> None:
    """However many clusters their targets are in."""
    torch.compiler.reset()  # other tests have compiled the same code
    head, graphs = make_head(100), Graphs()
    compiled = torch.compile(head, backend=graphs)
    h = torch.randn(8, HIDDEN, dtype=torch.float64)
    seen = []
    for last in (1, 20, 50, 99):
        target = torch.linspace(0, last, 8).long()
        assert_close(compiled(h, target), head(h, target))
        seen.append(len(graphs))
    assert seen[0] == seen[-1]
