"""The top of the report: how many claims have which verdict, and the most important numbers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from reproduction.budgets import CONVERGED, FIXED
from reproduction.large_text_models import SOFTMAXES
from reproduction.report.claim_tables import verdict_badge
from reproduction.report.claims import JudgedClaim, verdict_counts
from reproduction.report.claims.large_texts import (
    HIERARCHICAL,
    SAME_SIZE,
    converges_faster,
    on_every_text,
)
from reproduction.report.comparisons import compare, compare_models, validating_best
from reproduction.report.evidence import Evidence, NotRunError, models_command
from reproduction.report.published import EPOCH_S, convergence_ratio, epoch_ratio
from reproduction.report.score_texts import TIMES, difference_text
from reproduction.report.timings import duration
from reproduction.scores import top
from reproduction.timed_parts import Device, Part, bench_command
from zloss_lab.documents.document import (
    Block,
    Bullets,
    Headline,
    Headlines,
    Paragraph,
    Section,
    paragraph,
)


@dataclass(frozen=True)
class KeyNumber:
    """An important number, beside the paper's."""

    about: str
    paper: str
    ours: Callable[[Evidence], str]

    def headline(self, evidence: Evidence) -> Headline:
        """Return the number as the page shows it."""
        try:
            ours = self.ours(evidence)
        except NotRunError:
            ours = "not run"
        return Headline(ours, self.about, f"paper: {self.paper}")


def _ratio(about: str, part: Part, loss: str, device: Device) -> KeyNumber:
    """Return the ratio of a loss to the Z-loss."""
    return KeyNumber(
        about,
        f"{epoch_ratio(part, loss, device):.3g}{TIMES}",
        lambda evidence: f"{evidence.ratio(part, loss, device):.3g}{TIMES}",
    )


def _epoch(evidence: Evidence) -> str:
    seconds = evidence.timings.epoch_s("model", "z_loss", "cuda")
    if seconds is None:
        raise NotRunError(bench_command("model", "cuda"))
    return duration(seconds)


def _top_10(evidence: Evidence) -> str:
    z_loss, softmax = (evidence.tuned(2, loss, top(10)) for loss in ("z_loss", "softmax"))
    return difference_text(compare(z_loss, softmax, top(10)).difference, top(10))


def _convergence(evidence: Evidence) -> str:
    judge = on_every_text(CONVERGED, (HIERARCHICAL, SAME_SIZE), converges_faster)
    return judge(evidence).ours


def _equal_time(evidence: Evidence) -> str:
    """Compare with the softmax of any kind that validates best, on the text where the Z-loss leads least."""
    differences = []
    for corpus in evidence.texts_with(FIXED):
        own, *others = (
            evidence.trainings(corpus, model, FIXED) for model in (SAME_SIZE, *SOFTMAXES)
        )
        if own and (rivals := [trainings for trainings in others if trainings]):
            differences.append(compare_models(own, validating_best(rivals), top(1)).difference)
    if not differences:
        raise NotRunError(models_command(FIXED))
    return difference_text(max(differences, key=lambda difference: difference.mean), top(1))


KEY_NUMBERS = (
    _ratio("output layer on a GPU, softmax / Z-loss", "output", "softmax", "cuda"),
    _ratio(
        "output layer on a GPU, hierarchical softmax / Z-loss", "output", "hierarchical", "cuda"
    ),
    _ratio("all of net1 on a GPU, softmax / Z-loss", "model", "softmax", "cuda"),
    KeyNumber(
        "an epoch of One Billion Word, net1 with the Z-loss",
        duration(EPOCH_S["model", "z_loss", "cuda"]),
        _epoch,
    ),
    _ratio("output layer on a CPU, softmax / Z-loss", "output", "softmax", "cpu"),
    _ratio("all of net1 on a CPU, softmax / Z-loss", "model", "softmax", "cpu"),
    KeyNumber("top-10 test error of figure 2, Z-loss minus softmax, points", "below zero", _top_10),
    KeyNumber(
        "top-1 test error in the same time, Z-loss minus the best softmax of any kind, points, on the closest text",
        "not compared",
        _equal_time,
    ),
    KeyNumber(
        "time to converge, hierarchical softmax / Z-loss",
        f"{convergence_ratio():.3g}{TIMES}",
        _convergence,
    ),
)


def summary_section(evidence: Evidence, claims: Sequence[JudgedClaim]) -> Section:
    """Return the number of claims with each verdict, and the key numbers."""
    counts = tuple(
        (verdict_badge(verdict, f"{count} {verdict}"),)
        for verdict, count in verdict_counts(claims).items()
        if count
    )
    numbers = tuple(number.headline(evidence) for number in KEY_NUMBERS)
    blocks: list[Block] = [
        *_warnings(evidence),
        paragraph(f"{len(claims)} claims:"),
        Bullets(counts, role="counts"),
        Headlines(numbers),
    ]
    return Section("summary", "Summary", tuple(blocks))


def _warnings(evidence: Evidence) -> Iterator[Paragraph]:
    if texts := evidence.other_texts():
        yield paragraph(
            f"Figures 2 to 5 were made on {' and '.join(texts)}; the paper has them on Penn Treebank.",
            role="pending",
        )
