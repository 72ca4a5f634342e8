"""Training an n-gram language model: `fit(config, folder) -> Run`, resumable at any step to the identical result.

Everything that decides what comes next is in a checkpoint: weights, optimizers, learning rates, the place in the data,
the state of the random numbers and what the schedule remembers. Batches are a pure function of seed, epoch and index.
So a run that was killed continues as if nothing had happened, bit for bit on a CPU.

By the schedule "plateau" the learning rates fall when the validation score stops improving, and training stops when
that no longer helps. By "linear" they fall to zero over the whole run, whatever the scores are.

A run may be given a time instead of a number of steps, `training.seconds`. What it comes to then depends on how fast
the machine is, and a run that was interrupted goes on with the time that it has left, to no identical result.
"""

import json
import math
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

import zloss
from zloss.lab.configuration import ConfigError, differing, from_table, to_table
from zloss.lab.corpora import Corpus, MissingCorpusError
from zloss.lab.evaluation import Evaluation, evaluate, finite, is_made_large, require_score
from zloss.lab.networks import NetworkConfig, NgramNetwork
from zloss.lab.ngrams import NgramBatches
from zloss.lab.runs import Checkpoint, Run, RunError
from zloss.lab.stopwatch import Stopwatch

# What may be changed in the config of a run that has begun. All else is in the weights or the optimizers by then.
_CHANGEABLE = (
    "corpus",  # which may have moved; that it has the same words is checked
    "device",
    "training.epochs",
    "training.steps",
    "training.seconds",
    "training.validate_every",
    "training.stop_after",
    "training.checkpoint_every",
    "training.keep",
    "training.log_every",
    "training.graph",
)
_EVALUATION_SEED = 0  # runs with other seeds are judged by the same sample
# What torch says of a number that is too large for the type of a weight, such as a learning rate of 1e300.
_OVERFLOWS = "without overflow"
# Of the linear schedule. A learning rate is part of a captured CUDA graph, and each change captures anew.
_STAGES = 20
# After which a run is timed: in them kernels are compiled and the step is captured, once and for all runs of a process.
_UNTIMED_STEPS = 5
# Keys of a training that are counted in ones.
_COUNTS = (
    "batch_size",
    "epochs",
    "steps",
    "validate_every",
    "validation_examples",
    "stop_after",
    "checkpoint_every",
    "keep",
    "log_every",
)


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How to train. The defaults are those of the paper for Penn Treebank where it gives them."""

    batch_size: int = 250
    mode: Literal["running", "sentence"] = "running"  # contexts run across sentences, or are filled up before them
    optimizer: Literal["sgd", "adam"] = "sgd"  # of all layers but the output
    lr: float = 1.0
    output_lr: float = 20.0
    weight_decay: float = 0.0  # of the hidden layers
    output_weight_decay: float = 0.0  # of the head
    clip: float | None = None  # norm of the gradient of the whole network
    epochs: int | None = 20  # at most; where none, the schedule ends it
    steps: int | None = None  # at most, if fewer
    seconds: float | None = None  # of training steps at most; validations and checkpoints are not counted
    validate_every: int | None = None  # steps; an epoch where none
    validation_examples: int = 20_000
    score: str = "top_10_error"  # what decides: top_K_error, mean_rank, perplexity (lower is better) or mrr (higher)
    schedule: Literal["plateau", "linear"] = "plateau"  # of the learning rates; the next three are for plateau
    lr_factor: float = 0.5  # of all learning rates, when the score has not improved
    patience: int = 0  # so many validations in a row before that
    stop_after: int = 4  # lowerings in a row without an improvement; the last is the end, and is not tried
    checkpoint_every: int = 1000  # steps
    keep: int = 2  # newest checkpoints; the best stays too
    log_every: int = 100  # steps
    graph: bool = True  # on a GPU, replay the whole step as a CUDA graph wherever nothing in it waits for the device
    seed: int = 0

    def __post_init__(self) -> None:
        for name in _COUNTS:
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.patience < 0:
            raise ValueError(f"patience must be at least 0, got {self.patience}")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip must be > 0, or none, got {self.clip}")
        if self.schedule == "linear" and self.epochs is None and self.steps is None and self.seconds is None:
            raise ValueError("the linear schedule falls to zero over the whole training: give epochs, steps or seconds")
        for name in ("lr", "output_lr", "lr_factor"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ValueError(f"{name} must be a finite number > 0, got {getattr(self, name)}")
        if self.lr_factor >= 1:
            raise ValueError(f"lr_factor must be below 1, as learning rates are lowered by it, got {self.lr_factor}")
        if not 0 <= self.seed < 1 << 63:
            raise ValueError(f"seed must be from 0 to 2^63 - 1, got {self.seed}")
        for name in ("weight_decay", "output_weight_decay"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ValueError(f"{name} must be a finite number >= 0, got {getattr(self, name)}")
        if self.seconds is not None and not (math.isfinite(self.seconds) and self.seconds > 0):
            raise ValueError(f"seconds must be a finite number > 0, got {self.seconds}")

    def last_step(self, epoch_steps: int) -> float:
        """Where a run ends at the latest; infinity where no number of steps ends it."""
        limits = (None if self.epochs is None else self.epochs * epoch_steps, self.steps)
        return min((limit for limit in limits if limit is not None), default=math.inf)

    def validates_at(self, step: int, epoch_steps: int) -> bool:
        """Whether the network is judged after so many steps: at regular intervals, and at the end."""
        return step == self.last_step(epoch_steps) or step % (self.validate_every or epoch_steps) == 0

    def cost(self, result: Evaluation) -> float:
        """The score that decides, as something to be made small."""
        score = result.score(self.score)
        return -score if is_made_large(self.score) else score


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that defines a run."""

    corpus: str  # folder of a prepared corpus
    network: NetworkConfig = field(default_factory=NetworkConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    device: str = "auto"  # a GPU where there is one


@dataclass
class Schedule:
    """What the learning rates and the end of training depend on."""

    factor: float = 1.0  # of the learning rates
    best: float | None = None
    best_step: int | None = None
    waiting: int = 0  # validations since the best
    lowered: int = 0  # times since the best

    def update(self, score: float, step: int, config: TrainingConfig) -> bool:
        """Take note of a validation score, lower being better; returns whether it is the best so far."""
        if self.best is None or score < self.best:
            self.best, self.best_step, self.waiting, self.lowered = score, step, 0, 0
            return True
        self.waiting += 1
        if config.schedule == "plateau" and self.waiting > config.patience:
            self.factor *= config.lr_factor
            self.waiting, self.lowered = 0, self.lowered + 1
        return False


def linear_factor(done: float, total: float) -> float:
    """Of the learning rates, after so many of all steps or seconds: from 1 towards 0 in equal stages.

    >>> [linear_factor(step, 100) for step in (0, 4, 5, 50, 99)]
    [1.0, 1.0, 0.95, 0.5, 0.05]
    """
    return max(1, _STAGES - _STAGES * done // total) / _STAGES


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What a watcher is told, every `log_every` steps and after each validation."""

    step: int
    steps: float  # where it will end, as far as can be told; infinity where the scores decide that
    epoch: float
    loss: float
    lr: float
    words_per_second: float
    condition: float | None  # of the factors of the output layer
    validation: Evaluation | None = None


Watcher = Callable[[Progress], None]


class DivergedError(RunError):
    """The loss is no longer a number: `reason` says where, the message also what to do with the run."""

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(reason + advice)
        self.reason = reason


def fit(config: Experiment, folder: Path, *, resume: bool = False, watch: Watcher | None = None) -> Run:
    """Train until the schedule ends, and return the run. With `resume`, go on where the run in `folder` stopped."""
    run = Run(folder)
    if resume and to_table(config) != to_table(resumed(folder)):  # which knows keys that a run is too old for
        raise RunError(f"{folder} was started with another config: resume it with its own, or start a new run")
    if resume and run.steps():
        _require_continued(config, run)
    if not resume:
        run.require_new()
    trainer = Trainer(config, run, watch or (lambda _: None))  # before anything is written: it may well fail
    with run.alone():
        if not resume:
            run.create(to_table(config))
        elif run.steps():
            trainer.restore(run.load(device=str(trainer.device)))
        else:  # it was stopped before its first checkpoint
            run.forget_after(0)
        try:
            trainer.train()
        finally:
            run.close()
    return run


def resumed(folder: Path) -> Experiment:
    """The config of a run, to resume it with."""
    run = Run.open(folder)
    try:
        return from_table(Experiment, run.config)
    except ConfigError as error:
        raise ConfigError(f"{folder / 'config.json'}: {error}") from error


def _require_continued(config: Experiment, run: Run) -> None:
    """Refuse a config that was changed where the checkpoint would not follow."""
    before = run.state().get("config")
    if before is None:
        warnings.warn(
            f"the checkpoint of {run.folder} is of an early version, which did not note its config: whether "
            f"{run.folder / 'config.json'} is what it was trained with cannot be checked",
            stacklevel=3,
        )
        return
    try:
        trained_with = to_table(from_table(Experiment, before))
    except ConfigError as error:
        raise run.unusable(run.steps()[-1], error) from error
    for key, (old, new) in differing(trained_with, to_table(config)).items():
        if key not in _CHANGEABLE:
            may = ", ".join(name.rpartition(".")[2] for name in _CHANGEABLE)
            raise RunError(
                f"{key} in {run.folder / 'config.json'} is {json.dumps(new)}, and the run was trained with "
                f"{json.dumps(old)}: change it back, or start a new run (what may be changed is {may})"
            )


class Trainer:
    """A network with its data, optimizers and schedule, on its way through the steps of a run."""

    def __init__(self, config: Experiment, run: Run, watch: Watcher) -> None:
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
        return self.step >= self.last_step or (seconds is not None and self.stopwatch.lap() >= seconds)

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
        never_waits = training.optimizer == "sgd" and training.clip is None and self.network.head.is_capturable
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
            {"kind": "training", "step": self.step, "epoch": progress.epoch, "loss": value, "lr": progress.lr}
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

    def _progress(self, loss: float, validation: Evaluation | None = None) -> Progress:
        then, step = self._since
        now = time.perf_counter()
        words = (self.step - step) * self.config.training.batch_size
        self._since = (now, self.step)
        with self._refusal_explained():
            condition = None if self._factored is None else self._factored.condition()
        return Progress(
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
        tensors = {f"network.{name}": tensor.detach() for name, tensor in self.network.state_dict().items()}
        tensors |= {f"random.{name}": state for name, state in random_states(self.device).items()}
        options = []
        for number, optimizer in enumerate(self.optimizers):
            of_optimizer, rest = split_state(optimizer)
            tensors |= {f"optimizer.{number}.{name}": tensor for name, tensor in of_optimizer.items()}
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
            optimizer.load_state_dict(joined_state(of_optimizer, checkpoint.state["optimizers"][number]))
        self.schedule = Schedule(**{"best_step": self.run.best_step} | checkpoint.state["schedule"])
        self.stopwatch = Stopwatch(checkpoint.state.get("seconds", 0.0))  # early ones had none
        set_random_states(with_prefix(checkpoint.tensors, "random."), self.device)

    @property
    def num_classes(self) -> int:
        """C."""
        return self.network.head.num_classes


@contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Ctrl-C is noted instead of raised, for the block to ask for at a good moment; a second one is raised at once.

    In the middle of a step some layers would have moved and others not.
    """
    asked: list[bool] = []

    def note(_signal: int, _frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(True)

    if threading.current_thread() is not threading.main_thread():  # which alone hears of signals
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, before)


def device_of(name: str) -> torch.device:
    """The device by name; "auto" is a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise RunError(f"there is no device {name!r} to train on: use auto, cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise RunError(f"device {name!r} is not here: torch finds no GPU on this machine; use auto or cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise RunError(
            f"device {name!r} is not here: torch finds {torch.cuda.device_count()} GPUs, counted from cuda:0"
        )
    return device


def open_corpus(config: Experiment, run: Run) -> Corpus:
    """The corpus of an experiment; where it is gone, a run that has begun can be told where it is now."""
    try:
        return Corpus.open(config.corpus)
    except MissingCorpusError as error:
        noted = run.folder / "config.json"
        if not noted.exists():
            raise
        raise MissingCorpusError(f"{error}, or change `corpus` in {noted} where it has moved") from error


def batches_of(
    corpus: Corpus, split: str, config: Experiment, device: torch.device, *, shuffle: bool = True
) -> NgramBatches:
    """The n-grams of a split, as the experiment wants them."""
    return NgramBatches(
        corpus.split(split),
        context=config.network.context,
        batch_size=config.training.batch_size if shuffle else 1024,
        boundary=corpus.boundary,
        padding=corpus.padding,
        mode=config.training.mode,
        device=device,
        seed=config.training.seed if shuffle else _EVALUATION_SEED,
        shuffle=shuffle,
    )


def build_network(config: Experiment, corpus: Corpus, device: torch.device) -> NgramNetwork:
    """The network of an experiment, with new weights."""
    counts = torch.tensor(corpus.vocabulary.counts)
    return NgramNetwork(config.network, len(corpus.vocabulary), counts=counts, device=device)


def build_optimizers(config: Experiment, network: NgramNetwork) -> list[Optimizer]:
    """The optimizers of an experiment, for its network."""
    training = config.training
    return network.optimizers(
        training.optimizer,
        lr=training.lr,
        output_lr=training.output_lr,
        weight_decay=training.weight_decay,
        output_weight_decay=training.output_weight_decay,
        forms_gradients=training.clip is not None,
    )


def load_network(network: NgramNetwork, checkpoint: Checkpoint, corpus: Corpus) -> None:
    """Give a network the weights of a checkpoint, if these are for the words of the corpus."""
    classes, vocabulary = checkpoint.state.get("classes"), checkpoint.state.get("vocabulary")  # early ones had none
    if classes != network.head.num_classes or vocabulary not in (None, corpus.vocabulary_sha256):
        raise RunError(
            f"the checkpoint has {classes} classes, the vocabulary {network.head.num_classes}, or other words: "
            f"{corpus.folder} is not the corpus that the run was trained on"
        )
    try:
        network.load_state_dict(with_prefix(checkpoint.tensors, "network."))
    except RuntimeError as error:
        fault = str(error).splitlines()[-1].strip()
        raise RunError(f"the config is not the one these weights were trained with: {fault}") from error


def with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Those whose names start so, under the rest of their names."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def split_state(optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state of an optimizer as tensors by name, and the rest for JSON."""
    state = optimizer.state_dict()
    flat = {f"{number}.{name}": value for number, values in state["state"].items() for name, value in values.items()}
    tensors = {path: value for path, value in flat.items() if isinstance(value, Tensor)}
    numbers = {path: value for path, value in flat.items() if path not in tensors}
    return tensors, {"groups": state["param_groups"], "numbers": numbers}


def joined_state(tensors: dict[str, Tensor], rest: dict[str, Any]) -> dict[str, Any]:
    """What `split_state` took apart."""
    state: dict[int, dict[str, Any]] = {}
    for path, value in (tensors | rest["numbers"]).items():
        number, _, name = path.partition(".")
        state.setdefault(int(number), {})[name] = value
    return {"state": state, "param_groups": rest["groups"]}


def random_states(device: torch.device) -> dict[str, Tensor]:
    """The states of torch's random numbers."""
    states = {"cpu": torch.get_rng_state()}
    return states | {"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else states


def set_random_states(states: dict[str, Tensor], device: torch.device) -> None:
    """Go on with these random numbers."""
    torch.set_rng_state(states["cpu"].cpu())
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"].cpu(), device)
