"""The training of a network: steps, validations, the schedule and checkpoints.

A checkpoint has everything that the rest of a training depends on. That is the number of steps and the states of the
weights, the optimizers, the schedule and the random numbers. The data need no state, because a batch is a pure function
of seed, epoch and index.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

import torch
from torch import Tensor

import zloss
from zloss.inputs import NotFiniteError
from zloss_lab.checkpoints import CheckpointState, RunCheckpoint
from zloss_lab.configuration import to_table
from zloss_lab.evaluation import Evaluation, evaluate, finite, require_score
from zloss_lab.run_starts import note_start
from zloss_lab.runs import Run, RunError
from zloss_lab.training.assembly import (
    batches_of,
    build_network,
    build_optimizers,
    device_of,
    load_network,
    open_corpus,
)
from zloss_lab.training.clock import TrainingClock
from zloss_lab.training.experiment import Experiment
from zloss_lab.training.interrupts import deferred_interrupt
from zloss_lab.training.progress import TrainingProgress, TrainingWatcher
from zloss_lab.training.schedule import Schedule, linear_factor
from zloss_lab.training.state import (
    random_states,
    restore_optimizers,
    set_random_states,
    tensors_of,
    with_prefix,
)
from zloss_lab.training.stepping import TrainingStepper
from zloss_lab.training.z_scores import z_scores_of

# Part of torch's message about a number that is too large for the type of a weight, such as a learning rate of 1e300.
_OVERFLOWS = "without overflow"


class DivergedError(RunError):
    """The loss is no longer a finite number.

    Args:
        reason: the step and the fault.
        advice: a sentence that is added to the message, with advice to the user.
    """

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(reason + advice)
        self.reason = reason


class Trainer:
    """A network in training, with its data, optimizers and schedule.

    Args:
        config: the experiment.
        run: the folder for metrics and checkpoints.
        watch: called with progress reports.
    """

    def __init__(self, config: Experiment, run: Run, watch: TrainingWatcher) -> None:
        self.config, self.run, self.watch = config, run, watch
        self.device = device_of(config.device)
        torch.manual_seed(config.training.seed)
        corpus = self.corpus = open_corpus(config, run)
        self.batches = batches_of(corpus, "train", config, self.device)
        self.validation = batches_of(corpus, "valid", config, self.device, shuffle=False)
        self.network = build_network(config, corpus, self.device)
        self.optimizers = build_optimizers(config, self.network)
        require_score(config.training.score, is_likelihood=self.network.head.is_likelihood)
        self.schedule, self.step = Schedule(), 0
        self.clock, self._is_over = TrainingClock(), False
        self._last_report = (time.perf_counter(), 0)  # time and step
        self._logged_refactors = 0
        self._stepper = TrainingStepper(
            config.training, self.network, self.optimizers, self.batches
        )

    @property
    def last_step(self) -> float:
        """The largest number of steps of the run; infinity if it has no limit of steps or epochs."""
        return self.config.training.last_step(len(self.batches))

    def train(self) -> None:
        """Take all steps that are left. Ctrl-C ends training after the current step, with a checkpoint."""
        self._is_over = self._ends_here()
        if not self._is_over:
            note_start(self.run.folder, self.step, self.device)
        with deferred_interrupt() as is_asked_to_stop:
            while not self._is_over and self.schedule.lowered < self.config.training.stop_after:
                loss = self.take_step()
                self._after_step(loss)
                if is_asked_to_stop():
                    self._require_finite(loss)
                    self._save_once()
                    raise KeyboardInterrupt
        self._save_once()

    def _ends_here(self) -> bool:
        """Return whether all steps have been taken or the time is up."""
        seconds = self.config.training.seconds
        return self.step >= self.last_step or (seconds is not None and self.clock.read() >= seconds)

    def take_step(self) -> Tensor:
        """Take the next step, and return its loss, which stays on the device."""
        if self.config.training.schedule == "linear":
            self._lower_rates_linearly()
        with self._refusal_explained():
            loss = self._stepper.take(self.step)
        self.step += 1
        return loss

    def _after_step(self, loss: Tensor) -> None:
        training = self.config.training
        self.clock.tick(self.step)
        self._is_over = self._ends_here()
        logs = self._is_over or self.step % training.log_every == 0
        validates = self._is_over or training.validates_at(self.step, len(self.batches))
        saves = self.step % training.checkpoint_every == 0
        if logs or validates or saves:
            # This waits for the device, so that the stopwatch counts complete steps.
            self._require_finite(loss)
            self.clock.pause()
        if logs:
            self._log(loss.item())
        is_best = validates and self._validate()
        if is_best or saves:
            self._save_once()
        self.clock.go_on(self.step)

    def _require_finite(self, loss: Tensor) -> None:
        if not loss.isfinite():
            raise self._diverged(f"the loss is {loss.item()}")

    @contextmanager
    def _refusal_explained(self) -> Iterator[None]:
        """Turn the refusal of infinite or far too large numbers into a `DivergedError`, any other into a `RunError`.

        On a GPU the numbers may be some steps old.
        """
        try:
            yield
        except (NotFiniteError, zloss.RefusedStepError) as error:
            raise self._diverged(str(error)) from error
        except ValueError as error:  # nothing that other learning rates would change
            raise RunError(
                f"step {self.step}: {error}; the run stays as it was at its last checkpoint, in {self.run.folder}"
            ) from error
        except RuntimeError as error:
            if _OVERFLOWS not in str(error):
                raise
            raise self._diverged(str(error)) from error

    def _diverged(self, reason: str) -> DivergedError:
        """Return the error for a training that diverged, with advice."""
        return DivergedError(
            f"step {self.step}: {reason}",
            ". Lower the learning rates (lr, output_lr) or clip the gradient; the run stays as it was at its last "
            f"checkpoint, in {self.run.folder}",
        )

    def _log(self, value: float) -> None:
        progress = self._progress(value)
        seconds = {"seconds": round(self.clock.seconds, 3)}
        self.run.log(progress.to_metrics() | seconds | self._factor_metrics(progress.condition))
        self.watch(progress)

    def _factor_metrics(self, condition: float | None) -> dict[str, float]:
        """Return the condition number of the factors, and how often they were renewed since the last line."""
        layer = self._factored
        if layer is None or condition is None:
            return {}
        before, self._logged_refactors = self._logged_refactors, layer.refactors
        return {"condition": condition, "refactors": layer.refactors - before}

    @property
    def _factored(self) -> zloss.FactoredLinear | None:
        layer = getattr(self.network.head, "layer", None)
        return layer if isinstance(layer, zloss.FactoredLinear) else None

    def _progress(self, loss: float, validation: Evaluation | None = None) -> TrainingProgress:
        then, step = self._last_report
        now = time.perf_counter()
        words = (self.step - step) * self.config.training.batch_size
        self._last_report = (now, self.step)
        with self._refusal_explained():
            condition = None if self._factored is None else self._factored.condition()
            is_log = validation is None and self.step > 0
            z_scores = z_scores_of(self.network, self.batches, self.step - 1) if is_log else None
        return TrainingProgress(
            step=self.step,
            steps=self._expected_steps(),
            epoch=self.step / len(self.batches),
            loss=loss,
            lr=self.config.training.lr * self.schedule.factor,
            words_per_second=words / max(now - then, 1e-9),
            condition=condition,
            z_scores=z_scores,
            validation=validation,
        )

    def _expected_steps(self) -> float:
        """Return the number of steps that the run will have, estimated from the time of its steps so far."""
        budget, spent = self.config.training.seconds, self.clock.seconds
        if self._is_over:
            return self.step
        if budget is None or not spent:
            return self.last_step
        return min(self.last_step, max(self.step + 1, round(self.step * budget / spent)))

    def _validate(self) -> bool:
        """Validate, and return whether the score is the best so far."""
        training = self.config.training
        with self._refusal_explained():
            result = evaluate(self.network, self.validation, limit=training.validation_examples)
        is_best = self.schedule.update(training.cost(result), self.step, training)
        self._set_rates()
        self.run.log(
            {"kind": "validation", "step": self.step, "epoch": self.step / len(self.batches)}
            | {"seconds": round(self.clock.seconds, 3)}
            | finite(result.to_record())
        )
        self.watch(self._progress(math.nan, result))
        return is_best

    def _lower_rates_linearly(self) -> None:
        factor, seconds = linear_factor(self.step, self.last_step), self.config.training.seconds
        if seconds is not None:
            factor = min(factor, linear_factor(self.clock.seconds, seconds))
        if factor != self.schedule.factor:
            self.schedule.factor = factor
            self._set_rates()

    def _set_rates(self) -> None:
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group.setdefault("initial_lr", group["lr"])
                group["lr"] = group["initial_lr"] * self.schedule.factor

    # ---- checkpoints -------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write a checkpoint of this step."""
        tensors = {
            f"network.{name}": tensor.detach() for name, tensor in self.network.state_dict().items()
        }
        tensors |= {f"random.{name}": state for name, state in random_states(self.device).items()}
        state = CheckpointState(
            step=self.step,
            seconds=self.clock.read(),
            schedule=self.schedule,
            classes=self.network.head.num_classes,
            vocabulary=self.corpus.vocabulary_sha256,
            config=to_table(self.config),
        )
        tensors |= tensors_of(self.optimizers)
        self.run.save(RunCheckpoint(tensors, state), keep=self.config.training.keep)

    def _save_once(self) -> None:
        if self.step in self.run.steps():
            self.run.drop_old(keep=self.config.training.keep)
        else:
            self.save()

    def restore(self, checkpoint: RunCheckpoint) -> None:
        """Continue from a checkpoint."""
        load_network(self.network, checkpoint, self.corpus)
        try:
            self._restore_rest(checkpoint)
        except (LookupError, RuntimeError, ValueError) as error:
            raise self.run.unusable(checkpoint.step, f"{type(error).__name__}, {error}") from error
        self.step = checkpoint.step
        self.run.forget_after(self.step)
        self._last_report = (time.perf_counter(), self.step)

    def _restore_rest(self, checkpoint: RunCheckpoint) -> None:
        """Restore the optimizers, the schedule, the clock and the random numbers."""
        restore_optimizers(self.optimizers, checkpoint.tensors)
        self.schedule = Schedule(**asdict(checkpoint.state.schedule))
        self._set_rates()
        self.clock = TrainingClock(checkpoint.state.seconds, checkpoint.step)
        set_random_states(with_prefix(checkpoint.tensors, "random."), self.device)
