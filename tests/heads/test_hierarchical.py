"""The hierarchical softmax: any clusters give exact probabilities, and a step changes the clusters of its targets."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import zloss
from tests.graphs import Graphs
from tests.heads.definitions import hierarchical_log_prob
from tests.heads.hierarchical_problems import HIDDEN, IGNORED, assert_close, families, make_head
from tests.memory import LargestTensor
from zloss import Clustering, HierarchicalSoftmax


def assert_is_its_definition(
    head: HierarchicalSoftmax, clustering: Clustering, rows: int = 5
) -> None:
    """Check the probabilities of all classes, and the mean loss over all classes as targets with its gradients."""
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
    """Clusters may have any sizes, and their classes may have any numbers."""
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
    """A class may score far below its cluster, and a cluster far below others. No logarithm of zero occurs."""
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
    """Two members of a cluster with equal weights score equally to the last bit, for any blocks."""
    head = make_head(50, clusters=4, dtype=torch.float32, device=device)
    with torch.no_grad():
        head.members[3] = head.members[9]
    h = torch.randn(200, HIDDEN, device=device)
    target = torch.tensor([3, 9], device=device).expand(200, 2)
    for block_size in (1, 5, None):
        ranks = head.rank(h, target, block_size=block_size)
        assert torch.equal(ranks[:, 0], ranks[:, 1])


def test_the_best_class_has_rank_one(device: torch.device) -> None:
    """A float32 score may differ in the last bit between two products. This must not make a class outrank itself."""
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


# ---- the rows that a step changes ------------------------------------------------------------------------------------


def test_only_the_clusters_of_the_targets_change(device: torch.device) -> None:
    clustering = Clustering.by_labels(torch.arange(60) % 7)
    head = make_head(60, clusters=clustering, bias=True, device=device)
    before = {name: parameter.detach().clone() for name, parameter in head.named_parameters()}
    # Classes 3 and 10 are in cluster 3, and class 5 is in cluster 5. Row 2 is ignored.
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
    # 1000 classes are 8 clusters of 32 classes and 24 clusters of 31. The first cluster has 0, 5 and 31, and the eighth
    # cluster of 31 has 500.
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


# ---- graphs and compilers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_triton", [True, False])
def test_who_waits_for_the_device_is_not_captured(
    has_triton: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The torch implementation multiplies block by block, and has to wait for the numbers of the blocks."""
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


@pytest.mark.filterwarnings("ignore")  # warnings of the compiler about itself
def test_batches_compile_nothing_anew() -> None:
    """The targets of the batches are in different numbers of clusters."""
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
