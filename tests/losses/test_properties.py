"""The invariances of the losses: every loss has, or provably lacks, every property of the registry."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import zloss
from tests.losses.registry import LossCase, every_loss, unregistered

Loss = Callable[[Tensor, Tensor], Tensor]  # (B, C), (B,) -> (B,)

# Values are below 1e3, so that float64 rounds them by some 1e-13. A property that does not hold fails by far more.
HOLDS, FAILS = 1e-11, 1e-3
REGISTRIES = [
    name
    for name, kind in LossCase.__annotations__.items()
    if kind is bool and name != "reduced_here"
]


def examples() -> tuple[Tensor, Tensor]:
    return 2 * torch.randn(16, 7, dtype=torch.float64), torch.randint(7, (16,))


def mix_others(logits: Tensor, target: Tensor) -> Tensor:
    """Reflect the activations of the other classes such that their sum, the sum of their squares and o_c stay."""
    others = torch.ones_like(logits).scatter(1, target[:, None], 0)
    axis = others * torch.randn_like(logits)
    axis = axis - others * axis.sum(1, keepdim=True) / others.sum(1, keepdim=True)
    return logits - 2 * axis * (axis * logits).sum(1, keepdim=True) / axis.square().sum(
        1, keepdim=True
    )


def change_by_shift(loss: Loss, logits: Tensor, target: Tensor) -> Tensor:
    return (loss(logits + 3, target) - loss(logits, target)).abs()


def change_by_scale(loss: Loss, logits: Tensor, target: Tensor) -> Tensor:
    return (loss(2.5 * logits, target) - loss(logits, target)).abs()


def change_by_mixing(loss: Loss, logits: Tensor, target: Tensor) -> Tensor:
    return (loss(mix_others(logits, target), target) - loss(logits, target)).abs()


def missing_probability(loss: Loss, logits: Tensor, target: Tensor) -> Tensor:
    total = sum(
        torch.exp(-loss(logits, torch.full_like(target, c))) for c in range(logits.shape[1])
    )
    return torch.as_tensor(total - 1).abs()


def negative_part(loss: Loss, logits: Tensor, target: Tensor) -> Tensor:
    return (-loss(logits, target)).clamp_min(0)


VIOLATIONS: dict[str, Callable[[Loss, Tensor, Tensor], Tensor]] = {
    "shift_invariant": change_by_shift,
    "scale_invariant": change_by_scale,
    "spherical": change_by_mixing,
    "probabilistic": missing_probability,
    "non_negative": negative_part,
}


@pytest.mark.parametrize("name", REGISTRIES)
@every_loss
def test_a_loss_has_the_properties_it_is_listed_with_and_no_others(
    case: LossCase, name: str
) -> None:
    worst = VIOLATIONS[name](case.make(reduction="none"), *examples()).max()
    if getattr(case, name):
        assert worst < HOLDS
    else:
        assert worst > FAILS


def linear(logits: Tensor, target: Tensor) -> Tensor:
    return -logits.gather(1, target[:, None]).squeeze(1)


def margin(logits: Tensor, target: Tensor) -> Tensor:
    return logits.amax(1) + linear(logits, target)


@pytest.mark.parametrize(
    ("name", "counter_example", "example"),
    [
        ("shift_invariant", linear, margin),
        ("scale_invariant", linear, zloss.ZLoss(a=1, b=1, reduction="none")),
        ("spherical", margin, linear),
        ("probabilistic", linear, nn.CrossEntropyLoss(reduction="none")),
        ("non_negative", linear, margin),
    ],
)
def test_each_check_refuses_a_counter_example(
    name: str, counter_example: Loss, example: Loss
) -> None:
    assert VIOLATIONS[name](counter_example, *examples()).max() > FAILS
    assert VIOLATIONS[name](example, *examples()).max() < HOLDS


def test_every_registry_has_a_check() -> None:
    assert set(REGISTRIES) == set(VIOLATIONS)


def test_every_exported_loss_is_registered() -> None:
    assert unregistered(dir(zloss), zloss) == []


def test_a_loss_that_is_not_registered_is_found() -> None:
    newcomer = type("Newcomer", (zloss.TaylorSoftmax,), {"__module__": "zloss.losses.spherical"})
    assert unregistered(["Newcomer"], SimpleNamespace(Newcomer=newcomer)) == ["Newcomer"]


def test_mixing_keeps_the_statistics_and_nothing_else() -> None:
    logits, target = examples()
    mixed = mix_others(logits, target)
    before, after = (zloss.SphericalStats.from_logits(o, target) for o in (logits, mixed))
    assert torch.equal(before.target, after.target)
    torch.testing.assert_close(before.sum, after.sum)
    torch.testing.assert_close(before.sumsq, after.sumsq)
    assert (mixed - logits).abs().amax(1).min() > FAILS
