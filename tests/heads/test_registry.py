"""The registry of heads has every public head and every pair of the config, and each head is what its row says."""

import inspect
from collections.abc import Iterable

import pytest
import torch

import zloss
from tests.heads.batches import (
    IGNORED,
    assert_close,
    good_batch,
    seeded,
)
from tests.heads.logit_losses import LOGIT_LOSSES
from tests.heads.registry import (
    CASES,
    CLASSES,
    HIDDEN,
    HeadCase,
    every_head,
    every_head_but_row_sparse,
    every_row_sparse_head,
)
from tests.losses.registry import CASES as LOSS_CASES
from zloss.heads.config import HEADS


def unregistered(candidates: Iterable[object]) -> list[str]:
    """Return the concrete heads among `candidates` that no row of `CASES` makes."""
    registered = {type(case.made()) for case in CASES if not case.missing}
    return [
        candidate.__name__
        for candidate in candidates
        if inspect.isclass(candidate)
        and issubclass(candidate, zloss.Head)
        and not inspect.isabstract(candidate)
        and candidate not in registered
    ]


def test_every_public_head_is_registered() -> None:
    assert unregistered(vars(zloss).values()) == [], "add a row to CASES in tests/heads/registry.py"


def test_every_pair_of_the_config_is_registered() -> None:
    pairs = {(name, loss) for name, kind in HEADS.items() for loss in kind.losses}
    assert pairs - {(case.kind, case.loss) for case in CASES} == set(), (
        "add rows to CASES in tests/heads/registry.py"
    )


def test_a_head_that_was_forgotten_is_seen() -> None:
    class Forgotten(zloss.DenseOutput):
        """A head that no case makes."""

    assert unregistered(
        [Forgotten, zloss.DenseOutput, zloss.Head, zloss.FactoredLinear, "a string"]
    ) == ["Forgotten"]


def test_names_tell_the_cases_apart() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


NAMES_OF_LOSSES = {
    "softmax": "SoftmaxCrossEntropy",
    "sigmoid": "SigmoidCrossEntropy",
    "z_softmax": "ZSoftmax",
    "z_sigmoid": "ZSigmoid",
    "z_loss": "ZLoss",
    "squared_error": "SquaredError",
    "taylor_softmax": "TaylorSoftmax",
    "spherical_softmax": "SphericalSoftmax",
    "torch's softmax": "CrossEntropyLoss",
    "torch's z_softmax": "ZSoftmax",
}


@pytest.mark.parametrize("name", LOGIT_LOSSES)
def test_a_definition_here_is_that_of_the_losses(name: str) -> None:
    """The definitions of losses are loops over Python numbers. They must agree with the definitions for autograd."""
    (definition,) = [case.definition for case in LOSS_CASES if case.name == NAMES_OF_LOSSES[name]]
    logits, index = torch.randn(6, 9, dtype=torch.float64), torch.tensor([0, 3, 8, 3, 1, 2])
    loops = [definition(row, c) for row, c in zip(logits.tolist(), index.tolist(), strict=True)]
    assert_close(
        LOGIT_LOSSES[name].definition(logits, index), torch.tensor(loops, dtype=torch.float64)
    )


@every_head
def test_a_head_is_what_it_claims_to_be(case: HeadCase, device: torch.device) -> None:
    head = case.made(device)
    assert head.is_likelihood == (case.log_prob is not None)
    assert head.is_row_sparse == case.is_row_sparse
    assert (head.in_features, head.num_classes, head.ignore_index) == (HIDDEN, CLASSES, IGNORED)
    assert (head.reference_weight.device, head.reference_weight.dtype) == (device, torch.float64)


@every_row_sparse_head
def test_row_sparse_gradients_are_sparse(case: HeadCase, device: torch.device) -> None:
    head = case.made(device)
    seeded(head, *good_batch(head)).backward()
    per_class = [parameter.grad for parameter in head.parameters() if len(parameter) == CLASSES]
    assert per_class
    assert all(grad is not None and grad.layout == torch.sparse_coo for grad in per_class)


@every_head_but_row_sparse
def test_other_gradients_are_not(case: HeadCase, device: torch.device) -> None:
    head = case.made(device)
    seeded(head, *good_batch(head)).backward()
    assert all(
        parameter.grad is None or not parameter.grad.is_sparse for parameter in head.parameters()
    )
