"""How it was done, as far as the records tell: texts, search, seeds, machines, versions, settings."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from zloss.lab.corpora import CATALOGUE
from zloss.lab.corpora.catalogue import SPLITS
from zloss.lab.paper.evidence import Evidence
from zloss.lab.paper.loss_checks import NAMES
from zloss.lab.paper.records import Result, ScoredModel, TrainingCurve, TunedResult
from zloss.lab.paper.results import seeds_of
from zloss.lab.paper.scores import label
from zloss.lab.paper.tables import Table
from zloss.lab.records import Record


def statements(evidence: Evidence) -> list[str]:
    """The way from text to number."""
    return [
        *map(_corpus, dict.fromkeys(["ptb", *(model.corpus for model in evidence.records.table2)])),
        "Network: embeddings of the last n words, concatenated; hidden layers of rectified linear units; an output "
        "layer over all words. Trained by SGD on mini-batches. Learning rates fall to zero over a training, linearly "
        "in 20 stages: over its epochs, or over the time that a model on a large text is given. Where such a model "
        "trains until it has converged, they are lowered by a factor whenever validation has not improved, until that "
        "brings nothing several times in a row (the settings below say which factor, and how often). Tested are the "
        "weights of the best validation, by the score in question. net1 is [10 \N{MULTIPLICATION SIGN} 512, 2048, "
        "2048, 512], net2 is [10 \N{MULTIPLICATION SIGN} 1024, 4096, 4096, 1024].",
        "Scores: the rank of a word is 1 + the number of words that score strictly higher, among all words. The "
        "top-k error is the share of words whose rank is above k.",
        f"Search: {_search(evidence)} Settings are chosen by validation scores alone; test scores are reported for "
        "the chosen ones and decide nothing.",
        "Seeds: means with 95 % intervals of Student's t over seeds, which change weights, order and dropout. They "
        "say how much training varies, not how much another test text would change the score.",
        "Spherical softmax, which the paper's predecessor has and its figures have not, is (o² + ε) over its sum, ε "
        "tuned.",
        "Steps are timed on batches that differ, with all losses taking turns; a loss whose result is wrong is not "
        "timed. Every loss runs as fast as we can make it, on a GPU as a CUDA graph where it can be one.",
    ]


def _corpus(name: str) -> str:
    entry = CATALOGUE.get(name)
    if entry is None:
        return f"Text {name}."
    words = " / ".join(f"{entry.expected_words[split]:,}" for split in SPLITS if split in entry.expected_words)
    return f"Text: {entry.title}; {words} words ({', '.join(SPLITS)}), {entry.expected_vocabulary:,} classes."


def _search(evidence: Evidence) -> str:
    results = [*evidence.records.figure2, *evidence.records.figure5]
    if not results:
        return "not run yet."
    trials, epochs = ([getattr(result, name) for result in results] for name in ("trials", "epochs"))
    return (
        f"for every loss {_range(trials)} trials by TPE, the best of which is taken for each score; the chosen "
        f"settings were then trained for {_range(epochs)} epochs with every seed. The sweep of figure 3 has all but a "
        "and b from the best trial for the top-10 error."
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
        "figure 2, no dropout": evidence.no_dropout.figure2,
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
        ", ".join(f"{name} {found[name]}" for name in shown if name in found) for found in map(_all_versions, sources)
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
        rows += [[name, _what(result), _setting(result.settings)] for result in reversed(chosen.values())]
    return Table(("records", "what", "settings"), rows, words=3)


def _what(result: Result) -> str:
    """A choice, to read."""
    words: dict[type, Callable[[Any], str]] = {
        TunedResult: lambda one: f"{NAMES[one.loss]}, tuned for {label(one.tuned_for)}",
        TrainingCurve: lambda one: f"a = {one.a:g}, b = {one.b:g}, tuned for {label(one.tuned_for)}",
        ScoredModel: lambda one: ", ".join(filter(None, (one.corpus, one.model, one.budget))),
    }
    return words.get(type(result), lambda one: f"a = {one.a:g}, b = {one.b:g}")(result)


def _setting(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {_value(value)}" for key, value in settings.items())


def _value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
