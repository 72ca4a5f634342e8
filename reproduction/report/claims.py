"""Every claim of the paper, in our words, with its place, its numbers and the check that judges our records by it."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from reproduction.report import (
    corpus_checks,
    loss_checks,
    parameter_checks,
    property_checks,
    speed_checks,
)
from reproduction.report.corpus_checks import HIERARCHICAL, LARGER, SAME_SIZE, on_every_text
from reproduction.report.evidence import Evidence
from reproduction.report.loss_checks import beats, slightly_worse
from reproduction.report.published import convergence_ratio, epoch_ratio
from reproduction.report.records import CONVERGED, FIXED
from reproduction.report.scores import ERRORS, MINUS, SCORES, TIMES, top
from reproduction.report.speed_checks import faster_than
from reproduction.report.timings import Device, Part
from reproduction.report.verdicts import Claim, Finding, Verdict

_HIGH_K = ERRORS[1:]  # top-5 to top-100


def _speed_up(loss: str, part: Part, device: Device, where: str, says: str) -> Claim:
    """A claim whose number is a quotient of table 1."""
    return Claim(
        about="table 1",
        where=where,
        says=says,
        paper=f"{epoch_ratio(part, loss, device):.3g}{TIMES}",
        check=faster_than(loss, part, device),
    )


CLAIMS = (
    # ---- the loss ----
    Claim(
        about="figure 1",
        where="section 2",
        says="Shifted or scaled outputs do not change the Z-loss; log-softmax changes when they are scaled.",
        paper="exact",
        check=property_checks.is_invariant,
    ),
    Claim(
        about="figure 1",
        where="section 2, figure 1",
        says=f"z_c lies between ±√(D {MINUS} 1).",
        paper="±31.61 for D = 1,000",
        check=property_checks.is_bounded,
    ),
    Claim(
        about="figure 1",
        where="section 2",
        says=f"The loss is least at z_c = √(D {MINUS} 1), with all other z_k = {MINUS}1 / √(D {MINUS} 1).",
        paper="exact",
        check=property_checks.has_its_minimum_at_the_bound,
    ),
    Claim(
        about="figure 1",
        where="section 2, figure 5",
        says="Z-normalisation makes classes compete: the gradient sums to zero, else none reaches the others.",
        paper="exact",
        check=property_checks.makes_classes_compete,
    ),
    # ---- speed ----
    _speed_up(
        "softmax",
        "output",
        "cuda",
        "table 1",
        "On a GPU, the output layer trains faster than with softmax (4.44 days an epoch against 1.24 h).",
    ),
    _speed_up(
        "hierarchical",
        "output",
        "cuda",
        "table 1",
        "On a GPU, the output layer trains faster than with hierarchical softmax (10.88 h against 1.24 h).",
    ),
    _speed_up(
        "softmax",
        "output",
        "cpu",
        "table 1",
        "On a CPU, the output layer trains faster than with softmax (69.7 days against 8.68 h).",
    ),
    _speed_up(
        "softmax",
        "model",
        "cuda",
        "abstract, conclusion, table 1",
        "On a GPU, all of net1 trains about 40 times faster than with softmax (4.56 days against 2.81 h).",
    ),
    _speed_up(
        "hierarchical",
        "model",
        "cuda",
        "abstract, conclusion, table 1",
        "On a GPU, all of net1 trains over 4 times faster than with hierarchical softmax (12.23 h against 2.81 h).",
    ),
    _speed_up(
        "softmax",
        "model",
        "cpu",
        "table 1",
        "On a CPU, all of net1 trains faster than with softmax (78.5 against 7.50 days).",
    ),
    Claim(
        about="table 1",
        where="abstract, introduction, conclusion",
        says="The cost of a step of the output layer does not depend on the number of classes.",
        paper=f"1{TIMES}",
        check=speed_checks.costs_the_same_for_more_classes,
    ),
    Claim(
        about="table 1",
        where="conclusion",
        says="Hierarchical softmax grows with the number of classes, so the lead of the Z-loss grows with it.",
        paper="√D in practice",
        check=speed_checks.hierarchical_softmax_grows,
    ),
    # ---- losses on Penn Treebank ----
    Claim(
        about="figure 2",
        where="figure 2",
        says="The squared error is the worst of all losses.",
        paper="at all seven scores",
        check=beats(("taylor_softmax", "sigmoid", "softmax", "z_loss"), ("squared_error",), SCORES),
    ),
    Claim(
        about="figure 2",
        where="figure 2",
        says="The Taylor softmax is the second worst.",
        paper="at all seven scores",
        check=beats(("sigmoid", "softmax", "z_loss"), ("taylor_softmax",), SCORES),
    ),
    Claim(
        about="figure 2",
        where="abstract, discussion",
        says="The Z-loss is far better than the other spherical losses.",
        paper="at all seven scores",
        check=beats(("z_loss",), ("squared_error", "taylor_softmax", "spherical_softmax"), SCORES),
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
    # ---- a and b ----
    Claim(
        about="figure 3",
        where="figure 3",
        says="Top-1, top-5 and top-10 error have their minima at different a.",
        paper="three minima",
        check=parameter_checks.minima_differ,
    ),
    Claim(
        about="figure 3",
        where="discussion",
        says="The higher a, the better the top-k errors with a high k, and the other way round.",
        paper="the best a grows with k",
        check=parameter_checks.higher_a_for_higher_k,
    ),
    Claim(
        about="figure 3",
        where="figure 3, discussion",
        says="For top-k errors a matters more than b.",
        paper="no number",
        check=parameter_checks.a_matters_more_than_b,
    ),
    Claim(
        about="figure 4",
        where="sections 2 and 3.1, figure 4, conclusion",
        says="a and b fit the loss to a score: tuned for another one, it is much worse.",
        paper="“drastically”",
        check=parameter_checks.parameters_fit_the_score,
    ),
    Claim(
        about="figure 4",
        where="figure 4",
        says="The best model at top-1 is the worst at top-50, and the other way round.",
        paper="4th of 4, twice",
        check=parameter_checks.ends_are_opposite,
    ),
    Claim(
        about="figure 4",
        where="discussion",
        says="a and b are easy to tune: the first iterations are enough to choose by.",
        paper="no number",
        check=parameter_checks.early_scores_are_enough,
    ),
    # ---- Z-normalisation of other losses ----
    Claim(
        about="figure 5",
        where="figure 5, discussion",
        says="Z-normalisation with its hyper-parameters improves log-softmax and sigmoid slightly.",
        paper="top-{1, 10, 50}",
        check=loss_checks.normalisation_helps,
    ),
    Claim(
        about="figure 5",
        where="figure 5, section 3.1, discussion",
        says="They gain less by it than the Z-loss does: it stays ahead of them for k above 1.",
        paper="top-{10, 50}",
        check=beats(("z_loss",), ("z_softmax", "z_sigmoid"), (top(10), top(50)), figure=5),
    ),
    # ---- large texts ----
    Claim(
        about="table 2",
        where="section 3.2, discussion, table 2",
        says="With the same network, hierarchical softmax ends slightly better than the Z-loss.",
        paper="71.0 against 72.13 % top-1, 35.73 against 36.43 % top-20",
        check=on_every_text(
            CONVERGED,
            (HIERARCHICAL, SAME_SIZE),
            corpus_checks.slightly_worse_scores,
            or_epochs=True,
        ),
    ),
    Claim(
        about="table 2",
        where="section 3.2, discussion, table 2",
        says="With the same network, the Z-loss converges more than 4 times faster than hierarchical softmax.",
        paper=f"{convergence_ratio():.3g}{TIMES} (4.08 days against 0.97)",
        check=on_every_text(
            CONVERGED, (HIERARCHICAL, SAME_SIZE), corpus_checks.converges_faster, of_speed=True
        ),
    ),
    Claim(
        about="table 2",
        where="section 3.2, discussion, table 2",
        says="The larger net2 with the Z-loss gets a lower top-1 error than H-softmax with net1, in less time.",
        paper="70.77 % in 3.14 days against 71.0 % in 4.08",
        check=on_every_text(
            CONVERGED,
            (HIERARCHICAL, LARGER),
            corpus_checks.larger_network_wins_top_1,
            or_epochs=True,
        ),
    ),
    Claim(
        about="table 2",
        where="section 3.2, discussion, table 2",
        says="Tuned for top-1, that net2 is behind at top-20.",
        paper="38.29 against 35.73 %",
        check=on_every_text(
            CONVERGED,
            (HIERARCHICAL, LARGER),
            corpus_checks.larger_network_is_worse_at_top_20,
            or_epochs=True,
        ),
    ),
    Claim(
        about="table 2",
        where="conclusion",
        says="In a fixed time, a Z-loss model gets a lower top-1 error than hierarchical softmax.",
        paper="around 4 days",
        check=on_every_text(
            FIXED, (HIERARCHICAL, SAME_SIZE, LARGER), corpus_checks.better_top_1_in_the_same_time
        ),
    ),
)


@dataclass(frozen=True)
class Judged:
    """A claim with what our records say."""

    number: int
    claim: Claim
    finding: Finding


def judged(evidence: Evidence) -> list[Judged]:
    """All claims, in order, numbered from 1."""
    return [
        Judged(number, claim, claim.judge(evidence)) for number, claim in enumerate(CLAIMS, start=1)
    ]


def counts(claims: Iterable[Judged]) -> dict[Verdict, int]:
    """How many have each verdict."""
    found = Counter(one.finding.verdict for one in claims)
    return {verdict: found[verdict] for verdict in Verdict}
