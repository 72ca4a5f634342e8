"""Table 1: the time of an epoch, ours beside the paper's."""

from reproduction.report.evidence import Evidence
from reproduction.report.published import EPOCH_S, HARDWARE, epoch_ratio
from reproduction.report.score_texts import TIMES
from reproduction.report.table_cells import NOT_PRINTED, NOT_RUN
from reproduction.report.timings import duration
from reproduction.timed_parts import DEVICES, PARTS, PLACES, Device, Part, bench_command
from zloss_lab.bench.entries import head_title
from zloss_lab.bench.model_suite import BATCHES, EPOCH_NGRAMS
from zloss_lab.documents.document import Row, Table

_TITLES = {"softmax": "softmax", "hierarchical": "H-softmax", "z_loss": "Z-loss"}
_PART_TITLES: dict[Part, str] = {"model": "net1", "output": "output"}
_SLOTS: tuple[tuple[Device, Part], ...] = tuple(
    (device, part) for device in DEVICES for part in PARTS
)


def epochs_table(evidence: Evidence) -> Table:
    """Return the times of an epoch of One Billion Word, and their ratios to the time with the Z-loss."""
    columns = [
        f"{PLACES[device]}, {_PART_TITLES[part]}: {source}"
        for device, part in _SLOTS
        for source in ("paper", "ours")
    ]
    rows: list[Row] = [
        [title, *(cell for slot in _SLOTS for cell in _epochs(evidence, loss, *slot))]
        for loss, title in _TITLES.items()
    ]
    rows += [
        [f"{title} / Z-loss", *(cell for slot in _SLOTS for cell in _ratios(evidence, loss, *slot))]
        for loss, title in _TITLES.items()
        if loss != "z_loss"
    ]
    return Table(("an epoch", *columns), rows)


def _epochs(evidence: Evidence, loss: str, device: Device, part: Part) -> Row:
    paper, ours = EPOCH_S.get((part, loss, device)), evidence.timings.epoch_s(part, loss, device)
    return (
        NOT_PRINTED if paper is None else duration(paper, digits=4),
        NOT_RUN if ours is None else duration(ours),
    )


def _ratios(evidence: Evidence, loss: str, device: Device, part: Part) -> Row:
    paper, ours = epoch_ratio(part, loss, device), evidence.timings.ratio(part, loss, device)
    return (
        NOT_PRINTED if paper is None else f"{paper:.3g}{TIMES}",
        NOT_RUN if ours is None else f"{ours:.3g}{TIMES}",
    )


def epochs_notes(evidence: Evidence) -> list[str]:
    """Return the devices, the kind of softmax on each, and the commands for missing timings."""
    notes = [
        f"All of net1, or its output layer alone; batches of {BATCHES['net1']}, extrapolated to the paper's "
        f"{EPOCH_NGRAMS // 10**6} million n-grams.",
        f"Paper: {HARDWARE['cpu']} and {HARDWARE['cuda']}.",
    ]
    for device in DEVICES:
        steps = [evidence.timings.step(part, "softmax", device) for part in PARTS]
        ways = dict.fromkeys(head_title(step.entry) for step in steps if step)
        if ways:
            machines = dict.fromkeys(step.device for step in steps if step)
            notes.append(
                f"{PLACES[device]}: {'; '.join(machines)}; softmax as it is fastest there: {'; '.join(ways)}."
            )
    missing = [
        bench_command(part, device)
        for device, part in _SLOTS
        if not evidence.timings.step(part, "z_loss", device)
    ]
    return notes + [f"not run yet: {command}." for command in missing]
