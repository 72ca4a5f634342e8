"""The top of the report: how many claims have which verdict, and the numbers that sum things up."""

from collections.abc import Callable
from dataclasses import dataclass

from reproduction.report import corpus_checks
from reproduction.report.claims import Judged, counts
from reproduction.report.corpus_checks import (
    HIERARCHICAL,
    SAME_SIZE,
    duel_of_models,
    on_every_text,
    validating_best,
)
from reproduction.report.duels import duel
from reproduction.report.evidence import Evidence, NotRunError, bench_command, models_command
from reproduction.report.page import Html, element, paragraph, section
from reproduction.report.published import EPOCH_S, convergence_ratio, epoch_ratio
from reproduction.report.records import CONVERGED, FIXED, SOFTMAXES
from reproduction.report.results import verdict_kind
from reproduction.report.scores import TIMES, shown_difference, top
from reproduction.report.timings import Device, Part, duration
from reproduction.report.verdicts import Verdict


@dataclass(frozen=True)
class Headline:
    """A number that sums things up, and the paper's."""

    what: str
    paper: str
    ours: Callable[[Evidence], str]


def _ratio_headline(what: str, part: Part, loss: str, device: Device) -> Headline:
    paper = f"{epoch_ratio(part, loss, device):.3g}{TIMES}"
    return Headline(
        what, paper, lambda evidence: f"{evidence.ratio(part, loss, device):.3g}{TIMES}"
    )


def _epoch(evidence: Evidence) -> str:
    seconds = evidence.timings.epoch_s("model", "z_loss", "cuda")
    if seconds is None:
        raise NotRunError(bench_command("model", "cuda"))
    return duration(seconds)


def _top_10(evidence: Evidence) -> str:
    values = [evidence.tuned(2, loss, top(10)) for loss in ("z_loss", "softmax")]
    return shown_difference(duel(values[0], values[1], top(10)).difference, top(10))


def _convergence(evidence: Evidence) -> str:
    return on_every_text(CONVERGED, (HIERARCHICAL, SAME_SIZE), corpus_checks.converges_faster)(
        evidence
    ).ours


def _equal_time(evidence: Evidence) -> str:
    """Against the softmax that validates best, whatever kind it is, on the text where it comes closest."""
    differences = []
    for corpus in evidence.corpora(FIXED):
        own, *others = (evidence.models(corpus, model, FIXED) for model in (SAME_SIZE, *SOFTMAXES))
        if own and (rivals := [found for found in others if found]):
            differences.append(duel_of_models(own, validating_best(rivals), top(1)).difference)
    if not differences:
        raise NotRunError(models_command(FIXED))
    return shown_difference(max(differences, key=lambda difference: difference.mean), top(1))


HEADLINES = (
    _ratio_headline("output layer on a GPU, softmax / Z-loss", "output", "softmax", "cuda"),
    _ratio_headline(
        "output layer on a GPU, hierarchical softmax / Z-loss", "output", "hierarchical", "cuda"
    ),
    _ratio_headline("all of net1 on a GPU, softmax / Z-loss", "model", "softmax", "cuda"),
    Headline(
        "an epoch of One Billion Word, net1 with the Z-loss",
        duration(EPOCH_S["model", "z_loss", "cuda"]),
        _epoch,
    ),
    _ratio_headline("output layer on a CPU, softmax / Z-loss", "output", "softmax", "cpu"),
    _ratio_headline("all of net1 on a CPU, softmax / Z-loss", "model", "softmax", "cpu"),
    Headline("top-10 test error of figure 2, Z-loss minus softmax, points", "below zero", _top_10),
    Headline(
        "top-1 test error in the same time, Z-loss minus the best softmax of any kind, points, on the closest text",
        "not compared",
        _equal_time,
    ),
    Headline(
        "time to converge, hierarchical softmax / Z-loss",
        f"{convergence_ratio():.3g}{TIMES}",
        _convergence,
    ),
)


def summary(evidence: Evidence, claims: list[Judged]) -> Html:
    """Verdicts and headlines."""
    badges = [
        element("li", badge(verdict, f"{count} {verdict}"))
        for verdict, count in counts(claims).items()
        if count
    ]
    cards = [_card(evidence, headline) for headline in HEADLINES]
    return section(
        "Summary",
        *_caution(evidence),
        paragraph(f"{len(claims)} claims:"),
        element("ul", *badges, css="counts"),
        element("div", *cards, css="headlines"),
        name="summary",
    )


def _caution(evidence: Evidence) -> list[Html]:
    if not (texts := evidence.other_texts()):
        return []
    told = f"Figures 2 to 5 were made on {' and '.join(texts)}; those of the paper are of Penn Treebank."
    return [paragraph(told, css="pending")]


def _card(evidence: Evidence, headline: Headline) -> Html:
    try:
        ours = headline.ours(evidence)
    except NotRunError:
        ours = "not run"
    beside = element("span", f"paper: {headline.paper}", css="beside")
    return element(
        "div", element("b", ours), element("span", headline.what), beside, css="headline"
    )


def badge(verdict: Verdict, text: str) -> Html:
    """A verdict, in its colour."""
    return element("span", text, css=verdict_kind(verdict))
