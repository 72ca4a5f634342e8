"""Cases of `zloss bench model`: one training step of a whole network of the paper, from words to updated weights.

A step takes a batch of n-grams from a text whose words occur by Zipf's law. It runs embeddings, hidden layers and head
forward and backward, and updates all weights by SGD. On a GPU, products of the hidden layers are in TF32 for all heads.
"""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from zloss_lab.bench.cases import Case
from zloss_lab.bench.entries import FACTORED, HeadEntry
from zloss_lab.bench.gate import CLASSES, HIDDEN, STEPS, batch_size, require
from zloss_lab.bench.output_suite import HeadCase, possible_launches
from zloss_lab.bench.random_inputs import SEED, zipf_tokens
from zloss_lab.bench.schema import BenchRecord, NetworkRecord
from zloss_lab.bench.steps import Launch, TrainingStep, launched, products_of
from zloss_lab.bench.timing import Work
from zloss_lab.experiments import build_experiment, preset_network
from zloss_lab.networks import NetworkConfig, NgramNetwork, TrunkPrecision
from zloss_lab.ngrams import NgramBatches
from zloss_lab.records import Record

EPOCH_NGRAMS = 150_000_000  # about as many as One Billion Word has
_DEFAULT_BATCH = 200
# The batches of the paper, which its presets have.
BATCHES = {
    name: build_experiment("", preset_name=name).training.batch_size for name in ("net1", "net2")
}
MODEL_HEADS = (
    "factored,dense,dense-tf32,dense-bf16,dense-compiled,cce,cce-exact,hierarchical,sampled"
)

_WORDS = 2**20  # in the made-up text
_SMALL = NetworkConfig(context=3, embedding=8, hidden=(HIDDEN,))


@dataclass(frozen=True, kw_only=True)
class ModelCase(HeadCase):
    """One training step of a network."""

    suite: ClassVar[str] = "model"
    record_kind: ClassVar[type[BenchRecord]] = NetworkRecord
    network: str
    trunk_precision: TrunkPrecision

    @property
    def name(self) -> str:
        return f"{self.network}, {self.entry.title}"

    @property
    def group(self) -> Hashable:
        return self.network, self.batch, self.classes

    @property
    def config(self) -> NetworkConfig:
        """The config of the network; the head of this case takes the place of its head."""
        return replace(preset_network(self.network), precision=self.trunk_precision)

    def bytes_needed(self) -> int:
        hidden_layers = sum(below * above for below, above in pairwise(self.config.sizes))
        return super().bytes_needed() + 4 * (
            self.classes * self.config.embedding + 3 * hidden_layers
        )

    def check(self, device: torch.device) -> None:
        super().check(device)
        if self.launch == "graph":
            check_capture(self.entry, device, is_full_rank=self.is_full_rank)

    def pacesetter(self) -> Case:
        return replace(self, entry=FACTORED, launch="eager")

    @contextmanager
    def prepared(self, device: torch.device) -> Iterator[Work]:
        step, batches = network_step(self.entry, self.config, self.batch, self.classes, device)
        places = torch.arange(len(batches), device=device)
        yield Work(launched(step, self.launch), [(place,) for place in places])

    def results(self, time_ms: float) -> Record:
        ngrams_per_s = 1000 * self.batch / time_ms
        return {
            "ngrams_per_s": round(ngrams_per_s),
            "epoch_s": round(EPOCH_NGRAMS / ngrams_per_s, 1),
        }

    def description(self) -> Record:
        trunk = {"network": self.network, "trunk_precision": self.trunk_precision}
        return super().description() | trunk | {"targets": "zipf"}


def network_step(
    entry: HeadEntry, config: NetworkConfig, batch: int, classes: int, device: torch.device
) -> tuple[TrainingStep, NgramBatches]:
    """Return a training step `index -> loss` and the batches; the index of a batch is a scalar on the device."""
    batches = NgramBatches(
        zipf_tokens(_WORDS, classes),
        context=config.context,
        batch_size=batch,
        mode="sentence",
        boundary=0,
        padding=0,
        device=device,
        seed=SEED,
    )
    network = NgramNetwork(replace(config, head=entry.config), classes, device=device)
    network.head = entry.with_peer(network.head)
    optimizers = network.optimizers(
        "sgd", lr=0.1, output_lr=entry.training_lr(classes), forms_gradients=False
    )

    def step(index: Tensor) -> Tensor:
        return network.learn(
            *batches.at(index), optimizers, head_products=lambda: products_of(entry, device)
        )

    return step, batches


def check_capture(entry: HeadEntry, device: torch.device, *, is_full_rank: bool) -> None:
    """Check that a captured network has the same losses as without capture. The head is checked by `check_head`."""
    losses: dict[Launch, list[float]] = {}
    for launch in ("eager", "graph"):
        torch.manual_seed(SEED)
        step, _ = network_step(
            entry, _SMALL, batch_size(is_full_rank=is_full_rank), CLASSES, device
        )
        step = launched(step, launch)
        losses[launch] = [float(step(index)) for index in torch.arange(STEPS, device=device)]
    tolerance, _ = entry.tolerances
    for eager, captured in zip(losses["eager"], losses["graph"], strict=True):
        require(
            abs(captured / eager - 1) <= tolerance,
            f"captured, the loss is {captured:.6g} instead of {eager:.6g}",
        )


def model_cases(
    networks: Sequence[str],
    entries: Sequence[HeadEntry],
    *,
    batch: int | None,
    classes: int,
    trunk_precision: TrunkPrecision,
    launch: Launch | None,
    device: torch.device,
) -> list[Case]:
    """Return a case for every entry in every network. By default, net1 and net2 have the batches of the paper."""
    return [
        ModelCase(
            network=network,
            entry=entry,
            batch=batch or BATCHES.get(network, _DEFAULT_BATCH),
            hidden=preset_network(network).sizes[-1],
            classes=classes,
            trunk_precision=trunk_precision,
            launch=way,
        )
        for network in networks
        for entry in entries
        for way in possible_launches(entry, device, launch)
    ]
