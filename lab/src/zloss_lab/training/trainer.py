"""A network on its way through the steps of a run.

Everything that decides what comes next is in a checkpoint: weights, optimizers, learning rates, the place in the data,
the state of the random numbers and what the schedule remembers. Batches are a pure function of seed, epoch and index.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

import torch
from torch import Tensor

import zloss
from zloss_lab.configuration import to_table
from zloss_lab.evaluation import Evaluation, evaluate, finite, require_score
from zloss_lab.runs import Checkpoint, Run, RunError
from zloss_lab.stopwatch import Stopwatch
from zloss_lab.training.assembly import (
    batches_of,
    build_network,
    build_optimizers,
    device_of,
    load_network,
    open_corpus,
)
from zloss_lab.training.experiment import Experiment
from zloss_lab.training.interrupts import deferred_interrupt
from zloss_lab.training.progress import TrainingProgress, TrainingWatcher
from zloss_lab.training.schedule import Schedule, linear_factor
from zloss_lab.training.state import (
    joined_state,
    random_states,
    set_random_states,
    split_state,
    with_prefix,
)

# What torch says of a number that is too large for the type of a weight, such as a learning rate of 1e300.
_OVERFLOWS = "without overflow"
# After which a run is timed: in them kernels are compiled and the step is captured, once and for all runs of a process.
_UNTIMED_STEPS = 5


class DivergedError(RunError):
    """The loss is no longer a number: `reason` says where, the message also what to do with the run."""

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(reason + advice)
        self.reason = reason


class Trainer:
    """A network with its data, optimizers and schedule, on its way through the steps of a run."""

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
        self.stopwatch = Stopwatch()  # for steps alone
        self._timed_from, self._is_over = _UNTIMED_STEPS, False
        self._since = (time.perf_counter(), 0)
        self._logged_refactors = 0
        # The next batch by its index on the device, where a captured step counts it up, and which step that would be.
        self._index, self._next = torch.zeros((), dtype=torch.long, device=self.device), -1
        self._replayed = zloss.CapturedStep(self._take_indexed_step, optimizers=self.optimizers)

    @property
    def last_step(self) -> float:
        """Where the run ends at the latest; infinity where no number of steps ends it."""
        return self.config.training.last_step(len(self.batches))

    def train(self) -> None:
        """Take all steps that are left. On Ctrl-C finish the step and save first."""
        self._is_over = self._ends_here()
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
        """Whether all steps have been taken, or the time is up."""
        seconds = self.config.training.seconds
        return self.step >= self.last_step or (
            seconds is not None and self.stopwatch.lap() >= seconds
        )

    def take_step(self) -> Tensor:
        """One step of all optimizers; the loss stays on the device."""
        if self.config.training.schedule == "linear":
            self._lower_rates_linearly()
        epoch, index = divmod(self.step, len(self.batches))
        if self.is_captured:
            if index == 0 or self.step != self._next:
                self.batches.start(epoch)
                self._index.fill_(index)
            with self._refusal_explained():
                loss, self._next = self._replayed(), self.step + 1
        else:
            batch = self.batches.batch(epoch, index)
            with self._refusal_explained():
                loss = self._learn(*batch)
        self.step += 1
        return loss

    @property
    def is_captured(self) -> bool:
        """Whether steps are replayed from a CUDA graph: nothing in them may wait for the device, as sparse Adam does,
        and the norm of a row-sparse gradient.
        """
        training = self.config.training
        never_waits = (
            training.optimizer == "sgd"
            and training.clip is None
            and self.network.head.is_capturable
        )
        return training.graph and self.device.type == "cuda" and never_waits

    def _take_indexed_step(self) -> Tensor:
        batch = self.batches.at(self._index)
        self._index.add_(1)
        return self._learn(*batch)

    def _learn(self, context: Tensor, target: Tensor) -> Tensor:
        self.network.train()
        return self.network.learn(context, target, self.optimizers, clip=self.config.training.clip)

    def _after_step(self, loss: Tensor) -> None:
        training = self.config.training
        self._is_over = self._ends_here()
        logs = self._is_over or self.step % training.log_every == 0
        validates = self._is_over or training.validates_at(self.step, len(self.batches))
        saves = self.step % training.checkpoint_every == 0
        if logs or validates or saves:  # what has diverged is not kept
            self._require_finite(loss)
            self.stopwatch.pause()  # now that the device has done what it was told to
        if logs:
            self._log(loss.item())
        is_best = validates and self._validate()
        if is_best or saves:
            self._save_once()
        if not self.stopwatch.is_running and self.step >= self._timed_from:
            self.stopwatch.start()

    def _require_finite(self, loss: Tensor) -> None:
        if not loss.isfinite():
            raise self._diverged(f"the loss is {loss.item()}")

    @contextmanager
    def _refusal_explained(self) -> Iterator[None]:
        """For whatever asks a layer: it refuses numbers beyond reason, on a GPU maybe those of some steps ago."""
        try:
            yield
        except (ValueError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and _OVERFLOWS not in str(error):
                raise
            raise self._diverged(str(error)) from error

    def _diverged(self, reason: str) -> DivergedError:
        """What to do about it."""
        return DivergedError(
            f"step {self.step}: {reason}",
            ". Lower the learning rates (lr, output_lr) or clip the gradient; the run stays as it was at its last "
            f"checkpoint, in {self.run.folder}",
        )

    def _log(self, value: float) -> None:
        progress = self._progress(value)
        self.run.log(
            {
                "kind": "training",
                "step": self.step,
                "epoch": progress.epoch,
                "loss": value,
                "lr": progress.lr,
            }
            | self._of_factors(progress.condition)
        )
        self.watch(progress)

    def _of_factors(self, condition: float | None) -> dict[str, float]:
        """Their condition, and how often they were renewed since the last line."""
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
        then, step = self._since
        now = time.perf_counter()
        words = (self.step - step) * self.config.training.batch_size
        self._since = (now, self.step)
        with self._refusal_explained():
            condition = None if self._factored is None else self._factored.condition()
        return TrainingProgress(
            step=self.step,
            steps=self._expected_steps(),
            epoch=self.step / len(self.batches),
            loss=loss,
            lr=self.config.training.lr * self.schedule.factor,
            words_per_second=words / max(now - then, 1e-9),
            condition=condition,
            validation=validation,
        )

    def _expected_steps(self) -> float:
        """Where the run will end, as far as can be told from the time that its steps took so far."""
        budget, spent = self.config.training.seconds, self.stopwatch.seconds
        if self._is_over:
            return self.step
        if budget is None or not spent:
            return self.last_step
        return min(self.last_step, max(self.step + 1, round(self.step * budget / spent)))

    def _validate(self) -> bool:
        """Whether the score is the best so far."""
        training = self.config.training
        with self._refusal_explained():
            result = evaluate(self.network, self.validation, limit=training.validation_examples)
        is_best = self.schedule.update(training.cost(result), self.step, training)
        self._set_rates()
        self.run.log(
            {"kind": "validation", "step": self.step, "epoch": self.step / len(self.batches)}
            | finite(result.to_record())
        )
        self.watch(self._progress(math.nan, result))
        return is_best

    def _lower_rates_linearly(self) -> None:
        factor, seconds = linear_factor(self.step, self.last_step), self.config.training.seconds
        if seconds is not None:
            factor = min(factor, linear_factor(self.stopwatch.seconds, seconds))
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
        options = []
        for number, optimizer in enumerate(self.optimizers):
            of_optimizer, rest = split_state(optimizer)
            tensors |= {
                f"optimizer.{number}.{name}": tensor for name, tensor in of_optimizer.items()
            }
            options.append(rest)
        state = {
            "step": self.step,
            "seconds": self.stopwatch.lap(),
            "schedule": asdict(self.schedule),
            "optimizers": options,
            "classes": self.num_classes,
            "vocabulary": self.corpus.vocabulary_sha256,
            "config": to_table(self.config),
        }
        self.run.save(Checkpoint(self.step, tensors, state), keep=self.config.training.keep)

    def _save_once(self) -> None:
        if self.step in self.run.steps():
            self.run.drop_old(keep=self.config.training.keep)
        else:
            self.save()

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go back to where a checkpoint was written."""
        load_network(self.network, checkpoint, self.corpus)
        try:
            self._restore_rest(checkpoint)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise self.run.unusable(checkpoint.step, f"{type(error).__name__}, {error}") from error
        self.step = checkpoint.step
        self._timed_from = self.step + _UNTIMED_STEPS
        self.run.forget_after(self.step)
        self._since = (time.perf_counter(), self.step)

    def _restore_rest(self, checkpoint: Checkpoint) -> None:
        """What there is beside the weights."""
        for number, optimizer in enumerate(self.optimizers):
            of_optimizer = with_prefix(checkpoint.tensors, f"optimizer.{number}.")
            optimizer.load_state_dict(
                joined_state(of_optimizer, checkpoint.state["optimizers"][number])
            )
        self.schedule = Schedule(**{"best_step": self.run.best_step} | checkpoint.state["schedule"])
        self.stopwatch = Stopwatch(checkpoint.state.get("seconds", 0.0))  # early ones had none
        set_random_states(with_prefix(checkpoint.tensors, "random."), self.device)

    @property
    def num_classes(self) -> int:
        """C."""
        return self.network.head.num_classes
