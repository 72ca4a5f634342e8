"""The methods as the records tell them: texts, search, seeds, machines, versions, settings."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from reproduction.budgets import budget_title
from reproduction.large_text_models import model_title
from reproduction.paper_figures import LOSS_TITLES, PENN_TREEBANK
from reproduction.report.evidence import Evidence
from reproduction.report.score_texts import TIMES, score_label
from reproduction.report.table_cells import seeds_text
from reproduction.results.schema import (
    LargeTextResult,
    TrainingCurve,
    TrainingResult,
    TunedResult,
)
from zloss_lab.bench.schema import BenchRecord
from zloss_lab.corpora import CATALOGUE
from zloss_lab.corpora.catalogue import SPLITS
from zloss_lab.documents.document import Block, Heading, Section, Table, bullets, paragraph
from zloss_lab.experiments import preset_network


def methods_section(evidence: Evidence) -> Section:
    """Return the section on methods, machines and versions."""
    return Section(
        "methods",
        "Methods",
        (
            bullets(statements(evidence)),
            Heading("Machines, versions and commits"),
            provenance_table(evidence),
        ),
    )


def settings_section(evidence: Evidence) -> Section:
    """Return the section with the settings of all trainings."""
    table = settings_table(evidence)
    block: Block = table if table.rows else paragraph("Nothing was trained yet.")
    return Section("settings", "Settings", (block,))


def statements(evidence: Evidence) -> list[str]:
    """Return the way from a text to a number, a paragraph for each part of it."""
    return [
        *map(
            _corpus,
            dict.fromkeys([PENN_TREEBANK, *(model.corpus for model in evidence.results.table2)]),
        ),
        "Network: embeddings of the last n words, concatenated; hidden layers of rectified linear units; an output "
        f"layer over all words. {', '.join(map(_shape, ('net1', 'net2')))}.",
        "Training: SGD on mini-batches. Learning rates fall to zero, linearly in 20 stages. The stages divide the "
        "epochs of a training, or the time of a model on a large text.",
        "Convergence: learning rates are lowered by a factor whenever validation has not improved. The training ends "
        "when this brings no improvement several times in a row. The settings below have the factor and the number.",
        "Tests use the weights with the best validation, by the score in question. Models on large texts are tested on "
        "the same examples, a sample where there are many. Their heads compute in float32 unless the settings name "
        f"another precision, and none is compiled.{_shared_device(evidence)}",
        "Scores: the rank of a word is 1 + the number of words that score strictly higher, among all words. The "
        "top-k error is the share of words whose rank is above k.",
        f"Search: {_search(evidence)} Settings are chosen by validation scores alone. Test scores are reported for "
        "the chosen settings and decide nothing.",
        # This is about the published records. In newer trainings, dropout masks depend on the seed too.
        "Seeds: means have 95 % intervals of Student's t over seeds. A seed decides the first weights and the order of "
        "the examples. The networks of figures 2 to 5 are trained side by side, and their dropout masks did not vary "
        "with the seed. Intervals say how much training varies, not how much another test text would change the score.",
        "Spherical softmax is (o² + ε) over its sum, with a tuned ε. The paper's predecessor has it, the figures of "
        "the paper do not.",
        "Steps are timed on batches that differ, and all losses take turns. A loss with a wrong result is not timed. "
        "Every loss runs as fast as we can make it, on a GPU as a CUDA graph where that is possible.",
    ]


def _shape(network: str) -> str:
    """Return embeddings and hidden layers of a network of the paper."""
    config = preset_network(network)
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
    """Return how the times of trainings that shared their device were computed."""
    shared = sum(one.is_alone is False for one in evidence.results.table2)
    if not shared:
        return ""
    trainings = "1 training" if shared == 1 else f"{shared} trainings"
    return (
        f" {trainings} shared the device with others. Tables mark their times by the word about. This is the time of "
        "their epochs at the pace of the same model when it was alone on the same text. A model that was never alone "
        "has the pace of another one with the same network, head and loss."
    )


def _search(evidence: Evidence) -> str:
    results = [*evidence.results.figure2, *evidence.results.figure5]
    if not results:
        return "not run yet."
    return (
        f"{_trials(results)} trials by TPE. The best of them is taken for each score. The chosen settings were then "
        f"trained for {_range([result.epochs for result in results])} epochs with every seed. The sweep of figure 3 "
        "has all settings, except a and b, from the best trial for the top-10 error."
    )


def _trials(results: Iterable[TunedResult]) -> str:
    """Return the number of trials of every loss, because a longer search finds better settings."""
    trials: dict[str, list[int]] = {}
    for result in results:
        trials.setdefault(result.loss, []).append(result.trials)
    return ", ".join(
        f"{name} {_range(trials[loss])}" for loss, name in LOSS_TITLES.items() if loss in trials
    )


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


# ---- machines --------------------------------------------------------------------------------------------------------


def provenance_table(evidence: Evidence) -> Table:
    """Return machines, versions and commits of all records that the report uses."""
    rows = [
        [
            name,
            str(len(results)),
            seeds_text(results),
            _distinct(_devices(results)),
            _distinct(_versions(results)),
            _distinct(_commits(results)),
        ]
        for name, results in experiments(evidence).items()
        if results
    ]
    timings = evidence.timings.used()
    if timings:
        where = [_distinct(find(timings)) for find in (_devices, _versions, _commits)]
        rows.append(["table 1", f"{len(timings)} runs", "", *where])
    return Table(
        ("records", "trainings", "seeds", "device", "versions", "commit"),
        rows,
        words=6,
        role="prose",
    )


def experiments(evidence: Evidence) -> dict[str, Sequence[TrainingResult]]:
    """Return the results of every figure and table, by its title."""
    results = evidence.results
    return {
        "figure 2": results.figure2,
        **{
            f"figure 2, {name.replace('_', ' ')}": variant.figure2
            for name, variant in evidence.variants.items()
        },
        "figure 3": results.figure3,
        "figure 4": results.figure4,
        "figure 5": results.figure5,
        "table 2": results.table2,
    }


Measured = TrainingResult | BenchRecord  # each says where it was measured


def _devices(sources: Iterable[Measured]) -> Iterable[str]:
    return (source.device for source in sources)


def _versions(sources: Iterable[Measured]) -> Iterable[str]:
    shown = ("python", "torch", "zloss")
    return (
        ", ".join(f"{name} {found[name]}" for name in shown if name in found)
        for found in (source.versions for source in sources)
    )


def _commits(sources: Iterable[Measured]) -> Iterable[str]:
    return (source.commit for source in sources)


def _distinct(values: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(values))


# ---- settings --------------------------------------------------------------------------------------------------------


def settings_table(evidence: Evidence) -> Table:
    """Return the settings that were chosen for every loss and score, and for every model."""
    rows = []
    for name, results in experiments(evidence).items():
        chosen = {result.choice: result for result in reversed(results)}
        rows += [
            [name, _choice_text(result), _settings_text(result.settings)]
            for result in reversed(chosen.values())
        ]
    return Table(("records", "what", "settings"), rows, words=3, role="prose")


def _choice_text(result: TrainingResult) -> str:
    """Return a choice as text."""
    texts: dict[type, Callable[[Any], str]] = {
        TunedResult: lambda one: f"{LOSS_TITLES[one.loss]}, tuned for {score_label(one.tuned_for)}",
        TrainingCurve: lambda one: (
            f"a = {one.a:g}, b = {one.b:g}, tuned for {score_label(one.tuned_for)}"
        ),
        LargeTextResult: lambda one: ", ".join(_large_text_parts(one)),
    }
    return texts.get(type(result), lambda one: f"a = {one.a:g}, b = {one.b:g}")(result)


def _large_text_parts(result: LargeTextResult) -> Iterator[str]:
    yield result.corpus
    yield model_title(result.model)
    if result.budget is not None:
        yield budget_title(result.budget)


def _settings_text(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {_value(value)}" for key, value in settings.items())


def _value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
