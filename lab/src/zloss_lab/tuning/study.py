"""A study: a folder, and a database in which one worker or many keep the results of their trials.

    study.json      the plan of the study
    study.db        the trials in SQLite, unless the user names another database
    runs/00017/     the training run of trial 17, if runs are kept
    running-00017/  the training run of trial 17 while it is trained, if runs are not kept

The score of every validation is stored as soon as it is known, and the whole curve of a trial when it ends.

A worker may end at any moment. Its running trials then count as interrupted, and new trials take their place.
"""

import dataclasses
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import optuna
from optuna.trial import TrialState

from zloss_lab.durable import is_partial, locked, tidied
from zloss_lab.runs import RunError, require_utf8
from zloss_lab.training import deferred_interrupt
from zloss_lab.tuning.evaluators import RUNNING_PREFIX, Evaluator
from zloss_lab.tuning.plan import PLAN_FILE, StudyPlan
from zloss_lab.tuning.rounds import Round, StudyWatcher, begun_trials
from zloss_lab.tuning.sampling import NumberedTPE
from zloss_lab.tuning.trial_storage import DATABASE, explained, optuna_study, reading
from zloss_lab.tuning.trials import Trial
from zloss_lab.tuning.workers import abandoned, signs_of_life

_ASKED = "asked"  # the attribute of an Optuna study that holds the plan which its workers agree in
# The values of shared keys are drawn evenly in this number of first rounds, and in every other round after them.
_EXPLORING_ROUNDS = 4


class TuningStudy:
    """An open study. `begin` makes a new one or continues it, `open` reads one that exists."""

    def __init__(self, folder: Path, plan: StudyPlan, *, makes: bool) -> None:
        self.folder, self.plan = folder, plan
        self._sampler = NumberedTPE(plan.seed)
        for name in (str(folder), plan.name):
            require_utf8(name)
        if not makes and plan.storage is None and not (folder / DATABASE).exists():
            raise RunError(
                f"the trials of {folder} are gone: restore its {DATABASE}, or begin a new study"
            )
        with explained(folder), reading(folder):
            self._study = optuna_study(folder, plan, self._sampler, makes=makes)

    @classmethod
    def begin(
        cls, folder: Path, plan: StudyPlan, evaluator: Evaluator | None = None
    ) -> "TuningStudy":
        """Make a study, or open the one in the folder if its plan is the same. Only the number of trials may change.

        If the evaluator cannot train some trial of the plan, an error is raised before anything is written.
        """
        is_new = not (folder / PLAN_FILE).exists()
        if is_new:
            _require_new(folder)
        else:
            _require_same(StudyPlan.read(folder), plan, folder)
        plan.check()
        if is_new:  # an existing study passed this check, which has to open the whole text
            plan.check_text()
        if evaluator is not None:
            _require_trainable(plan, evaluator)
        with tidied(folder):
            folder.mkdir(parents=True, exist_ok=True)
            study = cls(
                folder, plan, makes=is_new
            )  # the trials of a study with a plan may not be gone
            with explained(folder):
                study._require_same_in_storage()
            plan.write(folder)  # last, when nothing can go wrong any more
        return study

    @classmethod
    def open(cls, folder: Path) -> "TuningStudy":
        """Open a study that exists."""
        return cls(folder, StudyPlan.read(folder), makes=False)

    def _require_same_in_storage(self) -> None:
        """Raise an error where another worker, in a folder of its own, began this study with another plan."""
        asked, ours = self._study.user_attrs.get(_ASKED), self.plan.identity()
        if asked is None:
            self._study.set_user_attr(_ASKED, ours)
        elif changed := [name for name, value in ours.items() if asked.get(name) != value]:
            raise RunError(
                f"the study {self.plan.name!r} in the storage was begun with another {' and another '.join(changed)}: "
                "choose another --name for this one"
            )

    def trials(self) -> list[Trial]:
        """Return all trials so far, in the order in which they began."""
        with reading(self.folder):
            trials = begun_trials(self._study, self.plan)
            if [trial.number for trial in trials] != list(range(len(trials))):
                raise ValueError("some of them are missing")
        return trials

    def missing(self) -> int:
        """Return the number of trials that have still to begin. Running trials count as begun, interrupted ones not."""
        return max(
            0, self.plan.trials - sum(trial.state != "interrupted" for trial in self.trials())
        )

    def run(
        self, evaluator: Evaluator, *, at_once: int = 1, watch: StudyWatcher | None = None
    ) -> None:
        """Work until all trials of the study have begun. Each round trains `at_once` of them at the same time."""
        watch = watch or (lambda _: None)
        _require_trainable(self.plan, evaluator)
        with explained(self.folder), signs_of_life(self._study):
            while (count := min(at_once, self._missing_now())) > 0:
                self._run_round(evaluator, count, watch)

    def _missing_now(self) -> int:
        with reading(self.folder):
            gone = abandoned(self._study)
        for frozen in gone:
            self._study.tell(frozen.number, state=TrialState.FAIL, skip_if_finished=True)
        self._remove_leftovers()
        return self.missing()

    def _remove_leftovers(self) -> None:
        """Delete the runs of killed workers. A worker that still holds the lock of its run is alive, and keeps it."""
        ended = {
            f"{RUNNING_PREFIX}{trial.number:05d}"
            for trial in self.trials()
            if trial.state != "running"
        }
        for place in self.folder.glob(f"{RUNNING_PREFIX}*"):
            if place.name in ended:
                # Another worker may delete the folder at the same moment.
                with suppress(FileNotFoundError), locked(place, waits=False) as is_left:
                    if is_left:
                        shutil.rmtree(place, ignore_errors=True)

    def _run_round(self, evaluator: Evaluator, count: int, watch: StudyWatcher) -> None:
        round_ = Round(self._study, self.plan, watch)
        try:
            with _uninterrupted():
                experiments = round_.begin(self._ask(evaluator, count))
            endings = evaluator.evaluate(experiments, round_.judge)
        except BaseException:
            round_.interrupt()
            raise
        with _uninterrupted():
            round_.end(endings)

    def _ask(self, evaluator: Evaluator, count: int) -> Iterator[optuna.Trial]:
        """Yield new trials that can be trained together: all have the values of the first in the keys they share."""
        distributions = self.plan.searched.distributions
        shared = [key for key in distributions if evaluator.is_shared(key)]
        with self._sampler.steered(even=shared if self._explores(count) else ()):
            first = self._study.ask(distributions)
        yield first
        for _ in range(count - 1):
            with self._sampler.steered(held={key: first.params[key] for key in shared}):
                trial = self._study.ask(distributions)
            yield trial

    def _explores(self, count: int) -> bool:
        """Return whether the next `count` trials draw their shared keys evenly, instead of from the best values."""
        rounds = len(self._study.get_trials(deepcopy=False)) // count
        return rounds < _EXPLORING_ROUNDS or rounds % 2 == 0


def _require_trainable(plan: StudyPlan, evaluator: Evaluator) -> None:
    """Raise an error where the evaluator cannot train some trial of the plan. Such a trial would end the study."""
    for settings in plan.searched.examples():
        evaluator.check(plan.trial(settings))


def _require_new(folder: Path) -> None:
    if not folder.exists():
        return
    # These files are left by a worker that begins the same study now, or was killed when it did.
    foreign = [
        file
        for file in folder.iterdir()
        if not (file.name.startswith(DATABASE) or is_partial(file))
    ]
    if foreign:
        raise RunError(f"{folder} is not empty and not a study: choose another folder")


def _require_same(was: StudyPlan, plan: StudyPlan, folder: Path) -> None:
    before, now = dataclasses.asdict(was), dataclasses.asdict(plan)
    if changed := [name for name in now if name != "trials" and before[name] != now[name]]:
        raise RunError(
            f"{folder} is a study that differs in {', '.join(changed)}: go on with it by --resume, or choose another "
            "folder"
        )


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block. Between its writes, the storage has trials without a worker."""
    with deferred_interrupt() as is_asked_to_stop:
        yield
        if is_asked_to_stop():
            raise KeyboardInterrupt
