"""The way from a model of table 2 and a seed to a record."""

from pathlib import Path
from typing import Any

from reproduction.large_text_models import CONSTANT
from reproduction.results.schema import LargeTextResult, SplitScores
from reproduction.running.chosen import digest_of
from reproduction.running.large_texts.chosen_models import preset_of
from reproduction.running.large_texts.learning_rates import RatedModel
from reproduction.running.large_texts.text import LargeText
from zloss_lab.configuration import to_table
from zloss_lab.evaluation import constant_classifier
from zloss_lab.inspection.trained_model import TrainedModel
from zloss_lab.records import provenance
from zloss_lab.runs import Run
from zloss_lab.training import Experiment, batches_of, device_of


def missing_seeds(text: LargeText, model: str, rated: RatedModel) -> list[int]:
    """Return the seeds without a record. Records with other test examples are reported, and count as missing."""
    results = {seed: text.find(model, rated.chosen, seed) for seed in text.collector.seeds}
    return [seed for seed, result in results.items() if not text.is_up_to_date(result, tells=True)]


def train_seed(text: LargeText, model: str, rated: RatedModel, seed: int) -> None:
    """Train and test a model and write its record, unless another process has written it in the meantime."""
    if text.is_up_to_date(text.find(model, rated.chosen, seed)):
        return
    text.tell(model, f"seed {seed}, {text.budget.description}")
    experiment = rated.chosen.seeded(seed)
    origin = provenance(device_of(experiment.device))  # before: the checkout may change meanwhile
    place = _place(text, model, experiment)
    text.runs.note_sharing(place)
    run = text.runs.train(experiment, place, text.collector.watch)
    shared = {
        "seed": seed,
        "settings": dict(rated.chosen.settings),
        "digest": rated.chosen.digest,
        "rates_tried": tuple(rated.tried),
        "is_alone": text.runs.was_always_alone(place),
        **origin,
    }
    text.add(_result(text, model, run, shared))
    text.runs.remove(place)


def collect_constant(text: LargeText) -> None:
    """Make the record of the constant classifier, which is tested on the same examples as the others."""
    experiment = text.chosen(CONSTANT).experiment
    settings = {
        "network.context": experiment.network.context,
        "training.mode": experiment.training.mode,
    }
    known = text.ledger.find((text.corpus.name, CONSTANT, None), settings, 0)
    if text.is_up_to_date(known, tells=True):
        return
    text.tell(CONSTANT, "words by their frequency")
    result = LargeTextResult(
        seed=0,
        settings=settings,
        valid=_constant_scores(text, "valid", experiment),
        test=_constant_scores(text, "test", experiment),
        **_described(text, CONSTANT),
        **provenance(device_of(experiment.device)),
    )
    text.ledger.add([result])


def _result(text: LargeText, model: str, run: Run, shared: dict[str, Any]) -> LargeTextResult:
    """Test the network of a run, and return its result."""
    trained = TrainedModel.load(run.folder)
    valid, test = (
        SplitScores.of(trained.evaluate(split, limit=text.sample)) for split in ("valid", "test")
    )
    head = trained.experiment.network.head
    return LargeTextResult(
        head=head.head,
        loss=head.loss,
        network=preset_of(model),
        budget=text.budget.key,
        budget_s=text.budget.seconds,
        train_s=run.state().seconds,
        epochs=run.metrics()[-1]["epoch"],
        valid=valid,
        test=test,
        **_described(text, model),
        **shared,
    )


def _constant_scores(text: LargeText, split: str, experiment: Experiment) -> SplitScores:
    batches = batches_of(
        text.corpus, split, experiment, device_of(experiment.device), shuffle=False
    )
    counts = text.corpus.vocabulary.counts
    return SplitScores.of(constant_classifier(counts, batches, limit=text.sample))


def _described(text: LargeText, model: str) -> dict[str, Any]:
    corpus = text.corpus
    return {"table": 2, "corpus": corpus.name, "classes": len(corpus.vocabulary), "model": model}


def _place(text: LargeText, model: str, experiment: Experiment) -> Path:
    """Return the folder of the run of exactly this experiment."""
    digest = digest_of(to_table(experiment))
    return text.runs.place(text.corpus.name, model, text.budget.key, digest)
