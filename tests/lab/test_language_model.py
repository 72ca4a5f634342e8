"""The benchmark of language models, on a small text: what it records, and that it can be interrupted."""

from pathlib import Path

import pytest
import torch

from benchmarks import language_model
from benchmarks.language_model import Plan, Timed, run
from benchmarks.training_records import LanguageModelRecord, Part
from tests.lab.pets import pets_text
from zloss_lab.corpora import prepare
from zloss_lab.records import read_records_as

SMALL = (
    "network.embedding=8",
    "network.hidden=[16]",
    "network.head.b=2.0",
    "training.lr=0.1",
    "training.output_lr=0.05",
)
PLAN = Plan(
    turns=3,
    burst=10,
    epochs=2,
    steps=20,
    validations=2,
    settings=(*SMALL, "training.batch_size=20"),
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("text")
    (place / "pets.txt").write_text(pets_text(400))
    return prepare(place / "pets.txt", place / "prepared").folder


def test_every_part_has_its_records(corpus: Path, tmp_path: Path, device: torch.device) -> None:
    output = tmp_path / "records.jsonl"
    parts: tuple[Part, ...] = ("fil8", "speed", "ptb", "speed")  # the last call replaces records
    for part in parts:
        run(part, corpus, plan=PLAN, device=device.type, runs=tmp_path / "runs", output=output)
    records = read_records_as(LanguageModelRecord, output)
    told = [(record.part, record.what, record.head) for record in records]
    assert told == [
        ("fil8", "learning", "factored"),
        ("fil8", "speed", "factored"),
        ("fil8", "speed", "dense"),
        ("ptb", "learning", "factored"),
        ("speed", "speed", "factored"),
        ("speed", "speed", "dense"),
    ]
    assert str(corpus) not in output.read_text(), "where it lies is nobody's business"
    assert all(record.corpus == "pets" and record.seed == 0 and record.commit for record in records)
    assert [
        record.speed.ratio_to_factored
        for record in records
        if record.head == "factored" and record.speed is not None
    ] == [1, 1]
    learnt = records[3].learning
    assert learnt is not None
    assert learnt.test.by_title.keys() == {"this run", "most frequent words"}
    assert learnt.test.run.top_1_error < learnt.test.constant.top_1_error
    assert learnt.validation[-1][0] == learnt.steps


def test_what_was_interrupted_goes_on(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    output = tmp_path / "records.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr(language_model, "speed", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run("fil8", corpus, plan=PLAN, device="cpu", runs=tmp_path, output=output)
    assert not output.exists()
    metrics = (tmp_path / "fil8-cpu" / "metrics.jsonl").read_text()
    run("fil8", corpus, plan=PLAN, device="cpu", runs=tmp_path, output=output)
    assert (tmp_path / "fil8-cpu" / "metrics.jsonl").read_text() == metrics, (
        "nothing is trained twice"
    )
    assert len(read_records_as(LanguageModelRecord, output)) == 3


def test_what_does_not_learn_is_not_measured(corpus: Path) -> None:
    timed = Timed(PLAN.experiment("speed", corpus, "cpu"))
    timed.losses = [2.0, 2.0, 2.1, 2.2]
    with pytest.raises(
        SystemExit, match=r"factored: the loss went from 2\.000 to 2\.150; not measuring"
    ):
        timed.require_learning()
