"""Runs that are interrupted or killed continue to the identical result; what does not fit is refused."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.lab.small_runs import assert_same_end, edit, experiment
from zloss.heads import HeadConfig
from zloss_lab.checkpoints import RunCheckpoint
from zloss_lab.configuration import to_table
from zloss_lab.corpora import Corpus, prepare
from zloss_lab.inspection.trained_model import TrainedModel
from zloss_lab.runs import Run, RunError
from zloss_lab.training import (
    TrainingProgress,
    fit,
    resumed,
)
from zloss_lab.training.state import restore_optimizers, tensors_of

CASES: dict[str, dict[str, Any]] = {
    "factored": {},
    "dropout": {"dropout": 0.3},
    "relative": {"output_lr": None},
    "adam": {"optimizer": "adam", "lr": 0.003},
    "clipped": {"clip": 0.5},
    "sampled": {"head": HeadConfig(head="sampled", options={"num_samples": 4})},
    "hierarchical": {"head": HeadConfig(head="hierarchical"), "output_lr": 0.3},
    "hierarchical by adam": {
        "head": HeadConfig(head="hierarchical"),
        "output_optimizer": "adam",
        "output_lr": 0.01,
    },
    "adaptive by adam": {
        "head": HeadConfig(head="adaptive", options={"cutoffs": [2, 10]}),
        "output_optimizer": "adam",
        "output_lr": 0.01,
    },
    "sampled by adagrad": {
        "head": HeadConfig(head="sampled", options={"num_samples": 4}),
        "output_optimizer": "adagrad",
        "output_lr": 0.1,
    },
    # The stages of the schedule begin at other steps than the checkpoints.
    "linear": {"schedule": "linear", "steps": 70},
    "decayed": {"weight_decay": 0.01, "output_weight_decay": 0.02},
}


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_ends_the_same(case: str, corpus: Path, tmp_path: Path) -> None:
    """A run that stops after 33 steps, between checkpoints, and resumes has identical tensors and metrics."""
    config = experiment(corpus, **CASES[case])
    whole = fit(config, tmp_path / "whole")

    def stop(progress: TrainingProgress) -> None:
        if progress.step == 30:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        fit(config, tmp_path / "broken", watch=stop)
    assert Run.open(tmp_path / "broken").steps()[-1] == 20
    assert_same_end(fit(resumed(tmp_path / "broken"), tmp_path / "broken", resume=True), whole)


def test_a_parameter_without_a_gradient_has_no_state_to_restore() -> None:
    """A cluster of an adaptive softmax has no gradient until a target is in it. Half a state is refused."""
    used, unused = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    used.grad = torch.ones(2)
    optimizer = torch.optim.Adam([unused, used])
    optimizer.step()
    tensors = tensors_of([optimizer])
    other = torch.optim.Adam([unused, used])
    restore_optimizers([other], tensors)
    assert other.state.keys() == {used}
    assert tensors_of([other]).keys() == tensors.keys()
    del tensors["optimizer.0.1.exp_avg"]
    with pytest.raises(ValueError, match=r"has other parts: 1\.exp_avg"):
        restore_optimizers([torch.optim.Adam([unused, used])], tensors)


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
    """The process is killed with -9 several times, while it writes a checkpoint every other step."""
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
    """The best checkpoint itself says that it is the best, and it is never removed."""
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
                # Old checkpoints are not removed either.
                patch.setattr(shutil, "rmtree", lambda *_, **__: None)
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
    """Half a checkpoint does not count, and it is removed even if the run has no steps left."""
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
    """The folder has the config of the process that trains."""
    create, first, second = Run.create, experiment(corpus, steps=4), experiment(corpus, steps=8)

    def beaten(run: Run, config: Any) -> Run:
        monkeypatch.undo()
        with pytest.raises(RunError, match="another process is training in"):
            fit(second, run.folder)
        return create(run, config)

    monkeypatch.setattr(Run, "create", beaten)
    run = fit(first, tmp_path / "run")
    assert (run.steps(), run.config) == ([4], to_table(first))


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
    assert run.state().config == run.config


def test_weights_of_another_config_are_refused_in_words(corpus: Path, tmp_path: Path) -> None:
    run = fit(experiment(corpus, steps=4), tmp_path / "run")
    edit(run, network__hidden=[17], training__steps=8)
    told = r"network.hidden in .*config.json is \[17\], and the run was trained with \[16\]: change"
    with pytest.raises(RunError, match=told):
        TrainedModel.load(run.folder)


def test_a_vocabulary_that_does_not_fit(corpus: Path, tmp_path: Path) -> None:
    """The other vocabulary has another size, or the same size with other words."""
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
