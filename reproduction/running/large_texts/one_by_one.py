"""Table 2, one training after the other."""

from collections.abc import Sequence

from reproduction.large_text_models import CONSTANT
from reproduction.running.large_texts.learning_rates import forget_rates, known_rate, try_rates
from reproduction.running.large_texts.text import FAULTS, LargeText
from reproduction.running.large_texts.trainings import collect_constant, missing_seeds, train_seed
from zloss_lab.durable import tidied


def collect_one_by_one(text: LargeText, models: Sequence[str]) -> list[str]:
    """Make the missing records of these models; return messages about trainings that failed."""
    text.check(models)
    with tidied(text.runs.folder):
        return [fault for model in models for fault in _collect(text, model)]


def _collect(text: LargeText, model: str) -> list[str]:
    if model == CONSTANT:
        collect_constant(text)
        return []
    try:
        rated = known_rate(text, model) or try_rates(text, model)
    except FAULTS as error:
        return [text.fault(model, str(error))]
    faults = []
    for seed in missing_seeds(text, model, rated):
        try:
            train_seed(text, model, rated, seed)
        except FAULTS as error:
            faults.append(text.fault(f"{model}, seed {seed}", str(error)))
    if not faults:
        forget_rates(text, model)
    return faults
