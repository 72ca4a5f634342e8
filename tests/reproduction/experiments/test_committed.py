"""The records that come with the sources: whoever runs the command again finds them, and trains nothing anew."""

import json
import re
from pathlib import Path

import pytest

from reproduction.experiments.chosen import CORPUS, Chosen
from reproduction.experiments.ledger import Ledger
from reproduction.experiments.models import RATES, Budget, chosen_model
from reproduction.experiments.parameters import A, B
from reproduction.experiments.sources import Sources
from reproduction.experiments.studies import SCORE
from reproduction.report.records import CONSTANT, ScoredModel
from zloss_lab.corpora import Corpus

COMMITTED = Path(__file__).parents[3] / "benchmarks" / "paper"
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
        (found[name].folder / "manifest.json").write_text(json.dumps(manifest))
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
    sources = Sources(studies=tmp_path, records=file.parent, corpus=texts["ptb"].folder)
    found: dict[tuple[object, ...], tuple[Chosen, int | None]] = {}
    for record, result in ledger.entries():
        loss, score = record.get("loss", "z_loss"), record.get("tuned_for", SCORE)
        if result.choice not in found:
            (source,) = sources.find(record["figure"], [loss], [score], lambda _: None)
            chosen = source.best(score)
            if record["figure"] == 3:
                chosen = chosen.changed({A: record["a"], B: record["b"]})
            found[result.choice] = chosen, source.trials(score) if "trials" in record else None
        chosen, trials = found[result.choice]
        assert chosen.experiment.network.head.loss == loss
        assert (
            ledger.find(result.choice, chosen.settings, result.seed, digest=chosen.digest) == record
        )
        assert trials == record.get("trials")


def test_every_record_of_table_2_is_found_by_what_was_asked_for(texts: dict[str, Corpus]) -> None:
    ledger = Ledger(COMMITTED, "table2")
    chosen: dict[tuple[object, ...], Chosen] = {}
    for record, result in ledger.entries():
        assert isinstance(result, ScoredModel)
        if result.model != CONSTANT:
            if result.choice not in chosen:
                chosen[result.choice] = _asked_for(result, texts[result.corpus])
            one = chosen[result.choice]
            assert (
                ledger.find(result.choice, one.settings, result.seed, digest=one.digest) == record
            )


def _asked_for(result: ScoredModel, text: Corpus) -> Chosen:
    """The model with this budget, and over it what its command must have set."""
    epochs = re.match(r"(\d+) epoch", result.budget or "")
    budget = Budget(result.budget_s, int(epochs[1]) if epochs else None)
    usual = chosen_model(result.model, text, budget, {}).settings
    told = {key: value for key, value in result.settings.items() if key != CORPUS}
    changes = {key: value for key, value in told.items() if value != usual.get(key)}
    assert changes.keys() <= WERE_SET, "all else is that of models.toml"
    return chosen_model(result.model, text, budget, changes)
