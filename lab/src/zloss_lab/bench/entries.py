"""The heads that are measured, by name. A new line here is in every suite that takes heads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

import zloss
from zloss.names import check_name
from zloss_lab.bench.peers import PEERS

ProductPrecision = Literal["float32", "tf32", "bf16"]
Tuning = Literal["default", "tuned"]

# Relative errors that products in this precision explain on the small problem of the gate: of a loss, and of the change
# of the weights after its steps. On a CPU, float32 is off by 1e-7 and 3e-6 there, bfloat16 by 1e-4 and 3e-3; sums in
# another order and gradients that are rounded once more are given ten times as much, and float32 losses all that the
# kernels of some heads need. TF32 rounds factors to 2^-11, a quarter of what bfloat16 does.
TOLERANCES: dict[ProductPrecision, tuple[float, float]] = {
    "float32": (1e-4, 1e-4),
    "tf32": (2e-3, 1e-2),
    "bf16": (5e-3, 3e-2),
}
_ESTIMATE = 1e-1  # 8192 samples know the sum over the 500 classes of the gate to a few percent


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadEntry:
    """A head, and how it is used.

    `copies` and `logits` say what it may hold at most, in C x H and in B x C numbers: only what surely fits takes
    turns.
    """

    key: str  # on the command line
    name: str  # in tables
    head: str = "dense"
    loss: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    peer: str | None = None  # of PEERS, in place of the head's own way
    precision: ProductPrecision = "float32"  # of matrix products
    autocasts: bool = False
    tuning: Tuning = "default"
    lr: float = 0.1
    sees_frequency: bool = False  # is it faster where some classes are frequent?
    is_gpu_only: bool = False
    is_capturable: bool = True  # a step that waits for the device is not
    is_estimate: bool = False
    copies: float = 3.0
    logits: float = 3.0

    @property
    def config(self) -> zloss.HeadConfig:
        """Head, loss and options."""
        return zloss.HeadConfig(head=self.head, loss=self.loss, options=self.options)

    @property
    def tolerances(self) -> tuple[float, float]:
        """Of the gate, for the loss and for the change of the weights."""
        return (_ESTIMATE, _ESTIMATE) if self.is_estimate else TOLERANCES[self.precision]

    def build(self, hidden: int, classes: int, device: torch.device) -> zloss.Head:
        """A new head."""
        return self.dressed(self.config.build(hidden, classes, device=device))

    def dressed(self, head: zloss.Head) -> zloss.Head:
        """A head of this config, as this entry uses it."""
        return head if self.peer is None else PEERS[self.peer](head)

    def training_lr(self, classes: int) -> float:
        """The learning rate for steps that are timed: `lr`, or less where that would be out of the ordinary."""
        is_z_loss = self.config.loss == "z_loss"
        return self.lr * min(1.0, classes / _Z_CLASSES) if is_z_loss else self.lr

    def missing(self, device: torch.device) -> str | None:
        """Why it cannot run on this device."""
        if self.is_gpu_only and device.type != "cuda":
            return "needs a GPU"
        if self.peer is not None:
            return PEERS[self.peer].missing(device)
        return zloss.softmax_implementations(device).get(self.options.get("softmax", "logits"))

    def bytes_needed(self, batch: int, hidden: int, classes: int) -> int:
        """What it may hold at most, about."""
        return int(4 * classes * (self.copies * hidden + self.logits * batch))


def _softmax(name: str) -> dict[str, str]:
    return {"softmax": name}


_SAMPLES = {"num_samples": 8192}
# There is nothing to learn in targets drawn at random. At rates that are good for real ones, the Z-loss only makes the
# weights shrink along the mean of h: after some thousand steps the factored layer would be refactored every hundred,
# where real training goes on for thousands. At a tenth of that a benchmark is over before the first one, and what is
# timed is the step. The curvature of the loss is that much larger where classes are fewer.
_Z_LR, _Z_CLASSES = 5.0, 10_000_000
# Those that hold their weights, changes of some rows, and no logits.
_LIGHT: dict[str, Any] = {"copies": 1.5, "logits": 0.1}

ENTRIES = {
    entry.key: entry
    for entry in (
        HeadEntry(key="factored", name="factored", head="factored", lr=_Z_LR, **_LIGHT),
        HeadEntry(key="dense", name="dense softmax"),
        HeadEntry(key="dense-tf32", name="dense softmax, TF32", precision="tf32", is_gpu_only=True),
        HeadEntry(key="dense-bf16", name="dense softmax, bf16", precision="bf16", autocasts=True),
        HeadEntry(
            key="dense-compiled",
            name="dense softmax, TF32, compiled",
            peer="compiled",
            precision="tf32",
        ),
        HeadEntry(
            key="dense-bf16-compiled",
            name="dense softmax, bf16, compiled",
            peer="compiled",
            precision="bf16",
            autocasts=True,
        ),
        HeadEntry(
            key="lce", name="dense softmax, linear_cross_entropy, default", peer="torch's chunks"
        ),
        HeadEntry(
            key="lce-tuned",
            name="dense softmax, linear_cross_entropy, tuned",
            options=_softmax("linear_cross_entropy"),
            tuning="tuned",
        ),
        HeadEntry(
            key="lce-tuned-tf32",
            name="dense softmax, linear_cross_entropy, tuned, TF32",
            options=_softmax("linear_cross_entropy"),
            tuning="tuned",
            precision="tf32",
            is_gpu_only=True,
        ),
        # Code of others that may wait for the device: eagerly only, as long as nobody has captured it.
        HeadEntry(
            key="liger",
            name="dense softmax, Liger, TF32, default",
            options=_softmax("liger"),
            precision="tf32",
            is_capturable=False,
        ),
        HeadEntry(
            key="liger-tuned",
            name="dense softmax, Liger, TF32, tuned",
            peer="liger in one chunk",
            precision="tf32",
            tuning="tuned",
            is_capturable=False,
        ),
        HeadEntry(
            key="cce",
            name="dense softmax, CCE, bf16",
            options=_softmax("cut_cross_entropy"),
            precision="bf16",
            is_capturable=False,
        ),
        HeadEntry(
            key="cce-exact",
            name="dense softmax, CCE exact, bf16",
            options=_softmax("cut_cross_entropy_exact"),
            precision="bf16",
            is_capturable=False,
        ),
        HeadEntry(
            key="hierarchical",
            name="hierarchical softmax",
            head="hierarchical",
            sees_frequency=True,
            **_LIGHT,
        ),
        HeadEntry(
            key="adaptive",
            name="adaptive softmax",
            head="adaptive",
            sees_frequency=True,
            copies=1.5,
            logits=3.0,  # captured without kernels, when all examples go through all clusters
        ),
        HeadEntry(
            key="sampled",
            name="sampled softmax",
            head="sampled",
            options=_SAMPLES,
            is_estimate=True,
            **_LIGHT,
        ),
        HeadEntry(
            key="nce",
            name="NCE",
            head="sampled",
            loss="nce",
            options=_SAMPLES,
            is_estimate=True,
            **_LIGHT,
        ),
        HeadEntry(key="dense-z", name="dense Z-loss", loss="z_loss", lr=_Z_LR),
        HeadEntry(
            key="gram-z", name="Gram Z-loss", head="gram", loss="z_loss", lr=_Z_LR, logits=0.1
        ),
    )
}
FACTORED = ENTRIES["factored"]


def chosen(keys: Sequence[str]) -> list[HeadEntry]:
    """The entries of these names; a name that does not exist is refused."""
    for key in keys:
        check_name("head", key, ENTRIES)
    return [ENTRIES[key] for key in keys]
