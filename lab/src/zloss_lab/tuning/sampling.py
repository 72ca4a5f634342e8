"""Which hyper-parameters come next: TPE (Bergstra et al. 2011), as a function of the seed and of what is known.

Every trial has its own random numbers, from the seed and the number of the trial. So a study with one worker is
reproducible, one that was interrupted does not repeat what it drew at its start, and workers that begin at the same
moment draw different things.

Trials that are still running count as bad ones ("constant liar"), so that workers keep out of each other's way.

Trials that are trained together have to agree in some keys, such as the widths of layers. TPE would go on for ever with
what the first of them had by chance: all that is known is about that. So these keys are drawn evenly now and then.
"""

import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial


class NumberedTPE(BaseSampler):
    """TPE with random numbers of its own for every trial, and with ways to choose some keys otherwise."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._held: Mapping[str, Any] = {}
        self._even: Collection[str] = ()
        self._current: tuple[int, TPESampler, RandomSampler] | None = (
            None  # of the last trial, with its number
        )

    @contextmanager
    def steered(
        self, *, held: Mapping[str, Any] | None = None, even: Collection[str] = ()
    ) -> Iterator[None]:
        """In the block, new trials have the values that are held, and some keys are drawn evenly from all values."""
        self._held, self._even = held or {}, even
        try:
            yield
        finally:
            self._held, self._even = {}, ()

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """What is drawn together."""
        space = self._of(trial)[0].infer_relative_search_space(study, trial)
        return {
            key: drawn_from
            for key, drawn_from in space.items()
            if key not in (*self._held, *self._even)
        }

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Draw it."""
        return self._of(trial)[0].sample_relative(study, trial, search_space)

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Draw what is left, key by key: everything in the first trials, when nothing is known."""
        if param_name in self._held:
            return self._held[param_name]
        tpe, even = self._of(trial)
        sampler = even if param_name in self._even else tpe
        return sampler.sample_independent(study, trial, param_name, param_distribution)

    def _of(self, trial: FrozenTrial) -> tuple[TPESampler, RandomSampler]:
        if self._current is None or self._current[0] != trial.number:
            seed, other = map(
                int, np.random.SeedSequence([self._seed, trial.number]).generate_state(2)
            )
            self._current = trial.number, _tpe(seed), RandomSampler(seed=other)
        return self._current[1:]


def _tpe(seed: int) -> TPESampler:
    with warnings.catch_warnings():  # Optuna 4 calls both options experimental
        warnings.simplefilter("ignore", ExperimentalWarning)
        return TPESampler(seed=seed, multivariate=True, constant_liar=True)
