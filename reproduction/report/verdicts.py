"""Verdicts on claims, and the rules by which they are given. `RULES` says them to readers of the report."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from reproduction.report.duels import ENOUGH_SEEDS, Duel, Outcome
from reproduction.report.evidence import Evidence, NotRunError
from reproduction.report.scores import TIMES


class Verdict(StrEnum):
    """What our records say to a claim."""

    REPRODUCED = "reproduced"
    BETTER = "better"
    PARTLY = "partly"
    NOT_REPRODUCED = "not reproduced"
    NOT_RUN = "not run yet"


@dataclass(frozen=True)
class Finding:
    """Our number, to read, and the verdict; what to run, where there is none."""

    ours: str
    verdict: Verdict


Check = Callable[[Evidence], Finding]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What the paper says, in our words, and how our records are asked about it."""

    about: str  # the figure or table of the report that shows it
    where: str  # in the paper
    says: str
    paper: str  # its numbers
    check: Check

    def judge(self, evidence: Evidence) -> Finding:
        """The finding; where records are missing, what to run."""
        try:
            return self.check(evidence)
        except NotRunError as error:
            return Finding(str(error), Verdict.NOT_RUN)


ABOVE, BELOW = 1.1, 0.9
SLIGHTLY = 0.02  # two points of error; the differences that the paper calls so are of about one
LITTLE = 0.005  # half a point: less than any difference that the paper talks about
RULES = (
    f"A speed-up is reproduced from {BELOW:.0%} of the paper's on, better from {ABOVE:.0%} on, and partly reproduced "
    "from half of it on.",
    "One loss is better than another at a score when the 95 % interval of their difference over seeds (Welch) leaves "
    "out zero; else they are within noise. A claim about several scores is reproduced when it holds for all, partly "
    "when it holds for some; so is one that was tried on several texts or, in figure 2, with several settings. With "
    "one seed there is no interval, and no more than “partly”, for scores and for times to converge.",
    f"“Needs {ENOUGH_SEEDS} seeds” marks what is within a point of each other and has fewer, a verdict for now.",
    f"“Slightly” worse is worse by up to {100 * SLIGHTLY:.0f} points of error (by about one in the paper's table 2); "
    "what is further behind is not reproduced. Where the paper has the Z-loss behind and we have it ahead, or level, "
    "the verdict is “better”, or “partly” where it is so on one text and not on another; level is what is within noise "
    "with an interval that ends less than half a point behind. "
    "Where it is wider, nobody can tell, and the verdict is “partly”.",
    "How models end is judged after convergence; on a text that has no such trainings of all models in question, after "
    "the most epochs that all of them were trained for, and the finding says how many.",
    "A lower error in less time is judged by the error first: a higher one does not become half true by being early.",
    "Intervals are of each comparison by itself; with so many of them, one in twenty would miss zero by chance.",
)


def ratio_finding(ours: float, paper: float) -> Finding:
    """Of a speed-up."""
    quotient = ours / paper
    if quotient >= ABOVE:
        verdict = Verdict.BETTER
    elif quotient >= BELOW:
        verdict = Verdict.REPRODUCED
    else:
        verdict = Verdict.PARTLY if quotient >= 0.5 else Verdict.NOT_REPRODUCED
    return Finding(f"{ours:.3g}{TIMES}", verdict)


def verdict_of(duels: Sequence[Duel]) -> Verdict:
    """On the claim that the first is better in all of them."""
    outcomes = {duel.outcome for duel in duels}
    if outcomes == {Outcome.WON}:
        return Verdict.REPRODUCED
    return Verdict.PARTLY if outcomes & {Outcome.WON, Outcome.AHEAD} else Verdict.NOT_REPRODUCED


def verdict_of_slightly_worse(duels: Sequence[Duel]) -> Verdict:
    """On the claim that the first is slightly worse in all of them."""
    if all(is_level_or_ahead(duel) for duel in duels):
        return Verdict.BETTER
    outcomes = {duel.outcome for duel in duels}
    far_behind = [_is_far_behind(duel) for duel in duels]
    if outcomes == {Outcome.LOST} and not any(far_behind):
        return Verdict.REPRODUCED
    return Verdict.NOT_REPRODUCED if all(far_behind) else Verdict.PARTLY


def is_level_or_ahead(duel: Duel) -> bool:
    """Beyond doubt: what is within noise is level only where the interval leaves out all but a little."""
    return duel.outcome is Outcome.WON or (
        duel.outcome is Outcome.EVEN and duel.most_behind <= LITTLE
    )


def _is_far_behind(duel: Duel) -> bool:
    return duel.outcome in (Outcome.LOST, Outcome.BEHIND) and abs(duel.difference.mean) > SLIGHTLY


def verdict_of_parts(holds: Sequence[bool]) -> Verdict:
    """On a claim of several parts."""
    if all(holds):
        return Verdict.REPRODUCED
    return Verdict.PARTLY if any(holds) else Verdict.NOT_REPRODUCED


def doubted(verdict: Verdict, seeds: int) -> Verdict:
    """What a verdict from means alone is worth: with one seed, no more than "partly"."""
    return (
        Verdict.PARTLY if seeds < 2 and verdict in (Verdict.REPRODUCED, Verdict.BETTER) else verdict
    )


def combined_finding(findings: Mapping[str, Finding], *, of_speed: bool = False) -> Finding:
    """Of one claim, by where or how it was tried."""
    text = ". ".join(f"{how}: {finding.ours}" for how, finding in findings.items())
    return Finding(
        text, combined([finding.verdict for finding in findings.values()], of_speed=of_speed)
    )


def combined(verdicts: Collection[Verdict], *, of_speed: bool = False) -> Verdict:
    """Of one claim on several texts or devices, or with several settings.

    A speed-up that is better than claimed is there all the same; a loss that is better than claimed is not behind.
    """
    if len(set(verdicts)) == 1:
        return next(iter(verdicts))
    if of_speed and set(verdicts) <= {Verdict.REPRODUCED, Verdict.BETTER}:
        return Verdict.REPRODUCED
    return Verdict.PARTLY
