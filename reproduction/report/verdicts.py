"""Verdicts on claims, and the rules by which they are given. `RULES` says them to readers of the report."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from reproduction.report.comparisons import ENOUGH_SEEDS, Comparison, Standing
from reproduction.report.evidence import Evidence, NotRunError
from reproduction.report.score_texts import TIMES


class Verdict(StrEnum):
    """The verdict of our records on a claim."""

    REPRODUCED = "reproduced"
    BETTER = "better"
    PARTLY = "partly"
    NOT_REPRODUCED = "not reproduced"
    NOT_RUN = "not run yet"


@dataclass(frozen=True)
class Finding:
    """Our number as text, and the verdict. Without records the text is the command that makes them."""

    ours: str
    verdict: Verdict


Check = Callable[[Evidence], Finding]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A statement of the paper in our words, and the check of our records."""

    about: str  # the figure or table of the report that shows it
    where: str  # in the paper
    says: str
    paper: str  # its numbers
    check: Check

    def judge(self, evidence: Evidence) -> Finding:
        """Return the finding. Where records are missing, it has the command that makes them."""
        try:
            return self.check(evidence)
        except NotRunError as error:
            return Finding(str(error), Verdict.NOT_RUN)


ABOVE, BELOW = 1.1, 0.9
SLIGHTLY = 0.02  # two points of error; the paper uses the word for differences of about one point
LITTLE = 0.005  # half a point: less than any difference that the paper discusses
RULES = (
    f"A speed-up is reproduced if it is at least {BELOW:.0%} of the paper's, better from {ABOVE:.0%} on, and partly "
    "reproduced from half of it on.",
    "One loss is better than another at a score if the 95 % interval of their difference (Welch) does not contain "
    "zero. Otherwise they are within noise.",
    "A claim about several scores is reproduced if it holds for all, and partly reproduced if it holds for some. The "
    "same applies to several texts and, in figure 2, to several settings.",
    "One seed gives no interval. The verdict on scores and on times to converge is then “partly” at most.",
    f"“Needs {ENOUGH_SEEDS} seeds” marks two results that are within a point of each other and have fewer seeds. Such "
    "a verdict is preliminary.",
    f"“Slightly” worse means worse by up to {100 * SLIGHTLY:.0f} points of error. (In the paper's table 2 it is about "
    "one point.) A larger distance is not reproduced.",
    "The paper may have the Z-loss behind where we have it ahead or level. The verdict is then “better”, or “partly” "
    "if it is so on some texts only.",
    "Level means within noise, with an interval that ends less than half a point behind. A wider interval leaves the "
    "question open, and the verdict is “partly”.",
    "Final scores of models are judged after convergence. Some texts lack such trainings of a model in question. They "
    "are judged after the most epochs that all these models have, and the finding names the number.",
    "A lower error in less time is judged by the error first: a higher one does not become half true by being early.",
    "Every interval is about one comparison alone. By chance, one in twenty would miss zero.",
)


def ratio_finding(ours: float, paper: float) -> Finding:
    """Return the finding on a speed-up: our quotient beside the quotient of the paper."""
    quotient = ours / paper
    if quotient >= ABOVE:
        verdict = Verdict.BETTER
    elif quotient >= BELOW:
        verdict = Verdict.REPRODUCED
    else:
        verdict = Verdict.PARTLY if quotient >= 0.5 else Verdict.NOT_REPRODUCED
    return Finding(f"{ours:.3g}{TIMES}", verdict)


def verdict_of(comparisons: Sequence[Comparison]) -> Verdict:
    """Return the verdict on the claim that the first is better in all comparisons."""
    outcomes = {comparison.standing for comparison in comparisons}
    if outcomes == {Standing.WON}:
        return Verdict.REPRODUCED
    return Verdict.PARTLY if outcomes & {Standing.WON, Standing.AHEAD} else Verdict.NOT_REPRODUCED


def verdict_of_slightly_worse(comparisons: Sequence[Comparison]) -> Verdict:
    """Return the verdict on the claim that the first is slightly worse in all comparisons."""
    if all(is_level_or_ahead(comparison) for comparison in comparisons):
        return Verdict.BETTER
    outcomes = {comparison.standing for comparison in comparisons}
    far_behind = [_is_far_behind(comparison) for comparison in comparisons]
    if outcomes == {Standing.LOST} and not any(far_behind):
        return Verdict.REPRODUCED
    return Verdict.NOT_REPRODUCED if all(far_behind) else Verdict.PARTLY


def is_level_or_ahead(comparison: Comparison) -> bool:
    """Return whether the first is better, or within noise and behind by a little at most at the end of the interval."""
    return comparison.standing is Standing.WON or (
        comparison.standing is Standing.EVEN and comparison.most_behind <= LITTLE
    )


def _is_far_behind(comparison: Comparison) -> bool:
    is_behind = comparison.standing in (Standing.LOST, Standing.BEHIND)
    return is_behind and abs(comparison.difference.mean) > SLIGHTLY


def verdict_of_parts(holds: Sequence[bool]) -> Verdict:
    """Return the verdict on a claim of several parts."""
    if all(holds):
        return Verdict.REPRODUCED
    return Verdict.PARTLY if any(holds) else Verdict.NOT_REPRODUCED


def doubted(verdict: Verdict, seeds: int) -> Verdict:
    """Return a verdict that was given by means alone. With one seed it is no more than "partly"."""
    return (
        Verdict.PARTLY if seeds < 2 and verdict in (Verdict.REPRODUCED, Verdict.BETTER) else verdict
    )


def combined_finding(findings: Mapping[str, Finding], *, of_speed: bool = False) -> Finding:
    """Return the finding on a claim that was tried in several ways, from the finding of each way."""
    text = ". ".join(f"{way}: {finding.ours}" for way, finding in findings.items())
    return Finding(
        text, combined([finding.verdict for finding in findings.values()], of_speed=of_speed)
    )


def combined(verdicts: Collection[Verdict], *, of_speed: bool = False) -> Verdict:
    """Return the verdict on a claim that was tried on several texts or devices, or with several settings.

    A speed-up that is better than the claim confirms it. A loss that is better than the claim is not behind, which
    contradicts it.
    """
    if len(set(verdicts)) == 1:
        return next(iter(verdicts))
    if of_speed and set(verdicts) <= {Verdict.REPRODUCED, Verdict.BETTER}:
        return Verdict.REPRODUCED
    return Verdict.PARTLY
