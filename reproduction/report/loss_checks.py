"""Claims about losses on Penn Treebank, figures 2 and 5: each tuned for each score, test scores compared over seeds."""

from collections.abc import Sequence
from contextlib import suppress

from reproduction.report.duels import Duel, closest, duel, told
from reproduction.report.evidence import VARIANTS, Evidence, NotRunError
from reproduction.report.scores import MINUS
from reproduction.report.verdicts import (
    Check,
    Finding,
    combined_finding,
    verdict_of,
    verdict_of_slightly_worse,
)

NAMES = {
    "squared_error": "squared error",
    "taylor_softmax": "Taylor softmax",
    "spherical_softmax": "spherical softmax",
    "sigmoid": "sigmoid",
    "softmax": "softmax",
    "z_softmax": "Z-norm. softmax",
    "z_sigmoid": "Z-norm. sigmoid",
    "z_loss": "Z-loss",
}


def _in_every_variant(check: Check) -> Check:
    """The same with every variant of figure 2 that has all the losses in question; of figure 5 there is none."""

    def check_all(evidence: Evidence) -> Finding:
        findings = {"as tuned": check(evidence)}
        for name, variant in VARIANTS.items():
            with suppress(NotRunError):
                findings[variant.title] = check(evidence.variant(name))
        return combined_finding(findings) if len(findings) > 1 else findings["as tuned"]

    return check_all


def beats(
    winners: Sequence[str], losers: Sequence[str], scores: Sequence[str], figure: int = 2
) -> Check:
    """Every one of the winners is better than every one of the losers; the closest duel at each score counts."""

    @_in_every_variant
    def check(evidence: Evidence) -> Finding:
        duels = [
            closest(
                _duel(evidence, figure, winner, loser, score)
                for winner in winners
                for loser in losers
            )
            for score in scores
        ]
        return Finding(f"{_title(winners, losers)}: {told(duels)}", verdict_of(duels))

    return check


def slightly_worse(first: str, second: str, scores: Sequence[str]) -> Check:
    """The first is behind, by little."""

    @_in_every_variant
    def check(evidence: Evidence) -> Finding:
        duels = [_duel(evidence, 2, first, second, score) for score in scores]
        return Finding(
            f"{_title([first], [second])}: {told(duels)}", verdict_of_slightly_worse(duels)
        )

    return check


def normalisation_helps(evidence: Evidence) -> Finding:
    """Softmax and sigmoid, each beside its Z-normalised version."""
    pairs = {loss: (f"z_{loss}", loss) for loss in ("softmax", "sigmoid")}
    duels = {
        loss: [_duel(evidence, 5, *pair, score) for score in FIGURE5_SCORES]
        for loss, pair in pairs.items()
    }
    text = ". ".join(
        f"{NAMES[loss]}, with {MINUS} without: {told(found)}" for loss, found in duels.items()
    )
    return Finding(text, verdict_of([one for found in duels.values() for one in found]))


FIGURE5_SCORES = ("top_1_error", "top_10_error", "top_50_error")


def _duel(evidence: Evidence, figure: int, first: str, second: str, score: str) -> Duel:
    return duel(evidence.tuned(figure, first, score), evidence.tuned(figure, second, score), score)


def _title(first: Sequence[str], second: Sequence[str]) -> str:
    """Of a difference; of the closest one, where there are several."""
    return f"{_name(first)} {MINUS} {_name(second)}"


def _name(losses: Sequence[str]) -> str:
    return NAMES[losses[0]] if len(losses) == 1 else "closest other"
