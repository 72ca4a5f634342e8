"""Training of a stack: epochs, validations, and trials that end before the others.

A trial ends early when its loss, its weights or its scores of targets are no longer finite. It also ends when the
caller's judge ends it after a validation. From then on it is ignored. When a good part of the stack is idle, the trials
that have ended are taken out.

The other trials go on as if all were still there. They are equal to the last bit on a CPU if a batch fills whole vector
registers, such as 32 or 256 examples. Only then does torch compute all elements of a tensor in the same way.

On a GPU, two trainings of one trial differ in their last bits, because the embeddings add up rows in no fixed order.
Under the Z-loss such differences can grow, because its gradient is divided by the deviation of the logits. If dropout
leaves next to nothing of a narrow layer, the validations may differ, with CUDA graphs and without.
"""

import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
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
from zloss_lab.sidebyside.outcomes import TrialOutcome, Validation
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

# The share of a stack that may be idle before it is made smaller, which copies its weights and captures its step anew.
_IDLE_SHARE = 0.25

# Called with the number of epochs done and the latest validation of every trial, None for trials that have ended;
# returns the trials to end.
StackJudge = Callable[[int, list[Evaluation | None]], Collection[int]]


class SideBySide:
    """Experiments that are trained together.

    Args:
        experiments: the trials, which differ in some keys only: see `zloss_lab.sidebyside.trial_settings`.
        scores: more scores beside `training.score`. For each score, the best weights of every trial are kept, which
            takes a copy of all weights.
        watch: called with the progress every `training.log_every` steps and after each validation. The words per second
            are of all trials, all other numbers of the trial with the best validation.
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
        self._first = experiments[0]  # for all settings that the trials share
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
        # Weights of all trials by score, each trial at its best validation.
        kept = dict.fromkeys((self._first.training.score, *scores))
        self._best = {score: self.network.weights.clone() for score in kept}
        self.trials = list(range(len(experiments)))  # the numbers of the trials in the stack
        self._lr_factor = 1.0
        self._replay = self._captured_step()
        self._since = time.perf_counter(), 0  # the time and the step of the last report of speed

    @property
    def last_step(self) -> float:
        """The step at which training ends."""
        return self._first.training.last_step(len(self.batches))

    def train(self, judge: StackJudge | None = None) -> list[TrialOutcome]:
        """Take all steps. After each validation except the last, the judge returns the trials to end."""
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
        """Evaluate trials on a split, each with the weights of its best validation. A trial without one gives None.

        Args:
            split: the name of the split.
            score: the score by which the weights are best: `training.score` (the default), or one of `scores`.
            trials: the trials to evaluate; by default all.
            limit: the most examples to take, in the same sample for all trials; by default all examples.
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
        """Yield the network of each trial, with the weights from which `fit` would start."""
        for outcome in self.outcomes:
            torch.manual_seed(outcome.experiment.training.seed)
            yield build_network(outcome.experiment, self._corpus, self.device)

    def _stack_of(self, weights: StackedWeights) -> StackedNetwork:
        """Return a stack of all trials with these weights, with trials that have ended."""
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
        # Not a method: a stack that refers to itself would keep its memory until Python collects cycles.
        network, batches, dropout = self.network, self.batches, self._dropout

        def step() -> Tensor:
            return network.learn(*batches.next(), dropout.of_layers() if dropout else ())

        is_captured = self.device.type == "cuda" and self._first.training.graph
        return zloss.CapturedStep(step) if is_captured else step

    def take_step(self) -> Tensor:  # (trials in the stack,)
        """Take one step of all trials, and return their losses, on the device."""
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
        """Take out the trials that have ended, if they are a good part of the stack."""
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
        """Copy the weights of a trial for every score by which its last validation is its best."""
        outcome = self.outcomes[trial]
        for score, weights in self._best.items():
            if outcome.best_by(score) is outcome.validations[-1]:
                weights.copy_trial_(trial, self.network.weights, row)

    def _evaluations(self) -> list[Evaluation | None]:
        """Return the evaluation of every trial; None if it has ended, or if the scores show that it has diverged."""
        results: list[Evaluation | None] = [None] * len(self.outcomes)
        if self._running():
            limit = self._first.training.validation_examples
            of_rows = evaluate_stack(self.network, self._validation, limit=limit)
            by_trial = dict(zip(self.trials, of_rows, strict=True))
            self._note_diverged()  # again, because the scores may be the first to show it
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
        """Return the trial with the best validation so far; any trial before the first validation."""
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
        """Return the words per second of all trials together, since the last call."""
        then, step = self._since
        now = time.perf_counter()
        self._since = now, self.step
        words = (self.step - step) * self.batches.batch_size * len(self._running())
        return words / max(now - then, 1e-9)
