"""Claims about speed, judged by the records of `zloss bench`."""

from reproduction.report.evidence import Evidence, NotRunError
from reproduction.report.published import epoch_ratio
from reproduction.report.score_texts import TIMES
from reproduction.report.timings import Growth
from reproduction.report.verdicts import Check, Claim, Finding, Verdict, combined, ratio_finding
from reproduction.timed_parts import DEVICES, PLACES, Device, Part, bench_command

_CONSTANT, _MILD = 1.25, 2.0  # factors of growth that count as none, and as little
_FASTER_GROWTH = 1.5


def faster_than(loss: str, part: Part, device: Device) -> Check:
    """Return a check that compares our quotient of times with the quotient of table 1."""

    def check(evidence: Evidence) -> Finding:
        paper = epoch_ratio(part, loss, device)
        assert paper is not None, "the paper has no such number"
        return ratio_finding(evidence.ratio(part, loss, device), paper)

    return check


def costs_the_same_for_more_classes(evidence: Evidence) -> Finding:
    """Judge the growth of a step with the number of classes, on every device that was measured."""
    growths = _growths(evidence, "z_loss")
    verdicts = [_verdict_of_growth(growth.factor) for growth in growths.values()]
    texts = [
        f"{_growth_text(growths[place])}, {place}" if place in growths else f"{place} not run"
        for place in PLACES.values()
    ]
    return Finding("; ".join(texts), combined(verdicts, of_speed=True))


def hierarchical_softmax_grows(evidence: Evidence) -> Finding:
    """Judge whether hierarchical softmax grows with the number of classes more than the Z-loss."""
    own, other = _growths(evidence, "z_loss"), _growths(evidence, "hierarchical")
    places = [place for place in PLACES.values() if place in own and place in other]
    if not places:
        raise NotRunError(bench_command("output", "cuda"))
    verdicts = [
        Verdict.REPRODUCED
        if other[place].factor >= _FASTER_GROWTH * own[place].factor
        else Verdict.NOT_REPRODUCED
        for place in places
    ]
    texts = [
        f"H-softmax {_growth_text(other[place])}, Z-loss {_growth_text(own[place])}, {place}"
        for place in places
    ]
    return Finding("; ".join(texts), combined(verdicts, of_speed=True))


def _growths(evidence: Evidence, loss: str) -> dict[str, Growth]:
    found = {PLACES[device]: evidence.timings.growth(loss, device) for device in DEVICES}
    growths = {place: growth for place, growth in found.items() if growth is not None}
    if not growths:
        raise NotRunError(bench_command("scaling" if loss == "z_loss" else "output", "cuda"))
    return growths


def _verdict_of_growth(factor: float) -> Verdict:
    if factor <= _CONSTANT:
        return Verdict.REPRODUCED
    return Verdict.PARTLY if factor <= _MILD else Verdict.NOT_REPRODUCED


def _growth_text(growth: Growth) -> str:
    return f"{growth.factor:.3g}{TIMES} from {growth.few:,} to {growth.many:,} classes"


def _speed_up(loss: str, part: Part, device: Device, where: str, says: str) -> Claim:
    """Return a claim about a quotient of table 1."""
    return Claim(
        about="table 1",
        where=where,
        says=says,
        paper=f"{epoch_ratio(part, loss, device):.3g}{TIMES}",
        check=faster_than(loss, part, device),
    )


SPEED_CLAIMS = (
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
        check=costs_the_same_for_more_classes,
    ),
    Claim(
        about="table 1",
        where="conclusion",
        says="Hierarchical softmax grows with the number of classes, so the lead of the Z-loss grows with it.",
        paper="√D in practice",
        check=hierarchical_softmax_grows,
    ),
)
