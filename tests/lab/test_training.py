"""Training runs: they learn, they stop, and whatever interrupts them they continue to the identical result."""

import dataclasses
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import zloss
from tests.lab.pets import pets_corpus
from zloss.heads import HeadConfig
from zloss_lab import stopwatch
from zloss_lab.configuration import to_table
from zloss_lab.corpora import Corpus, prepare
from zloss_lab.evaluation import Evaluation, evaluate
from zloss_lab.inspection.plotting import plot_runs
from zloss_lab.inspection.run_table import run_row
from zloss_lab.inspection.trained_model import TrainedModel
from zloss_lab.networks import NetworkConfig
from zloss_lab.runs import Run, RunCheckpoint, RunError
from zloss_lab.training import (
    DivergedError,
    Experiment,
    Schedule,
    Trainer,
    TrainingConfig,
    TrainingProgress,
    fit,
    resumed,
    trainer,
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pets_corpus(tmp_path_factory.mktemp("corpus"))


def experiment(
    corpus: Path, *, head: HeadConfig | None = None, dropout: float = 0.0, **training: Any
) -> Experiment:
    head = head or HeadConfig(options={"a": 0.5, "b": 2.0})
    defaults: dict[str, Any] = {
        "batch_size": 20,
        "steps": 60,
        "validate_every": 20,
        "checkpoint_every": 20,
        "log_every": 10,
        "lr": 0.1,
        "output_lr": 0.05,
        "score": "top_1_error",
        "stop_after": 100,
        "validation_examples": 200,
    }
    return Experiment(
        corpus=str(corpus),
        network=NetworkConfig(context=3, embedding=8, hidden=(16,), dropout=dropout, head=head),
        training=TrainingConfig(**defaults | training),
        device="cpu",
    )


def final_tensors(run: Run) -> dict[str, torch.Tensor]:
    return run.load().tensors


def assert_same_end(run: Run, other: Run) -> None:
    ours, theirs = final_tensors(run), final_tensors(other)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert run.metrics() == other.metrics()
    assert run.load().state | {"seconds": 0} == other.load().state | {
        "seconds": 0
    }  # which no two runs agree in


def test_a_run_learns_and_leaves_a_record(corpus: Path, tmp_path: Path) -> None:
    seen: list[TrainingProgress] = []
    run = fit(experiment(corpus, steps=200), tmp_path / "run", watch=seen.append)
    validations = [record for record in run.metrics() if record["kind"] == "validation"]
    assert (
        validations[-1]["top_1_error"] < 0.5 < 0.9
    )  # of 13 words, most of which follow from the ones before
    assert run.best_step is not None
    assert json.loads((run.folder / "config.json").read_text()) == to_table(
        experiment(corpus, steps=200)
    )
    assert seen[0].condition is not None
    assert {progress.step for progress in seen if progress.validation is None} == set(
        range(10, 201, 10)
    )


CASES: dict[str, dict[str, Any]] = {
    "factored": {},
    "dropout": {"dropout": 0.3},
    "adam": {"optimizer": "adam", "lr": 0.003},
    "clipped": {"clip": 0.5},
    "sampled": {"head": HeadConfig(head="sampled", options={"num_samples": 4})},
    "hierarchical": {"head": HeadConfig(head="hierarchical"), "output_lr": 0.3},
    "linear": {
        "schedule": "linear",
        "steps": 70,
    },  # whose stages begin at other steps than checkpoints
    "decayed": {"weight_decay": 0.01, "output_weight_decay": 0.02},
}


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_ends_the_same(case: str, corpus: Path, tmp_path: Path) -> None:
    """Stopped after 33 steps, at no checkpoint, and resumed: every tensor and every metric to the last bit."""
    config = experiment(corpus, **CASES[case])
    whole = fit(config, tmp_path / "whole")

    def stop(progress: TrainingProgress) -> None:
        if progress.step == 30:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        fit(config, tmp_path / "broken", watch=stop)
    assert Run.open(tmp_path / "broken").steps()[-1] == 20
    assert_same_end(fit(resumed(tmp_path / "broken"), tmp_path / "broken", resume=True), whole)


def test_an_interrupted_run_saves_first(corpus: Path, tmp_path: Path) -> None:
    def interrupt(progress: TrainingProgress) -> None:
        if progress.step == 30:
            signal.raise_signal(signal.SIGINT)

    config = experiment(corpus)
    with pytest.raises(KeyboardInterrupt):
        fit(config, tmp_path / "run", watch=interrupt)
    assert Run.open(tmp_path / "run").steps()[-1] == 30
    assert_same_end(fit(config, tmp_path / "run", resume=True), fit(config, tmp_path / "whole"))


KILLED = """
import sys
from pathlib import Path
from zloss_lab.training import fit, resumed
folder = Path(sys.argv[1])
print("started", flush=True)
fit(resumed(folder), folder, resume=True)
"""


def test_killed_at_a_random_moment(corpus: Path, tmp_path: Path) -> None:
    """kill -9, again and again, while it trains and writes checkpoints every other step."""
    config = experiment(corpus, steps=120, checkpoint_every=2, validate_every=50)
    whole = fit(config, tmp_path / "whole")
    run = Run(tmp_path / "run").create(to_table(config))
    chance = random.Random(time.time_ns())
    for _ in range(3):
        command = [sys.executable, "-c", KILLED, str(run.folder)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, env=os.environ | {"OMP_NUM_THREADS": "1"}
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(chance.uniform(0.1, 1.0))
            process.send_signal(signal.SIGKILL)
    assert_same_end(fit(config, run.folder, resume=True), whole)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_while_the_best_is_saved(
    moment: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark of the best is in its checkpoint: it is there with it, or not at all, and is never thrown away."""
    config = experiment(corpus, steps=100, validate_every=10, keep=1)
    whole = fit(config, tmp_path / "whole")
    best = whole.best_step
    assert best is not None
    assert 10 < best < 100, "not a case"
    write = Run.save

    def killed(run: Run, checkpoint: RunCheckpoint, *, keep: int) -> None:
        if checkpoint.step != best:
            return write(run, checkpoint, keep=keep)
        if moment == "after":
            with monkeypatch.context() as patch:
                patch.setattr(
                    shutil, "rmtree", lambda *_, **__: None
                )  # nothing old is removed either
                write(run, checkpoint, keep=keep)
        raise RuntimeError("killed")

    monkeypatch.setattr(Run, "save", killed)
    with pytest.raises(RuntimeError, match="killed"):
        fit(config, tmp_path / "run")
    monkeypatch.undo()
    broken = Run.open(tmp_path / "run")
    known = broken.best_step
    assert known == best if moment == "after" else known is not None and known < best
    assert known in broken.steps()
    run = fit(config, tmp_path / "run", resume=True)
    assert_same_end(run, whole)
    assert (run.best_step, run.steps()) == (best, whole.steps())


def test_killed_while_an_old_checkpoint_is_removed(corpus: Path, tmp_path: Path) -> None:
    """Half of one is no checkpoint, and goes even where the run had nothing else to do."""
    config = experiment(corpus, steps=4)
    run = fit(config, tmp_path / "run")
    half = run.folder / "checkpoints" / "000000002"
    half.mkdir()
    (half / "state.json").write_text("{}")
    edit(run, training__keep=1)
    assert fit(resumed(run.folder), run.folder, resume=True).steps() == [4]


def test_two_that_begin_at_once_in_one_folder(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The config that is there is that of the one which trains."""
    create, first, second = Run.create, experiment(corpus, steps=4), experiment(corpus, steps=8)

    def beaten(run: Run, config: Any) -> Run:
        monkeypatch.undo()
        with pytest.raises(RunError, match="another process is training in"):
            fit(second, run.folder)
        return create(run, config)

    monkeypatch.setattr(Run, "create", beaten)
    run = fit(first, tmp_path / "run")
    assert (run.steps(), run.config) == ([4], to_table(first))


STATES: dict[str, dict[str, Any]] = {
    "schedule": {"schedule": {"best": 0.5, "warm_up": 3}},
    "optimizers": {"optimizers": []},
    "config": {"config": {"corpus": "pets", "wings": 2}},
}


@pytest.mark.parametrize("case", STATES)
def test_a_checkpoint_that_is_damaged_or_of_a_later_version(
    case: str, corpus: Path, tmp_path: Path
) -> None:
    run = fit(experiment(corpus, steps=4, checkpoint_every=2), tmp_path / "run")
    path = run.folder / "checkpoints" / "000000004" / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | STATES[case]))
    with pytest.raises(
        RunError, match=r"000000004 cannot be used: .* remove its folder to go on from step 2$"
    ):
        fit(resumed(run.folder), run.folder, resume=True)
    shutil.rmtree(path.parent)
    assert fit(resumed(run.folder), run.folder, resume=True).steps() == [2, 4]


def test_a_run_goes_on_that_knows_nothing_of_later_keys(corpus: Path, tmp_path: Path) -> None:
    whole = fit(experiment(corpus, steps=60), tmp_path / "whole")
    run = fit(experiment(corpus, steps=40), tmp_path / "run")
    table = to_table(experiment(corpus, steps=60))
    for name in ("weight_decay", "output_weight_decay", "schedule"):
        del table["training"][name]
    for name in ("embedding_scale", "output_scale"):
        del table["network"][name]
    (run.folder / "config.json").write_text(json.dumps(table))
    assert_same_end(fit(experiment(corpus, steps=60), run.folder, resume=True), whole)


def test_rates_fall_when_the_score_stops_improving() -> None:
    config = TrainingConfig(patience=1, lr_factor=0.5, stop_after=2)
    schedule = Schedule()
    scores = (3.0, 2.0, 2.5, 2.0, 2.5, 1.0, 1.0, 1.0)
    assert [schedule.update(score, step, config) for step, score in enumerate(scores)] == [
        True, True, False, False, False, True, False, False,
    ]  # fmt: skip
    assert (schedule.factor, schedule.lowered, schedule.best, schedule.best_step) == (
        0.25,
        1,
        1.0,
        5,
    )


def test_rates_fall_linearly_to_the_end(corpus: Path, tmp_path: Path) -> None:
    """In 20 stages, whatever the scores are: such small rates teach nothing, and would end a run by plateau."""
    options: dict[str, Any] = {
        "schedule": "linear",
        "lr": 1e-9,
        "output_lr": 1e-9,
        "stop_after": 1,
        "log_every": 1,
    }
    run = fit(experiment(corpus, steps=60, validate_every=5, **options), tmp_path / "run")
    rates = {
        record["step"]: record["lr"] / 1e-9
        for record in run.metrics()
        if record["kind"] == "training"
    }
    assert rates == pytest.approx({step + 1: 1 - (step // 3) / 20 for step in range(60)})
    groups = [
        group for optimizer in run.load().state["optimizers"] for group in optimizer["groups"]
    ]
    assert [group["lr"] for group in groups] == pytest.approx([0.05 * 1e-9] * 3)


def test_the_scores_end_a_run_without_epochs(corpus: Path, tmp_path: Path) -> None:
    """Nobody can tell when: such small rates teach nothing, so that here it is after two validations."""
    seen: list[TrainingProgress] = []
    options: dict[str, Any] = {
        "epochs": None,
        "steps": None,
        "lr": 1e-12,
        "output_lr": 1e-12,
        "stop_after": 1,
    }
    run = fit(
        experiment(corpus, validate_every=5, log_every=1, **options),
        tmp_path / "run",
        watch=seen.append,
    )
    assert run.metrics()[-1]["step"] == 10
    assert {progress.steps for progress in seen} == {math.inf}


@pytest.mark.parametrize("name", ["steps", "validate_every", "stop_after", "patience", "clip"])
def test_nonsense_is_refused_before_anything_is_made(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be .*, got -1"):
        TrainingConfig(**{name: -1})  # type: ignore[arg-type]


def test_a_second_process_does_not_train_in_the_same_folder(corpus: Path, tmp_path: Path) -> None:
    run = fit(experiment(corpus, steps=20), tmp_path / "run")
    with run.alone(), pytest.raises(RunError, match="another process is training in"):
        fit(resumed(run.folder), run.folder, resume=True)


def test_the_linear_schedule_needs_an_end() -> None:
    with pytest.raises(ValueError, match="give epochs, steps or seconds"):
        TrainingConfig(schedule="linear", epochs=None)
    assert TrainingConfig(schedule="linear", epochs=None, steps=7).last_step(100) == 7


# ---- a given time ----------------------------------------------------------------------------------------------------


@pytest.fixture
def seconds_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second between any two looks at the clock: what is timed takes one a look, what is not takes none."""
    clock = iter(range(10**9))
    monkeypatch.setattr(stopwatch, "time", SimpleNamespace(perf_counter=lambda: float(next(clock))))


@pytest.mark.usefixtures("seconds_pass")
def test_a_run_ends_when_its_time_is_up(corpus: Path, tmp_path: Path) -> None:
    """A look a step, and another where something is logged; the first five steps are not timed."""
    seen: list[TrainingProgress] = []
    config = experiment(
        corpus, steps=10**6, seconds=40.0, validate_every=10**6, checkpoint_every=10**6
    )
    run = fit(config, tmp_path / "run", watch=seen.append)
    last, state = run.metrics()[-1], run.load().state
    assert (last["kind"], last["step"], run.steps(), run.best_step) == ("validation", 41, [41], 41)
    assert 40 <= state["seconds"] <= 42
    assert seen[-1].step == seen[-1].steps == 41
    expected = [progress.steps for progress in seen if progress.validation is None]
    assert expected[-2] == pytest.approx(41, rel=0.2), "as far as can be told"


@pytest.mark.usefixtures("seconds_pass")
def test_rates_fall_with_the_time_that_is_spent(corpus: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"schedule": "linear", "lr": 1e-9, "output_lr": 1e-9, "log_every": 1}
    run = fit(experiment(corpus, steps=10**6, seconds=40.0, **options), tmp_path / "run")
    rates = [record["lr"] / 1e-9 for record in run.metrics() if record["kind"] == "training"]
    assert (rates[0], rates[-1]) == pytest.approx((1.0, 0.05))
    assert sorted(rates, reverse=True) == rates
    assert len(set(rates)) == 20


@pytest.mark.usefixtures("seconds_pass")
def test_a_resumed_run_has_the_time_that_is_left(corpus: Path, tmp_path: Path) -> None:
    def stop(progress: TrainingProgress) -> None:
        if progress.step == 30:
            raise RuntimeError("killed")

    config = experiment(corpus, steps=10**6, seconds=40.0)
    with pytest.raises(RuntimeError, match="killed"):
        fit(config, tmp_path / "run", watch=stop)
    spent = Run.open(tmp_path / "run").load().state["seconds"]
    assert 14 <= spent <= 17, "20 steps, less 5"
    run = fit(config, tmp_path / "run", resume=True)
    assert 40 <= run.load().state["seconds"] <= 42
    end = run.metrics()[-1]["step"]
    assert end == pytest.approx(20 + 5 + (40 - spent), abs=4)
    fit(config, tmp_path / "run", resume=True)
    assert run.metrics()[-1]["step"] == end, "nothing is left"


def test_the_log_has_the_refactors_since_the_last_line(corpus: Path, tmp_path: Path) -> None:
    config = experiment(corpus, log_every=5)
    trainer = Trainer(config, Run(tmp_path / "run").create(to_table(config)), lambda _: None)
    layer = trainer.network.head.layer
    assert isinstance(layer, zloss.FactoredLinear)
    for number in (0, 2, 1):
        for _ in range(number):
            layer.refactor()
        for _ in range(5):
            trainer._after_step(trainer.take_step())
    lines = [line for line in trainer.run.metrics() if line["kind"] == "training"]
    assert [(line["step"], line["refactors"]) for line in lines] == [(5, 0), (10, 2), (15, 1)]


def test_weight_decay_goes_to_the_optimizers(corpus: Path, tmp_path: Path) -> None:
    run = fit(
        experiment(corpus, steps=2, weight_decay=0.01, output_weight_decay=0.02), tmp_path / "run"
    )
    groups = [
        group for optimizer in run.load().state["optimizers"] for group in optimizer["groups"]
    ]
    assert [group.get("weight_decay") for group in groups] == [None, 0.01, 0.02]


def test_training_stops_early(corpus: Path, tmp_path: Path) -> None:
    config = experiment(
        corpus, steps=2000, validate_every=10, lr=1e-9, output_lr=1e-9, stop_after=2
    )
    run = fit(config, tmp_path / "run")
    assert run.metrics()[-1]["step"] <= 50


def test_a_diverging_run_says_so(corpus: Path, tmp_path: Path) -> None:
    """Where the loss is no number, and where a layer refuses what the one below gives it."""
    good = experiment(corpus, log_every=1, checkpoint_every=1)
    head = HeadConfig(head="dense", loss="squared_error")
    for name, bad in {
        "loss": experiment(
            corpus, head=head, lr=1e-9, output_lr=1e30, log_every=1, checkpoint_every=1
        ),
        "layer": dataclasses.replace(good, training=dataclasses.replace(good.training, lr=1e30)),
    }.items():
        with pytest.raises(
            DivergedError,
            match=r"step \d+: (the loss is|h has a NaN|step refused).*\. Lower the learning rates .*last",
        ):
            fit(bad, tmp_path / name)
        last = Run.open(tmp_path / name).load()
        assert all(tensor.isfinite().all() for tensor in last.tensors.values()), (
            "what has diverged is not kept"
        )


@pytest.mark.parametrize(
    ("owner", "name"), [(trainer, "evaluate"), (zloss.FactoredLinear, "condition")]
)
def test_a_layer_may_refuse_later_what_has_diverged(
    owner: object, name: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU a step that was refused is told with the next results that are asked for."""

    def refuse(*_: object, **__: object) -> None:
        raise ValueError("h has a NaN")

    monkeypatch.setattr(owner, name, refuse)
    with pytest.raises(DivergedError, match=r"step \d+: h has a NaN\. Lower the learning rates"):
        fit(experiment(corpus), tmp_path / "run")


def test_a_mistake_of_a_watcher_is_its_own(corpus: Path, tmp_path: Path) -> None:
    def watch(progress: TrainingProgress) -> None:
        raise ValueError("no such colour")

    with pytest.raises(ValueError, match=r"^no such colour$"):
        fit(experiment(corpus), tmp_path / "run", watch=watch)


def no_json(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


@pytest.mark.parametrize("perplexities", [[math.inf, 7.0, 7.0], [math.inf] * 3])
def test_metrics_have_null_for_what_is_not_finite(
    perplexities: list[float], corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And those who read them can do without."""
    left = iter(perplexities)

    def judged(*asked: Any, **options: Any) -> Evaluation:
        return dataclasses.replace(evaluate(*asked, **options), perplexity=next(left))

    monkeypatch.setattr(trainer, "evaluate", judged)
    run = fit(experiment(corpus), tmp_path / "run")
    lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line, parse_constant=no_json) for line in lines]
    validations = [record for record in found if record["kind"] == "validation"]
    assert [record["perplexity"] or math.inf for record in validations] == perplexities
    assert run_row(run)["perplexity"] in (None, 7.0)
    if 7.0 in perplexities:
        assert plot_runs([run], tmp_path / "picture.png", "perplexity") == []
    else:
        with pytest.raises(
            RunError, match=r"has no perplexity; it has top_1_error, .*, mean_rank$"
        ):
            plot_runs([run], tmp_path / "picture.png", "perplexity")


def test_mistakes(corpus: Path, tmp_path: Path) -> None:
    config = experiment(corpus, steps=4)
    fit(config, tmp_path / "run")
    with pytest.raises(RunError, match="is not empty"):
        fit(config, tmp_path / "run")
    other = dataclasses.replace(config, network=dataclasses.replace(config.network, embedding=9))
    with pytest.raises(RunError, match="another config"):
        fit(other, tmp_path / "run", resume=True)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        TrainingConfig(batch_size=0)
    with pytest.raises(ValueError, match="lr must be a finite number > 0"):
        TrainingConfig(lr=float("nan"))
    with pytest.raises(ValueError, match="weight_decay must be a finite number >= 0, got -1"):
        TrainingConfig(weight_decay=-1.0)
    with pytest.raises(ValueError, match="seconds must be a finite number > 0, got 0"):
        TrainingConfig(seconds=0.0)


def edit(run: Run, **changes: Any) -> None:
    """As a user would, in config.json."""
    table = run.config
    for path, value in changes.items():
        *places, name = path.split("__")
        place = table
        for step in places:
            place = place[step]
        place[name] = value
    (run.folder / "config.json").write_text(json.dumps(table))


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        (
            "training__lr",
            0.7,
            "training.lr in .*config.json is 0.7, and the run was trained with 0.1: change it back",
        ),
        ("training__weight_decay", 0.1, "training.weight_decay in "),
        (
            "training__optimizer",
            "adam",
            'training.optimizer in .* is "adam", and the run was trained with "sgd"',
        ),
        ("network__hidden", [17], r"network.hidden in .* is \[17\], and"),
        ("network__head__b", 3.0, "network.head.b in "),
    ],
)
def test_a_run_goes_on_with_what_it_was_trained_with(
    key: str, value: object, told: str, corpus: Path, tmp_path: Path
) -> None:
    run = fit(experiment(corpus, steps=4), tmp_path / "run")
    edit(run, **{key: value, "training__steps": 8})
    with pytest.raises(RunError, match=told):
        fit(resumed(run.folder), run.folder, resume=True)
    assert run.steps() == [4]


def test_a_run_may_be_made_longer(corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(corpus, tmp_path / "moved")
    run = fit(experiment(corpus, steps=4), tmp_path / "run")
    names = {
        "steps": 8,
        "epochs": 30,
        "seconds": 60.0,
        "keep": 1,
        "checkpoint_every": 3,
        "log_every": 1,
    }
    names |= {"stop_after": 9, "validate_every": 2}
    changes = {f"training__{name}": value for name, value in names.items()}
    edit(run, **changes, corpus=str(tmp_path / "moved"), device="auto")
    assert fit(resumed(run.folder), run.folder, resume=True).steps()[-1] == 8
    assert run.state()["config"] == run.config


def test_weights_of_another_config_are_refused_in_words(corpus: Path, tmp_path: Path) -> None:
    run = fit(experiment(corpus, steps=4), tmp_path / "run")
    edit(run, network__hidden=[17], training__steps=8)
    told = "the config is not the one these weights were trained with: size mismatch for "
    with pytest.raises(RunError, match=told):
        TrainedModel.load(run.folder)


@pytest.mark.parametrize("key", ["config", "seconds", "optimizers", "schedule"])
def test_a_checkpoint_without_a_part_of_its_state_is_refused(
    key: str, corpus: Path, tmp_path: Path
) -> None:
    run = fit(experiment(corpus, steps=4), tmp_path / "run")
    path = run.folder / "checkpoints" / "000000004" / "state.json"
    state = json.loads(path.read_text())
    del state[key]
    path.write_text(json.dumps(state))
    edit(run, training__steps=8)
    with pytest.raises(
        RunError, match=f"000000004 cannot be used: .*{'corpus' if key == 'config' else key}"
    ):
        fit(resumed(run.folder), run.folder, resume=True)


def test_a_vocabulary_that_does_not_fit(corpus: Path, tmp_path: Path) -> None:
    """Of another size, or of the same with other words."""
    run = fit(experiment(corpus, steps=4), tmp_path / "run")
    words = Corpus.open(corpus).vocabulary.words
    texts = {"fewer": "other words entirely\n" * 300, "others": " ".join(words[1:]).upper() + "\n"}
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text(text * 300)
        other = prepare(tmp_path / f"{name}.txt", tmp_path / name, fractions=(0.1, 0.1))
        assert (len(other.vocabulary) == len(words)) == (name == "others")
        table = run.config | {
            "corpus": str(other.folder),
            "training": run.config["training"] | {"steps": 8},
        }
        (run.folder / "config.json").write_text(json.dumps(table))
        message = r"the checkpoint has \d+ classes, the vocabulary \d+, or other words: .* not the corpus that the run"
        with pytest.raises(RunError, match=message):
            fit(resumed(run.folder), run.folder, resume=True)
        with pytest.raises(RunError, match=message):
            TrainedModel.load(run.folder)
    assert run.steps() == [4]
