"""Training a stack: epochs, validations, and trials that end before the others.

A trial ends early when its loss, its weights or its scores of targets are no longer finite, or when the judge of the
caller says so after a validation. It is ignored from then on, and taken out as soon as a good part of the stack is
idle. What is left goes on as it would have done with the others still there, to the last bit where torch computes an
element in the same way wherever in a tensor it stands: on a CPU, with batches of whole vectors, such as 32 or 256.

On a GPU no training is repeated to the last bit, as the embeddings add up rows in no fixed order. Under the Z-loss that
can grow: its gradient is divided by the deviation of the logits, so where dropout leaves next to nothing of a narrow
layer, two trainings of one trial may validate differently, captured or not.
"""

import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

import zloss
from zloss_lab.corpora import Corpus
from zloss_lab.evaluation import Evaluation
from zloss_lab.networks import NgramNetwork
from zloss_lab.sidebyside.batches import StackedBatches
from zloss_lab.sidebyside.dropout import DropoutNumbers
from zloss_lab.sidebyside.network import StackedNetwork
from zloss_lab.sidebyside.stacked_ranking import evaluate_stack
from zloss_lab.sidebyside.trial_settings import TrialSettings, check_score, check_trials
from zloss_lab.sidebyside.weights import StackedWeights
from zloss_lab.training import (
    Experiment,
    TrainingProgress,
    TrainingWatcher,
    batches_of,
    build_network,
    device_of,
    linear_factor,
)

# Of a stack that may be idle before it is made smaller: that copies its weights, and captures its step anew.
_IDLE_SHARE = 0.25

# Told the number of epochs that are done and the latest validation of every trial, None for those that have ended;
# returns the trials to end.
StackJudge = Callable[[int, list[Evaluation | None]], Collection[int]]


@dataclass(frozen=True)
class Validation:
    """How well a trial did after so many steps."""

    step: int
    epoch: float
    evaluation: Evaluation


@dataclass
class TrialOutcome:
    """What became of a trial."""

    experiment: Experiment
    validations: list[Validation] = field(default_factory=list)
    diverged: bool = False  # its loss, its weights or its scores of targets were no longer finite
    pruned: bool = False  # the judge ended it

    @property
    def has_ended(self) -> bool:
        """Whether it has, before its last step."""
        return self.diverged or self.pruned

    @property
    def best(self) -> Validation | None:
        """Its best validation by `training.score`; None where it diverged before the first."""
        return self.best_by(self.experiment.training.score)

    def best_by(self, score: str) -> Validation | None:
        """Its best validation by any score, the first of them where they are equal."""
        cost = replace(self.experiment.training, score=score).cost
        return min(
            self.validations, key=lambda validation: cost(validation.evaluation), default=None
        )


class SideBySide:
    """Experiments that are trained together.

    Args:
        experiments: the trials, which agree in all but some keys: see `zloss_lab.sidebyside.trial_settings`.
        scores: by which the best weights of every trial are kept too, beside `training.score`: a copy of all weights
            for each.
        watch: told of the progress every `training.log_every` steps and after each validation: the words per second of
            all trials, and otherwise the figures of the trial that is ahead.
    """

    def __init__(
        self,
        experiments: Sequence[Experiment],
        *,
        scores: Sequence[str] = (),
        watch: TrainingWatcher | None = None,
    ) -> None:
        check_trials(experiments)
        for score in scores:
            check_score(score)
        self.outcomes = [TrialOutcome(experiment) for experiment in experiments]
        self.step = 0
        self._watch = watch or (lambda _: None)
        self._first = experiments[0]  # which speaks for all in what they agree in
        self.device = device_of(self._first.device)
        self._corpus = Corpus.open(Path(self._first.corpus))
        self._validation = batches_of(
            self._corpus, "valid", self._first, self.device, shuffle=False
        )
        batches = batches_of(self._corpus, "train", self._first, self.device)
        seeds = [experiment.training.seed for experiment in experiments]
        self.batches = StackedBatches(batches, seeds=seeds)
        self.network = self._stack_of(StackedWeights.of(self._networks()))
        self._dropout = self._dropout_numbers(seeds)
        # Weights of all trials by score, each at its best validation.
        kept = dict.fromkeys((self._first.training.score, *scores))
        self._best = {score: self.network.weights.clone() for score in kept}
        self.trials = list(range(len(experiments)))  # which ones are in the stack
        self._lr_factor = 1.0
        self._replay = self._captured_step()
        self._since = time.perf_counter(), 0  # the speed was last told, and the step then

    @property
    def last_step(self) -> float:
        """Where training ends."""
        return self._first.training.last_step(len(self.batches))

    def train(self, judge: StackJudge | None = None) -> list[TrialOutcome]:
        """Take all steps. After each validation but the last, the judge says which trials end."""
        training = self._first.training
        self._since = time.perf_counter(), self.step
        while self.step < self.last_step and self._running():
            losses = self.take_step()
            if self.step == self.last_step or self.step % training.log_every == 0:
                self._report(losses)
            if training.validates_at(self.step, len(self.batches)):
                self._validate(judge)
        return self.outcomes

    def evaluate(
        self,
        split: str,
        *,
        score: str | None = None,
        trials: Sequence[int] | None = None,
        limit: int | None = None,
    ) -> list[Evaluation | None]:
        """Trials on a split, each with the weights of its best validation; None where there was none.

        Args:
            split: of the corpus.
            score: by which the weights are best: `training.score`, or one of those that were asked for.
            trials: some of them, by default all.
            limit: the same sample of at most so many examples for all trials; by default all examples.
        """
        score = score or self._first.training.score
        if score not in self._best:
            raise ValueError(
                f"the best weights by {score} are not there: name it in `scores`, beside {[*self._best]}"
            )
        chosen = list(range(len(self.outcomes))) if trials is None else list(trials)
        batches = batches_of(self._corpus, split, self._first, self.device, shuffle=False)
        network = self._stack_of(self._best[score]).select(torch.tensor(chosen, device=self.device))
        results = evaluate_stack(network, batches, limit=limit)
        return [
            result if self.outcomes[trial].best else None
            for trial, result in zip(chosen, results, strict=True)
        ]

    # ---- steps -------------------------------------------------------------------------------------------------------

    def _networks(self) -> Iterator[NgramNetwork]:
        """With the weights that `fit` would start from."""
        for outcome in self.outcomes:
            torch.manual_seed(outcome.experiment.training.seed)
            yield build_network(outcome.experiment, self._corpus, self.device)

    def _stack_of(self, weights: StackedWeights) -> StackedNetwork:
        """All trials, whether they have ended or not."""
        network = self._first.network
        experiments = [outcome.experiment for outcome in self.outcomes]
        settings = TrialSettings.of(experiments, len(self._corpus.vocabulary), self.device)
        return StackedNetwork(
            weights, settings, loss=network.head.loss, tf32=network.precision == "tf32"
        )

    def _dropout_numbers(self, seeds: Sequence[int]) -> DropoutNumbers | None:
        if not self.network.settings.dropout.any():
            return None
        widths = self._first.network.hidden
        return DropoutNumbers(
            seeds, batch_size=self.batches.batch_size, widths=widths, device=self.device
        )

    def _captured_step(self) -> Callable[[], Tensor]:
        # Not a method: a stack that referred to itself would keep its memory until Python looks for such things.
        network, batches, dropout = self.network, self.batches, self._dropout

        def step() -> Tensor:
            return network.learn(*batches.next(), dropout.of_layers() if dropout else ())

        is_captured = self.device.type == "cuda" and self._first.training.graph
        return zloss.CapturedStep(step) if is_captured else step

    def take_step(self) -> Tensor:  # (trials in the stack,)
        """One step of all trials; the losses stay on the device."""
        factor = linear_factor(self.step, self.last_step)
        if factor != self._lr_factor:
            self._lr_factor = factor
            self.network.lr_factor.fill_(factor)
        epoch, index = divmod(self.step, len(self.batches))
        if index == 0:
            self.batches.start(epoch)
        if self._dropout is not None:
            self._dropout.draw()
        losses = self._replay()
        self.step += 1
        return losses

    # ---- trials ------------------------------------------------------------------------------------------------------

    def _running(self) -> list[int]:
        return [trial for trial in self.trials if not self.outcomes[trial].has_ended]

    def _note_diverged(self) -> None:
        is_sound = (self.network.is_sound & self.network.weights.is_finite()).tolist()
        for trial, sound in zip(self.trials, is_sound, strict=True):
            outcome = self.outcomes[trial]
            outcome.diverged |= not sound and not outcome.has_ended

    def _prune(self, trials: Collection[int]) -> None:
        for trial in trials:
            if not 0 <= trial < len(self.outcomes):
                raise ValueError(
                    f"the judge ended trial {trial}: there are trials 0 to {len(self.outcomes) - 1}"
                )
            self.outcomes[trial].pruned |= not self.outcomes[trial].has_ended

    def _make_room(self) -> None:
        """Take out the trials that have ended, once they are many."""
        running = self._running()
        if not running or len(self.trials) - len(running) < _IDLE_SHARE * len(self.trials):
            return
        rows = torch.tensor([self.trials.index(trial) for trial in running], device=self.device)
        self.network = self.network.select(rows)
        self.batches.keep_trials(rows)
        if self._dropout is not None:
            self._dropout.keep_trials(rows)
        self.trials = running
        self._replay = self._captured_step()

    # ---- validation --------------------------------------------------------------------------------------------------

    def _validate(self, judge: StackJudge | None) -> None:
        evaluations = self._evaluations()
        for row, trial in enumerate(self.trials):
            evaluation = evaluations[trial]
            if evaluation is not None:
                validation = Validation(self.step, self.step / len(self.batches), evaluation)
                self.outcomes[trial].validations.append(validation)
                self._keep_best(trial, row)
        leader = self._leader()
        self._tell(leader, math.nan, evaluations[leader])
        if judge is not None and self.step < self.last_step:
            self._prune(judge(self.step // len(self.batches), evaluations))
        self._make_room()

    def _keep_best(self, trial: int, row: int) -> None:
        """Keep its weights for the scores by which its last validation is the best so far."""
        outcome = self.outcomes[trial]
        for score, weights in self._best.items():
            if outcome.best_by(score) is outcome.validations[-1]:
                weights.copy_trial_(trial, self.network.weights, row)

    def _evaluations(self) -> list[Evaluation | None]:
        """Of all trials, None for those that have ended, and for those that turn out to have diverged."""
        results: list[Evaluation | None] = [None] * len(self.outcomes)
        if self._running():
            limit = self._first.training.validation_examples
            of_rows = evaluate_stack(self.network, self._validation, limit=limit)
            by_trial = dict(zip(self.trials, of_rows, strict=True))
            self._note_diverged()  # now, as the scores may be the first to show it
            for trial in self._running():
                results[trial] = by_trial[trial]
        return results

    # ---- progress ----------------------------------------------------------------------------------------------------

    def _report(self, losses: Tensor) -> None:
        by_trial = dict(zip(self.trials, losses.tolist(), strict=True))
        self._note_diverged()
        leader = self._leader()
        self._tell(leader, by_trial[leader], None)

    def _leader(self) -> int:
        """The trial with the best validation so far; any before the first one."""
        cost = self._first.training.cost
        costs = {
            trial: cost(best.evaluation) if (best := self.outcomes[trial].best) else math.inf
            for trial in self._running() or self.trials
        }
        return min(costs, key=costs.__getitem__)

    def _tell(self, trial: int, loss: float, validation: Evaluation | None) -> None:
        progress = TrainingProgress(
            step=self.step,
            steps=self.last_step,
            epoch=self.step / len(self.batches),
            loss=loss,
            lr=self.outcomes[trial].experiment.training.lr * self._lr_factor,
            words_per_second=self._words_per_second(),
            condition=None,
            validation=validation,
        )
        self._watch(progress)

    def _words_per_second(self) -> float:
        """Of all trials together, since the last call."""
        then, step = self._since
        now = time.perf_counter()
        self._since = now, self.step
        words = (self.step - step) * self.batches.batch_size * len(self._running())
        return words / max(now - then, 1e-9)
