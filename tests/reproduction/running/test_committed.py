"""The committed records: a command that is run again finds them, and trains nothing."""

import re
from pathlib import Path

import pytest

from reproduction.budgets import Budget
from reproduction.large_text_models import CONSTANT
from reproduction.results.schema import LargeTextResult, SweepPoint, TunedResult
from reproduction.running.chosen import CORPUS, Chosen
from reproduction.running.large_texts.chosen_models import RATES, chosen_model
from reproduction.running.ledger import Ledger
from reproduction.running.parameter_figures import A_KEY, B_KEY
from reproduction.running.sources import SettingsPlaces
from reproduction.running.studies import SCORE
from zloss_lab.corpora import Corpus
from zloss_lab.corpora.manifest import write_manifest

COMMITTED = Path(__file__).parents[3] / "reproduction" / "records"
# Of the words of the texts, which are not here: digests have them.
WORDS_SHA256 = {
    "ptb": "f768086295fe9bd809257978212140d236c03a1f7d4869dca2d54a9cb97338c2",
    "fil8": "412ace58cdbac380c09fa97ca5dbd15d9d6b552984e710c745b36499ddd25ea5",
    "epd48": "538e79743ca27c3b4c451d198a381c93261191e4c33d435526e40347d6fbf580",
}
WITHOUT_SENTENCES = ("fil8",)
WERE_SET = {"training.validate_every", "training.validation_examples", *RATES}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> dict[str, Corpus]:
    """Of each text what a choice asks for: its name, its words and whether it has sentences."""
    small, found = Corpus.open(corpus), {}
    for name, sha256 in WORDS_SHA256.items():
        manifest = small.manifest | {
            "name": name,
            "vocabulary": small.manifest["vocabulary"] | {"sha256": sha256},
        }
        if name in WITHOUT_SENTENCES:
            manifest["boundary"] = None
        found[name] = Corpus(tmp_path_factory.mktemp(name), manifest, small.vocabulary)
        write_manifest(found[name].folder, manifest)
    return found


@pytest.mark.parametrize(
    "file",
    sorted(COMMITTED.rglob("figure?.jsonl")),
    ids=lambda file: f"{file.parent.name}-{file.stem}",
)
def test_every_record_of_a_figure_is_found_by_the_settings_it_gives(
    file: Path, texts: dict[str, Corpus], tmp_path: Path
) -> None:
    ledger = Ledger(file.parent, file.stem)
    sources = SettingsPlaces(studies=tmp_path, records=file.parent, corpus=texts["ptb"].folder)
    found: dict[tuple[object, ...], tuple[Chosen, int | None]] = {}
    for result in ledger.results():
        is_tuned = isinstance(result, TunedResult)
        loss = result.loss if is_tuned else "z_loss"
        score = SCORE if isinstance(result, SweepPoint) else result.tuned_for
        if result.choice not in found:
            (source,) = sources.find(result.figure, [loss], [score], lambda _: None)
            chosen = source.best(score)
            if isinstance(result, SweepPoint):
                chosen = chosen.changed({A_KEY: result.a, B_KEY: result.b})
            found[result.choice] = chosen, source.trials(score) if is_tuned else None
        chosen, trials = found[result.choice]
        assert chosen.experiment.network.head.loss == loss
        known = ledger.find(result.choice, chosen.settings, result.seed, digest=chosen.digest)
        assert known == result
        assert trials == (result.trials if is_tuned else None)


def test_every_record_of_table_2_is_found_by_the_settings_of_its_command(
    texts: dict[str, Corpus],
) -> None:
    ledger = Ledger(COMMITTED, "table2")
    chosen: dict[tuple[object, ...], Chosen] = {}
    for result in ledger.results():
        assert isinstance(result, LargeTextResult)
        if result.model != CONSTANT:
            if result.choice not in chosen:
                chosen[result.choice] = _asked_for(result, texts[result.corpus])
            one = chosen[result.choice]
            known = ledger.find(result.choice, one.settings, result.seed, digest=one.digest)
            assert known == result


def _asked_for(result: LargeTextResult, text: Corpus) -> Chosen:
    """The model with this budget, and over it what its command must have set."""
    epochs = re.match(r"(\d+)_epoch", result.budget or "")
    budget = Budget(result.budget_s, int(epochs[1]) if epochs else None)
    usual = chosen_model(result.model, text, budget, {}).settings
    recorded = {key: value for key, value in result.settings.items() if key != CORPUS}
    changes = {key: value for key, value in recorded.items() if value != usual.get(key)}
    assert changes.keys() <= WERE_SET, "all other settings are those of large_text_models.toml"
    return chosen_model(result.model, text, budget, changes)
