"""The choice of the next hyper-parameters: TPE (Bergstra et al. 2011), a function of the seed and of all trials so far.

Every trial has its own random numbers, which follow from the seed and the number of the trial. This has three effects:

- A study with one worker is reproducible.
- A study that was interrupted does not repeat the choices of its start.
- Workers that begin at the same moment draw different values.

Trials that are still running count as bad ones ("constant liar"), so that workers search in different places.

Trials that are trained together must agree in some keys, such as the widths of layers. TPE would keep the values of
these keys that chance gave the first trials, because no trial has shown anything else. So these keys are drawn evenly
from all their values now and then.
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
    """TPE with separate random numbers for every trial; some keys can be given a value or be drawn evenly."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._held: Mapping[str, Any] = {}
        self._even: Collection[str] = ()
        # The number of the last trial, and its samplers.
        self._current: tuple[int, TPESampler, RandomSampler] | None = None

    @contextmanager
    def steered(
        self, *, held: Mapping[str, Any] | None = None, even: Collection[str] = ()
    ) -> Iterator[None]:
        """Steer the trials that are drawn in the block.

        Args:
            held: values that these trials have, by key.
            even: keys that are drawn evenly from all their values.
        """
        self._held, self._even = held or {}, even
        try:
            yield
        finally:
            self._held, self._even = {}, ()

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the keys that TPE draws jointly, each with its distribution."""
        space = self._samplers_of(trial)[0].infer_relative_search_space(study, trial)
        return {
            key: drawn_from
            for key, drawn_from in space.items()
            if key not in (*self._held, *self._even)
        }

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Draw the values of these keys jointly."""
        return self._samplers_of(trial)[0].sample_relative(study, trial, search_space)

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Draw the value of one key by itself. In the first trials, all keys are drawn in this way."""
        if param_name in self._held:
            return self._held[param_name]
        tpe, even = self._samplers_of(trial)
        sampler = even if param_name in self._even else tpe
        return sampler.sample_independent(study, trial, param_name, param_distribution)

    def _samplers_of(self, trial: FrozenTrial) -> tuple[TPESampler, RandomSampler]:
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
