"""A study: a folder, and a database in which one worker or many keep what their trials have shown.

    study.json      what was asked
    study.db        SQLite, unless the study lives in a database of the user's
    runs/00017/     the training run of trial 17, where runs are kept
    running-00017/  the same while it is trained, where they are not

The score of every validation is in the database as soon as it is known, the whole curve of a trial when it ends. A
worker may end at any moment: the trials that it had at hand count as interrupted, and are made up for.
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
from zloss_lab.tuning.evaluators import PASSING, Evaluator
from zloss_lab.tuning.plan import FILE, StudyPlan
from zloss_lab.tuning.rounds import Round, StudyWatcher, begun_trials
from zloss_lab.tuning.sampling import NumberedTPE
from zloss_lab.tuning.trial_storage import DATABASE, explained, optuna_study
from zloss_lab.tuning.trials import Trial
from zloss_lab.tuning.workers import abandoned, signs_of_life

_ASKED = "asked"
_EXPLORING_ROUNDS = 4  # in which trials that are trained together share what chance gives them; then every other one


class TuningStudy:
    """A study that is open for work, or to be looked at. Make one with `begin`, open it with `open`."""

    def __init__(self, folder: Path, plan: StudyPlan, *, makes: bool) -> None:
        self.folder, self.plan = folder, plan
        self._sampler = NumberedTPE(plan.seed)
        for name in (str(folder), plan.name):
            require_utf8(name)
        with explained(folder):
            self._study = optuna_study(folder, plan, self._sampler, makes=makes)

    @classmethod
    def begin(
        cls, folder: Path, plan: StudyPlan, evaluator: Evaluator | None = None
    ) -> "TuningStudy":
        """A new study, or the one that is there if it was asked the same. Only the number of trials may change.

        What the evaluator that is to work on it cannot train is refused before there is a study.
        """
        is_new = not (folder / FILE).exists()
        if is_new:
            _require_new(folder)
        else:
            _require_same(StudyPlan.read(folder), plan, folder)
        plan.check()
        if is_new:  # nobody opens the text of a study that has nothing left to do
            plan.check_text()
        if evaluator is not None:
            _require_trainable(plan, evaluator)
        with tidied(folder):
            folder.mkdir(parents=True, exist_ok=True)
            study = cls(folder, plan, makes=True)
            with explained(folder):
                study._require_same_in_storage()
            plan.write(folder)  # when all is known to be well
        return study

    @classmethod
    def open(cls, folder: Path) -> "TuningStudy":
        """One that exists."""
        plan = StudyPlan.read(folder)
        if plan.storage is None and not (folder / DATABASE).exists():
            raise RunError(
                f"the trials of {folder} are gone: restore its {DATABASE}, or begin a new study"
            )
        return cls(folder, plan, makes=False)

    def _require_same_in_storage(self) -> None:
        """Workers that have folders of their own may have been asked different things."""
        asked, ours = self._study.user_attrs.get(_ASKED), self.plan.identity()
        if asked is None:
            self._study.set_user_attr(_ASKED, ours)
        elif changed := [name for name, value in ours.items() if asked.get(name) != value]:
            raise RunError(
                f"the study {self.plan.name!r} in the storage was begun with another {' and another '.join(changed)}: "
                "choose another --name for this one"
            )

    def trials(self) -> list[Trial]:
        """All trials so far, in the order in which they began."""
        return begun_trials(self._study, self.plan)

    def missing(self) -> int:
        """How many trials are still to be begun. Interrupted ones count for nothing, running ones for what they are."""
        return max(
            0, self.plan.trials - sum(trial.state != "interrupted" for trial in self.trials())
        )

    def run(
        self, evaluator: Evaluator, *, at_once: int = 1, watch: StudyWatcher | None = None
    ) -> None:
        """Work until all trials have been begun, `at_once` of them together."""
        watch = watch or (lambda _: None)
        _require_trainable(self.plan, evaluator)
        with explained(self.folder), signs_of_life(self._study):
            while (count := min(at_once, self._missing_now())) > 0:
                self._run_round(evaluator, count, watch)

    def _missing_now(self) -> int:
        for frozen in abandoned(self._study):
            self._study.tell(frozen.number, state=TrialState.FAIL, skip_if_finished=True)
        self._remove_leftovers()
        return self.missing()

    def _remove_leftovers(self) -> None:
        """The runs of workers that were killed, but not of one that was given up and is there all the same."""
        ended = {
            f"{PASSING}{trial.number:05d}" for trial in self.trials() if trial.state != "running"
        }
        for place in self.folder.glob(f"{PASSING}*"):
            if place.name in ended:
                with (
                    suppress(FileNotFoundError),
                    locked(place, waits=False) as is_left,
                ):  # another one may be faster
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
        """New trials that can be trained together: what they must share is that of the first."""
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
        """Whether the next so many trials share what comes, instead of what has been best."""
        rounds = len(self._study.get_trials(deepcopy=False)) // count
        return rounds < _EXPLORING_ROUNDS or rounds % 2 == 0


def _require_trainable(plan: StudyPlan, evaluator: Evaluator) -> None:
    """Refuse a study with a trial that would end all others, as the evaluator cannot train it."""
    for settings in plan.searched.examples():
        evaluator.check(plan.trial(settings))


def _require_new(folder: Path) -> None:
    if not folder.exists():
        return
    # Another worker may be about to begin the same study, or may have been killed when it was.
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
    """Ctrl-C waits for the end of the block: between two writes there are trials that belong to nobody."""
    with deferred_interrupt() as is_asked_to_stop:
        yield
        if is_asked_to_stop():
            raise KeyboardInterrupt
