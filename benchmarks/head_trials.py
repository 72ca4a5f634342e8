"""Trials of heads: the schema of a record, the training behind it, and the file that is continued.

A trial trains a small network with one head for a fixed number of steps. All rates fall linearly to a fiftieth. The
score is recall@20 on the validation examples; for several tags a text it is precision@5.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import zloss
from benchmarks.head_corpora import WIDTH, CorpusName, Examples, Splits, load
from zloss.heads.defaults import OptimizerName
from zloss.inputs import NotFiniteError
from zloss_lab.configuration import to_table
from zloss_lab.records import Recordable, RecordKey, provenance, read_records_as, write_records

BATCH = 128
# A head that computes all logits, or a product of its whole matrix, takes fewer steps in the same time.
_STEPS: Mapping[CorpusName, tuple[int, int]] = {
    "ptb": (800, 400),
    "yoochoose": (800, 400),
    "diginetica": (800, 200),
    "citeulike": (480, 160),
}
_SLOW_HEADS = ("dense", "gram")
SEARCHED, TESTED = 0, 1  # the seeds of searches, and of looks at the test examples
_LAST_RATE = 0.02
_RANKED_TOGETHER = 500
_NO_SCORE = 1e-4  # of a training that diverged


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A head with everything that a search may change."""

    head: str
    loss: str
    optimizer: OptimizerName
    lr: float
    trunk_lr: float = 3e-3  # Adam's, of all layers below the head
    scale: float = 1.0  # factor of the initial weights of the head; biases keep their start
    options: Mapping[str, Any] = field(default_factory=dict)

    def built(self, data: Splits) -> zloss.Head:
        """Return a new head for a corpus. The option `a_factor` multiplies the `a` that the guides advise."""
        options = dict(self.options)
        if self.loss == "z_loss":
            options["a"] = options.get("a_factor", 1.0) * advised_a(data)
            options.pop("a_factor", None)
        config = zloss.HeadConfig(head=self.head, loss=self.loss, options=options)
        head = config.build(WIDTH, data.classes, counts=data.counts)
        _scale(head, self.scale)
        return head


def steps_of(corpus: CorpusName, head: str) -> int:
    """Return the steps of a trial, which makes trials of all heads take roughly the same time."""
    return _STEPS[corpus][head in _SLOW_HEADS]


def advised_a(data: Splits) -> float:
    """Return 10 / sqrt(H) for items, whose frequencies are alike, and 10 / sqrt(C) for words and tags."""
    is_items = data.name in ("yoochoose", "diginetica")
    return float(10 / (WIDTH if is_items else data.classes) ** 0.5)


@dataclass(frozen=True, kw_only=True)
class HeadTrial(Recordable):
    """The result of a trial. `test` is there only for settings that were chosen before."""

    corpus: CorpusName
    setting: Setting
    steps: int
    seed: int
    score: float  # on the validation examples
    validation: Mapping[str, float]
    test: Mapping[str, float] | None
    train_loss: (
        float | None
    )  # the mean over the last tenth of all steps; None if the training diverged
    cpu_s: float  # processor time of all steps, without evaluation
    device: str
    versions: Mapping[str, str]
    commit: str

    @property
    def key(self) -> RecordKey:
        """The corpus, the setting, the steps and the seed."""
        return trial_key(self.corpus, self.setting, self.steps, self.seed)


def trial_key(corpus: str, setting: Setting, steps: int, seed: int) -> RecordKey:
    """Return the values that identify a trial."""
    options = tuple(sorted(setting.options.items()))
    rest = {name: value for name, value in to_table(setting).items() if name != "options"}
    return (corpus, *rest.values(), options, steps, seed)


class TimeUp(Exception):
    """No further trial fits into the time."""


class Trials:
    """The trials in a file, which runs those that are missing.

    Args:
        path: the file of records.
        data: the folder of the corpora.
        ends: the time at which no further trial begins, by `time.monotonic`.
    """

    def __init__(self, path: Path, data: Path, ends: float) -> None:
        self.path, self.ends = path, ends
        self.records = read_records_as(HeadTrial, path) if path.exists() else []
        self._corpus: Callable[[CorpusName], Splits] = cache(lambda name: load(name, data))

    def trial(
        self,
        corpus: CorpusName,
        setting: Setting,
        *,
        times: int = 1,
        seed: int = SEARCHED,
        tests: bool = False,
    ) -> HeadTrial:
        """Return a trial from the file, or run it. `times` multiplies its steps."""
        steps = times * steps_of(corpus, setting.head)
        if found := self.recorded(corpus, setting, times=times, seed=seed):
            return found
        if time.monotonic() > self.ends:
            raise TimeUp
        one = run_trial(
            self._corpus(corpus),
            setting,
            steps=steps,
            seed=seed,
            tests=tests,
            where=provenance(torch.device("cpu")),
        )
        self.records.append(one)
        write_records(self.path, self.records)
        print(f"{corpus:10} {one.score:.4f} {one.cpu_s:6.1f} s  {setting}", flush=True)
        return one

    def recorded(
        self, corpus: CorpusName, setting: Setting, *, times: int = 1, seed: int = SEARCHED
    ) -> HeadTrial | None:
        """Return a trial from the file, or None."""
        wanted = trial_key(corpus, setting, times * steps_of(corpus, setting.head), seed)
        return next((one for one in self.records if one.key == wanted), None)


def run_trial(
    data: Splits, setting: Setting, *, steps: int, seed: int, tests: bool, where: Mapping[str, Any]
) -> HeadTrial:
    """Train and evaluate. `tests` evaluates on the test examples too."""
    torch.manual_seed(seed)
    reader, head = data.reader(), setting.built(data)
    start = time.process_time()
    try:
        loss = _train(reader, head, setting, batches(data.train, steps, seed), steps)
    except (NotFiniteError, zloss.RefusedStepError):
        loss = None
    seconds = time.process_time() - start
    scores = None if loss is None else _scores(reader, head, data.validation)
    return HeadTrial(
        corpus=data.name,
        setting=setting,
        steps=steps,
        seed=seed,
        score=_NO_SCORE if scores is None else max(_NO_SCORE, next(iter(scores.values()))),
        validation=scores or {},
        test=_scores(reader, head, data.test) if tests and loss is not None else None,
        train_loss=loss,
        cpu_s=round(seconds, 2),
        **where,
    )


def batches(examples: Examples, steps: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield inputs and targets of each step, epoch after epoch in a random order."""
    generator = torch.Generator().manual_seed(seed)
    passes = -(-steps * BATCH // len(examples))
    order = torch.cat([torch.randperm(len(examples), generator=generator) for _ in range(passes)])
    for rows in order[: steps * BATCH].split(BATCH):
        targets = examples.targets[rows]
        yield examples.inputs[rows], targets[:, : int((targets >= 0).sum(1).max())]


def _train(
    reader: torch.nn.Module,
    head: zloss.Head,
    setting: Setting,
    stream: Iterator[tuple[Tensor, Tensor]],
    steps: int,
) -> float | None:
    """Take all steps, and return the mean loss of the last ones, or None if it is not finite."""
    optimizers = [
        zloss.RowAdam(reader.parameters(), setting.trunk_lr),
        head.optimizer(setting.optimizer, lr=setting.lr),
    ]
    schedules = [
        torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, _LAST_RATE, steps)
        for optimizer in optimizers
    ]
    losses = []
    for inputs, target in stream:
        loss = head(reader(inputs), target)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        for schedule in schedules:
            schedule.step()
        losses.append(loss.detach())
    last = torch.stack(losses[-max(1, steps // 10) :]).mean()
    return last.item() if last.isfinite() else None


@torch.no_grad()
def _scores(reader: torch.nn.Module, head: zloss.Head, examples: Examples) -> dict[str, float]:
    """Return the deciding score first, then others."""
    reader.eval()
    parts = zip(
        examples.inputs.split(_RANKED_TOGETHER),
        examples.targets.split(_RANKED_TOGETHER),
        strict=True,
    )
    if examples.targets.shape[1] > 1:
        return _precisions([(head.topk(reader(inputs), 5)[1], target) for inputs, target in parts])
    rank = torch.cat([_ranks(head, reader(inputs), target) for inputs, target in parts])
    recalls = {f"recall@{k}": (rank <= k).double().mean().item() for k in (20, 1, 5, 100)}
    return recalls | {"MRR@20": torch.where(rank <= 20, 1 / rank, 0).double().mean().item()}


def _ranks(head: zloss.Head, h: Tensor, target: Tensor) -> Tensor:  # (B, H), (B, 1) -> (B,)
    """Return the ranks of the targets. Where all hidden units are 0 the network is dead, and the rank is the worst."""
    return torch.where((h == 0).all(1), head.num_classes, head.rank(h, target)[:, 0])


def _precisions(found: list[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """Return the shares of right tags among the best k, from the best tags (B, 5) and the own ones (B, K)."""
    is_right = torch.cat(
        [(best[:, :, None] == target[:, None, :]).any(2).double() for best, target in found]
    )
    return {f"precision@{k}": is_right[:, :k].mean().item() for k in (5, 1, 3)}


@torch.no_grad()
def _scale(head: zloss.Head, factor: float) -> None:
    if factor == 1:
        return
    for parameter in head.parameters():
        if parameter.dim() == 2:
            parameter.mul_(factor)
    if isinstance(head, zloss.SphericalOutput) and isinstance(head.layer, zloss.FactoredLinear):
        head.layer.adopt_rows()
