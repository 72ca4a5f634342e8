"""How it was done, as far as the records tell: texts, search, seeds, machines, versions, settings."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from reproduction.report.evidence import Evidence
from reproduction.report.loss_checks import NAMES
from reproduction.report.records import (
    PENN_TREEBANK,
    Result,
    ScoredModel,
    TrainingCurve,
    TunedResult,
)
from reproduction.report.results import seeds_of
from reproduction.report.scores import TIMES, label
from reproduction.report.tables import Table
from zloss_lab.corpora import CATALOGUE
from zloss_lab.corpora.catalogue import SPLITS
from zloss_lab.networks import PRESETS
from zloss_lab.records import Record


def statements(evidence: Evidence) -> list[str]:
    """The way from text to number."""
    return [
        *map(
            _corpus,
            dict.fromkeys([PENN_TREEBANK, *(model.corpus for model in evidence.records.table2)]),
        ),
        "Network: embeddings of the last n words, concatenated; hidden layers of rectified linear units; an output "
        "layer over all words. Trained by SGD on mini-batches. Learning rates fall to zero over a training, linearly "
        "in 20 stages: over its epochs, or over the time that a model on a large text is given. Where such a model "
        "trains until it has converged, they are lowered by a factor whenever validation has not improved, until that "
        "brings nothing several times in a row (the settings below say which factor, and how often). Tested are the "
        f"weights of the best validation, by the score in question. {', '.join(map(_shape, ('net1', 'net2')))}.",
        "Models on large texts are tested on the same examples, a sample where there are many. Their heads compute in "
        f"float32 unless the settings name another precision, and none is compiled.{_shared_device(evidence)}",
        "Scores: the rank of a word is 1 + the number of words that score strictly higher, among all words. The "
        "top-k error is the share of words whose rank is above k.",
        f"Search: {_search(evidence)} Settings are chosen by validation scores alone; test scores are reported for "
        "the chosen ones and decide nothing.",
        # Of the records that are published: the masks of newer ones follow the seed too.
        "Seeds: means with 95 % intervals of Student's t over seeds, which change weights and order. The dropout masks "
        "of figures 2 to 5, whose networks are trained side by side, did not vary with them. Intervals say how much "
        "training varies, not how much another test text would change the score.",
        "Spherical softmax, which the paper's predecessor has and its figures have not, is (o² + ε) over its sum, ε "
        "tuned.",
        "Steps are timed on batches that differ, with all losses taking turns; a loss whose result is wrong is not "
        "timed. Every loss runs as fast as we can make it, on a GPU as a CUDA graph where it can be one.",
    ]


def _shape(network: str) -> str:
    """Embeddings and hidden layers of a network of the paper."""
    config = PRESETS[network]
    return f"{network} is [{config.context} {TIMES} {config.embedding}, {', '.join(map(str, config.hidden))}]"


def _corpus(name: str) -> str:
    entry = CATALOGUE.get(name)
    if entry is None:
        return f"Text {name}."
    words = " / ".join(
        f"{entry.expected_words[split]:,}" for split in SPLITS if split in entry.expected_words
    )
    return f"Text: {entry.title}; {words} words ({', '.join(SPLITS)}), {entry.expected_vocabulary:,} classes."


def _shared_device(evidence: Evidence) -> str:
    """How trainings that were not alone have come to their times."""
    shared = sum(not model.alone for model in evidence.records.table2)
    if not shared:
        return ""
    trainings = "1 training" if shared == 1 else f"{shared} trainings"
    return (
        f" {trainings} shared the device with others. Their times, marked by the word about, are "
        "those of their epochs at the pace of the same model, or of one with the same network, head and loss, on the "
        "same text alone."
    )


def _search(evidence: Evidence) -> str:
    results = [*evidence.records.figure2, *evidence.records.figure5]
    if not results:
        return "not run yet."
    return (
        f"{_trials(results)} trials by TPE, the best of which is taken for each score. The chosen settings were then "
        f"trained for {_range([result.epochs for result in results])} epochs with every seed. The sweep of figure 3 "
        "has all but a and b from the best trial for the top-10 error."
    )


def _trials(results: Iterable[TunedResult]) -> str:
    """Of every loss: who searches more finds more."""
    trials: dict[str, list[int]] = {}
    for result in results:
        trials.setdefault(result.loss, []).append(result.trials)
    return ", ".join(
        f"{name} {_range(trials[loss])}" for loss, name in NAMES.items() if loss in trials
    )


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


# ---- where -----------------------------------------------------------------------------------------------------------


def provenance_table(evidence: Evidence) -> Table:
    """Machines, versions and commits of everything that counts."""
    rows = [
        [
            name,
            str(len(results)),
            seeds_of(results),
            _told(_devices(results)),
            _told(_versions(results)),
            _told(_commits(results)),
        ]
        for name, results in experiments(evidence).items()
        if results
    ]
    timings = evidence.timings.used()
    if timings:
        where = [_told(find(timings)) for find in (_devices, _versions, _commits)]
        rows.append(["table 1", f"{len(timings)} runs", "", *where])
    return Table(("records", "trainings", "seeds", "device", "versions", "commit"), rows, words=6)


def experiments(evidence: Evidence) -> dict[str, Sequence[Result]]:
    """The results of every figure and table that was trained for."""
    records = evidence.records
    return {
        "figure 2": records.figure2,
        **{
            f"figure 2, {name.replace('_', ' ')}": variant.figure2
            for name, variant in evidence.variants.items()
        },
        "figure 3": records.figure3,
        "figure 4": records.figure4,
        "figure 5": records.figure5,
        "table 2": records.table2,
    }


Source = Iterable[Result | Record]


def _get(source: Result | Record, name: str) -> Any:
    return source[name] if isinstance(source, dict) else getattr(source, name)


def _devices(sources: Source) -> Iterable[str]:
    return (_get(source, "device") for source in sources)


def _versions(sources: Source) -> Iterable[str]:
    shown = ("python", "torch", "zloss")
    return (
        ", ".join(f"{name} {found[name]}" for name in shown if name in found)
        for found in map(_all_versions, sources)
    )


def _all_versions(source: Result | Record) -> Mapping[str, str]:
    versions: Mapping[str, str] = _get(source, "versions")
    return versions


def _commits(sources: Source) -> Iterable[str]:
    return (_get(source, "commit") for source in sources)


def _told(values: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(values))


# ---- settings --------------------------------------------------------------------------------------------------------


def settings_table(evidence: Evidence) -> Table:
    """What was chosen, for every loss and score, and for every model."""
    rows = []
    for name, results in experiments(evidence).items():
        chosen = {result.choice: result for result in reversed(results)}
        rows += [
            [name, _what(result), _setting(result.settings)] for result in reversed(chosen.values())
        ]
    return Table(("records", "what", "settings"), rows, words=3)


def _what(result: Result) -> str:
    """A choice, to read."""
    words: dict[type, Callable[[Any], str]] = {
        TunedResult: lambda one: f"{NAMES[one.loss]}, tuned for {label(one.tuned_for)}",
        TrainingCurve: lambda one: (
            f"a = {one.a:g}, b = {one.b:g}, tuned for {label(one.tuned_for)}"
        ),
        ScoredModel: lambda one: ", ".join(filter(None, (one.corpus, one.model, one.budget))),
    }
    return words.get(type(result), lambda one: f"a = {one.a:g}, b = {one.b:g}")(result)


def _setting(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {_value(value)}" for key, value in settings.items())


def _value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
