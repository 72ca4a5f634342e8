"""Works that train: a run from its beginning, the second half of a run, and a study."""

import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch

from tests.campaign.warm_commands import undisturbed
from tests.campaign.works import HALF, SHORT, Work, corpus, own_folder, require, settings
from tests.lab.small_runs import timeless
from zloss_lab.runs import Run, RunError, is_run
from zloss_lab.tuning.study import TuningStudy
from zloss_lab.tuning.trials import Trial

VARIANTS: dict[str, tuple[str, ...]] = {
    "factored": (),
    "dropout": ("network.dropout=0.3",),
    "adam": ("training.optimizer=adam", "training.lr=0.003"),
    "clipped": ("training.clip=0.5",),
    "sampled": ("network.head={head = 'sampled', num_samples = 4}",),
    "hierarchical": ("network.head={head = 'hierarchical'}", "training.output_lr=0.3"),
    "linear": ("training.schedule=linear",),
    "decayed": ("training.weight_decay=0.01", "training.output_weight_decay=0.02"),
    "best only": ("training.keep=1", "training.validate_every=4"),
}
WAYS: dict[str, tuple[str, ...]] = {
    "one by one": (),
    "with runs": ("--keep-runs",),
    "together": ("--at-once", "2"),
}
_TRIALS = 3
_TIMED = ("seconds", "metrics", "checksum")
_SPACE = """
[fixed.training]
schedule = "linear"
[search.training]
lr = {low = 0.01, high = 1.0, log = true}
output_lr = {low = 0.001, high = 1.0, log = true}
"""


class Training(Work):
    """A run, trained from its beginning.

    Args:
        variant: the key of the settings in VARIANTS.
    """

    def __init__(self, variant: str) -> None:
        super().__init__(f"train {variant}")
        chosen = VARIANTS[variant]
        replaces_head = any(setting.startswith("network.head=") for setting in chosen)
        kept = [one for one in SHORT if not (replaces_head and one.startswith("network.head."))]
        self.settings = settings(*kept, *chosen)

    def first(self, folder: Path) -> list[str]:
        return ["train", str(folder / "run"), "--corpus", str(corpus()), *self.settings]

    def again(self, folder: Path, seen: Path) -> list[str]:
        is_begun = is_run(seen / "run")
        return ["train", str(folder / "run"), "--resume"] if is_begun else self.first(folder)

    def check_interrupted(self, folder: Path) -> None:
        if not is_run(folder / "run"):
            return
        run, whole = Run.open(folder / "run"), Run.open(self.reference.folder / "run")
        run.metrics()
        for step in run.steps():
            try:
                checkpoint = run.load(step)
            except RunError:
                # An older checkpoint may be half removed, but the last and the best one have to be whole.
                require(step not in (run.steps()[-1], run.best_step), f"step {step} is not whole")
                continue
            if step in whole.steps():
                require(
                    _same_tensors(checkpoint.tensors, whole.load(step).tensors),
                    f"step {step} differs from the undisturbed run",
                )

    def check(self, folder: Path) -> None:
        run, whole = Run.open(folder / "run"), Run.open(self.reference.folder / "run")
        require(run.config == whole.config, "the config differs from that of the undisturbed run")
        same = timeless(run.metrics()) == timeless(whole.metrics())
        require(same, "the metrics differ from the undisturbed run")
        require(run.steps() == whole.steps(), f"steps {run.steps()} instead of {whole.steps()}")
        for step in whole.steps():
            ours, theirs = run.load(step), whole.load(step)
            require(_same_tensors(ours.tensors, theirs.tensors), f"other tensors at step {step}")
            states = [_state(place.folder, step) for place in (run, whole)]
            require(states[0] == states[1], f"other states at step {step}: {states}")
        left = _names(folder) - _names(self.reference.folder)
        require(not left, f"leftovers: {left}")


class Resuming(Training):
    """The second half of a run, which stopped in the middle."""

    def __init__(self, variant: str) -> None:
        super().__init__(variant)
        self.variant, self.key = variant, f"resume {variant}"

    def prepare(self, folder: Path) -> None:
        shutil.copytree(_half(self) / "run", folder / "run")

    def first(self, folder: Path) -> list[str]:
        return ["train", str(folder / "run"), "--resume"]


@cache
def _half(work: Resuming) -> Path:
    """Return the folder of a run that was interrupted after 11 steps, with the config of the whole run."""
    folder = own_folder("half-")
    whole = Training(work.variant)
    undisturbed(*whole.first(folder), *settings(HALF), folder=folder)
    config = folder / "run" / "config.json"
    config.write_bytes((whole.reference.folder / "run" / "config.json").read_bytes())
    return folder


class Searching(Work):
    """A study of three trials.

    Args:
        way: the key of the options in WAYS.
    """

    def __init__(self, way: str) -> None:
        super().__init__(f"tune run {way}")
        self.options = WAYS[way]

    def first(self, folder: Path) -> list[str]:
        asked = ["--corpus", str(corpus()), "--space", str(_space()), "--trials", str(_TRIALS)]
        steps = ("training.steps=12", "training.validate_every=4")
        fixed = [one for one in SHORT if not one.startswith(("training.steps", "training.output"))]
        chosen = settings(*(one for one in fixed if "validate_every" not in one), *steps)
        return ["tune", "run", str(folder / "study"), *asked, *chosen, *self.options]

    def again(self, folder: Path, seen: Path) -> list[str]:
        is_begun = (seen / "study" / "study.json").exists()
        resumed = ["tune", "run", str(folder / "study"), "--resume", *self.options]
        return resumed if is_begun else self.first(folder)

    def check_interrupted(self, folder: Path) -> None:
        if (folder / "study" / "study.json").exists():
            _trials(folder / "study")

    def check(self, folder: Path) -> None:
        """Require all trials, and equal ones up to the first that was interrupted: it has changed the search."""
        ours, theirs = _trials(folder / "study"), _trials(self.reference.folder / "study")
        ended = [trial for trial in ours if trial.state in ("complete", "pruned")]
        odd = [trial for trial in ours if trial.state not in ("complete", "pruned", "interrupted")]
        require(len(ended) == _TRIALS and not odd, f"{_TRIALS} trials wanted, got {ours}")
        for one, other in zip(ours, theirs, strict=False):
            if one.state == "interrupted":
                break
            same = (one.settings, one.curve, one.state) == (
                other.settings,
                other.curve,
                other.state,
            )
            require(same, f"trial {one.number} differs from the undisturbed study: {one}, {other}")
        left = _names(folder) - _names(self.reference.folder)
        # Runs that are kept have the numbers of their trials, and interrupted trials are kept too.
        left = {name for name in left if not name.startswith("study/runs/")}
        require(not left, f"leftovers: {left}")


def _state(run: Path, step: int) -> dict[str, Any]:
    """Return the state of a checkpoint without the time, which differs, and the checksums of what has the time."""
    state = json.loads((run / "checkpoints" / f"{step:09d}" / "state.json").read_text())
    return {name: value for name, value in state.items() if name not in _TIMED}


def _trials(study: Path) -> list[Trial]:
    """Return the trials of a copy of a study, because SQLite opens no file of a disk that another process mounted."""
    with tempfile.TemporaryDirectory() as place:
        return TuningStudy.open(Path(shutil.copytree(study, Path(place) / "study"))).trials()


@cache
def _space() -> Path:
    path = own_folder("space-") / "space.toml"
    path.write_text(_SPACE)
    return path


def _names(folder: Path) -> set[str]:
    """Return the names of all files. Each process writes events of its own, which do not count."""
    found = (path.relative_to(folder).as_posix() for path in folder.rglob("*"))
    return {name for name in found if "events.out" not in name}


def _same_tensors(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(
        torch.equal(ours[name], theirs[name]) for name in ours
    )
