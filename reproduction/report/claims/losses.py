"""Claims about losses on Penn Treebank, figures 2 and 5: each is tuned for each score, and compared over seeds."""

from collections.abc import Sequence
from contextlib import suppress

from reproduction.paper_figures import FIGURE_SCORES, LOSS_TITLES
from reproduction.report.comparisons import Comparison, closest, compare, comparisons_text
from reproduction.report.evidence import VARIANTS, Evidence, NotRunError
from reproduction.report.score_texts import MINUS
from reproduction.report.verdicts import (
    Check,
    Claim,
    Finding,
    combined_finding,
    verdict_of,
    verdict_of_slightly_worse,
)
from reproduction.scores import ERRORS, PAPER_SCORES, top

_HIGH_K = ERRORS[1:]


def _in_every_variant(check: Check) -> Check:
    """Return a check that repeats another one with every variant of figure 2 that has all its losses."""

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
    """Return a check that every winner is better than every loser, by the closest comparison at each score."""

    @_in_every_variant
    def check(evidence: Evidence) -> Finding:
        comparisons = [
            closest(
                _compare(evidence, figure, winner, loser, score)
                for winner in winners
                for loser in losers
            )
            for score in scores
        ]
        text = f"{_title(winners, losers)}: {comparisons_text(comparisons)}"
        return Finding(text, verdict_of(comparisons))

    return check


def slightly_worse(first: str, second: str, scores: Sequence[str]) -> Check:
    """Return a check that the first loss is behind the second, by little."""

    @_in_every_variant
    def check(evidence: Evidence) -> Finding:
        comparisons = [_compare(evidence, 2, first, second, score) for score in scores]
        text = f"{_title([first], [second])}: {comparisons_text(comparisons)}"
        return Finding(text, verdict_of_slightly_worse(comparisons))

    return check


def normalisation_helps(evidence: Evidence) -> Finding:
    """Compare softmax and sigmoid, each with its Z-normalised version."""
    pairs = {loss: (f"z_{loss}", loss) for loss in ("softmax", "sigmoid")}
    comparisons = {
        loss: [_compare(evidence, 5, *pair, score) for score in FIGURE_SCORES[5]]
        for loss, pair in pairs.items()
    }
    text = ". ".join(
        f"{LOSS_TITLES[loss]}, with {MINUS} without: {comparisons_text(found)}"
        for loss, found in comparisons.items()
    )
    return Finding(text, verdict_of([one for found in comparisons.values() for one in found]))


def _compare(evidence: Evidence, figure: int, first: str, second: str, score: str) -> Comparison:
    values = [evidence.tuned(figure, loss, score) for loss in (first, second)]
    return compare(values[0], values[1], score)


def _title(first: Sequence[str], second: Sequence[str]) -> str:
    """Return the title of a difference, or of the closest one of several."""
    return f"{_name(first)} {MINUS} {_name(second)}"


def _name(losses: Sequence[str]) -> str:
    return LOSS_TITLES[losses[0]] if len(losses) == 1 else "closest other"


LOSS_CLAIMS = (
    Claim(
        about="figure 2",
        where="figure 2",
        says="The squared error is the worst of all losses.",
        paper="at all seven scores",
        check=beats(
            ("taylor_softmax", "sigmoid", "softmax", "z_loss"), ("squared_error",), PAPER_SCORES
        ),
    ),
    Claim(
        about="figure 2",
        where="figure 2",
        says="The Taylor softmax is the second worst.",
        paper="at all seven scores",
        check=beats(("sigmoid", "softmax", "z_loss"), ("taylor_softmax",), PAPER_SCORES),
    ),
    Claim(
        about="figure 2",
        where="abstract, discussion",
        says="The Z-loss is far better than the other spherical losses.",
        paper="at all seven scores",
        check=beats(
            ("z_loss",), ("squared_error", "taylor_softmax", "spherical_softmax"), PAPER_SCORES
        ),
    ),
    Claim(
        about="figure 2",
        where="figure 2",
        says="The sigmoid cross-entropy has the lowest top-1 error.",
        paper="top-1",
        check=beats(("sigmoid",), ("softmax", "z_loss"), (top(1),)),
    ),
    Claim(
        about="figure 2",
        where="discussion",
        says="The sigmoid cross-entropy is better than log-softmax at top-{1, 5, 10, 20, 50}.",
        paper="five of five",
        check=beats(("sigmoid",), ("softmax",), ERRORS[:5]),
    ),
    Claim(
        about="figure 2",
        where="figure 2, section 3.1",
        says="The Z-loss has the lowest top-{5, 10, 20, 50, 100} errors of all losses.",
        paper="five of five",
        check=beats(("z_loss",), ("sigmoid", "softmax"), _HIGH_K),
    ),
    Claim(
        about="figure 2",
        where="abstract, conclusion",
        says="The Z-loss is clearly better than log-softmax at top-{5, 10, 20, 50, 100}.",
        paper="five of five",
        check=beats(("z_loss",), ("softmax",), _HIGH_K),
    ),
    Claim(
        about="figure 2",
        where="discussion",
        says="At top-1 the Z-loss is slightly worse than log-softmax.",
        paper="slightly",
        check=slightly_worse("z_loss", "softmax", (top(1),)),
    ),
)


NORMALISATION_CLAIMS = (
    Claim(
        about="figure 5",
        where="figure 5, discussion",
        says="Z-normalisation with its hyper-parameters improves log-softmax and sigmoid slightly.",
        paper="top-{1, 10, 50}",
        check=normalisation_helps,
    ),
    Claim(
        about="figure 5",
        where="figure 5, section 3.1, discussion",
        says="They gain less by it than the Z-loss does: it stays ahead of them for k above 1.",
        paper="top-{10, 50}",
        check=beats(("z_loss",), ("z_softmax", "z_sigmoid"), (top(10), top(50)), figure=5),
    ),
)
