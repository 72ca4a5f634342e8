"""Claims about speed, judged by the records of `zloss bench`."""

from reproduction.report.evidence import Evidence, NotRunError, bench_command
from reproduction.report.published import epoch_ratio
from reproduction.report.scores import TIMES
from reproduction.report.timings import DEVICES, Device, Growth, Part
from reproduction.report.verdicts import Check, Finding, Verdict, combined, ratio_finding

PLACES: dict[Device, str] = {"cpu": "CPU", "cuda": "GPU"}
_CONSTANT, _MILD = 1.25, 2.0  # factors of growth that count as none, and as little
_FASTER_GROWTH = 1.5


def faster_than(loss: str, part: Part, device: Device) -> Check:
    """By the factor of table 1."""

    def check(evidence: Evidence) -> Finding:
        paper = epoch_ratio(part, loss, device)
        assert paper is not None, "the paper has no such number"
        return ratio_finding(evidence.ratio(part, loss, device), paper)

    return check


def costs_the_same_for_more_classes(evidence: Evidence) -> Finding:
    """On every device that was measured."""
    growths = _growths(evidence, "z_loss")
    verdicts = [_verdict_of_growth(growth.factor) for growth in growths.values()]
    texts = [
        f"{_shown(growths[place])}, {place}" if place in growths else f"{place} not run"
        for place in PLACES.values()
    ]
    return Finding("; ".join(texts), combined(verdicts, of_speed=True))


def hierarchical_softmax_grows(evidence: Evidence) -> Finding:
    """While the Z-loss does not, or less."""
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
        f"H-softmax {_shown(other[place])}, Z-loss {_shown(own[place])}, {place}"
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


def _shown(growth: Growth) -> str:
    return f"{growth.factor:.3g}{TIMES} from {growth.few:,} to {growth.many:,} classes"
