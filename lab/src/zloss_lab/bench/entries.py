"""The heads that are measured, by key. A new entry here is known to every suite that measures heads."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

import zloss
from zloss_lab.bench.peers import PEERS

ProductPrecision = Literal["float32", "tf32", "bf16"]
Tuning = Literal["default", "tuned"]

# The largest relative errors on the small problem of the gate, by the precision of products. The first number is for a
# loss, the second for the change of the weights after all steps. On a CPU, the errors of float32 are 1e-7 and 3e-6, and
# the errors of bfloat16 are 1e-4 and 3e-3. Sums in another order and gradients that are rounded once more may have ten
# times these errors. The tolerance of float32 losses is wider, as the kernels of some heads need it. TF32 rounds
# factors to 2^-11, with a quarter of the error of bfloat16.
TOLERANCES: dict[ProductPrecision, tuple[float, float]] = {
    "float32": (1e-4, 1e-4),
    "tf32": (2e-3, 1e-2),
    "bf16": (5e-3, 3e-2),
}
# 512 samples give the sum over the 500 classes of the gate to some 6 %, which is 1 % of its logarithm, the loss.
_TOLERANCE_OF_ESTIMATES = 1e-1


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadEntry:
    """A head with its loss, its options and its precision.

    `copies` times C x H and `logits` times B x C numbers are upper bounds of the memory it needs. Only cases that
    surely fit into memory together take turns.
    """

    key: str  # the name on the command line and in records
    title: str  # the name in tables and plots
    head: str = "dense"
    loss: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    peer: str | None = None  # a key of PEERS: another implementation of the loss of the head
    precision: ProductPrecision = "float32"  # of matrix products
    autocasts: bool = False
    tuning: Tuning = "default"
    lr: float = 0.1
    sees_frequency: bool = False  # whether it is faster if some classes are frequent
    is_gpu_only: bool = False
    # Whether a CUDA graph can hold its step. Such a step must not wait for the device.
    is_capturable: bool = True
    is_estimate: bool = False  # whether its loss is an estimate from samples
    copies: float = 3.0
    logits: float = 3.0

    @property
    def config(self) -> zloss.HeadConfig:
        """The config of the head: its name, its loss and its options."""
        return zloss.HeadConfig(head=self.head, loss=self.loss, options=self.options)

    @property
    def tolerances(self) -> tuple[float, float]:
        """The tolerances of the gate for the loss and for the change of the weights."""
        if self.is_estimate:
            return _TOLERANCE_OF_ESTIMATES, _TOLERANCE_OF_ESTIMATES
        return TOLERANCES[self.precision]

    def build(self, hidden: int, classes: int, device: torch.device) -> zloss.Head:
        """Return a new head."""
        return self.with_peer(self.config.build(hidden, classes, device=device))

    def with_peer(self, head: zloss.Head) -> zloss.Head:
        """Return a head of this config, with the implementation of the peer if this entry names one."""
        return head if self.peer is None else PEERS[self.peer](head)

    def training_lr(self, classes: int) -> float:
        """Return the learning rate of steps that are timed: `lr`, or less for the Z-loss of fewer classes."""
        is_z_loss = self.config.loss == "z_loss"
        return self.lr * min(1.0, classes / _Z_CLASSES) if is_z_loss else self.lr

    def missing(self, device: torch.device) -> str | None:
        """Return the reason why the head cannot run on this device, or None if it can."""
        if self.is_gpu_only and device.type != "cuda":
            return "needs a GPU"
        if self.peer is not None:
            return PEERS[self.peer].missing(device)
        return zloss.softmax_implementations(device).get(self.options.get("softmax", "logits"))

    def bytes_needed(self, batch: int, hidden: int, classes: int) -> int:
        """Return an estimate of the most memory that the head needs."""
        return int(4 * classes * (self.copies * hidden + self.logits * batch))


def _softmax_option(name: str) -> dict[str, str]:
    return {"softmax": name}


_MOST_SAMPLES = 8192
# With random targets there is nothing to learn. At learning rates that are good for real targets, the Z-loss only
# shrinks the weights along the mean of h. After some thousand steps, the factored layer would be refactored every
# hundred steps; in real training that happens after thousands. At a tenth of such a rate, a benchmark ends before the
# first refactor, so that only the step is timed. If classes are fewer, the curvature of the loss is larger in
# proportion, and the rate is smaller.
_Z_LR, _Z_CLASSES = 5.0, 10_000_000
# Memory of heads that hold their weights and changes of some rows, but no logits.
_LIGHT: dict[str, Any] = {"copies": 1.5, "logits": 0.1}

ENTRIES = {
    entry.key: entry
    for entry in (
        HeadEntry(key="factored", title="factored", head="factored", lr=_Z_LR, **_LIGHT),
        HeadEntry(key="dense", title="dense softmax"),
        HeadEntry(
            key="dense-tf32", title="dense softmax, TF32", precision="tf32", is_gpu_only=True
        ),
        HeadEntry(key="dense-bf16", title="dense softmax, bf16", precision="bf16", autocasts=True),
        HeadEntry(
            key="dense-compiled",
            title="dense softmax, TF32, compiled",
            peer="compiled",
            precision="tf32",
        ),
        HeadEntry(
            key="dense-bf16-compiled",
            title="dense softmax, bf16, compiled",
            peer="compiled",
            precision="bf16",
            autocasts=True,
        ),
        HeadEntry(
            key="lce", title="dense softmax, linear_cross_entropy, default", peer="torch's chunks"
        ),
        HeadEntry(
            key="lce-tuned",
            title="dense softmax, linear_cross_entropy, tuned",
            options=_softmax_option("linear_cross_entropy"),
            tuning="tuned",
        ),
        HeadEntry(
            key="lce-tuned-tf32",
            title="dense softmax, linear_cross_entropy, tuned, TF32",
            options=_softmax_option("linear_cross_entropy"),
            tuning="tuned",
            precision="tf32",
            is_gpu_only=True,
        ),
        # The following libraries may wait for the device. Nobody has captured their steps yet.
        HeadEntry(
            key="liger",
            title="dense softmax, Liger, TF32, default",
            options=_softmax_option("liger"),
            precision="tf32",
            is_capturable=False,
        ),
        HeadEntry(
            key="liger-tuned",
            title="dense softmax, Liger, TF32, tuned",
            peer="liger in one chunk",
            precision="tf32",
            tuning="tuned",
            is_capturable=False,
        ),
        HeadEntry(
            key="cce",
            title="dense softmax, CCE, bf16",
            options=_softmax_option("cut_cross_entropy"),
            precision="bf16",
            is_capturable=False,
        ),
        HeadEntry(
            key="cce-exact",
            title="dense softmax, CCE exact, bf16",
            options=_softmax_option("cut_cross_entropy_exact"),
            precision="bf16",
            is_capturable=False,
        ),
        HeadEntry(
            key="hierarchical",
            title="hierarchical softmax",
            head="hierarchical",
            sees_frequency=True,
            **_LIGHT,
        ),
        HeadEntry(
            key="adaptive",
            title="adaptive softmax",
            head="adaptive",
            sees_frequency=True,
            copies=1.5,
            logits=3.0,  # needed if it is captured without kernels: all examples go through all clusters
        ),
        *(
            HeadEntry(
                key="sampled" if samples == _MOST_SAMPLES else f"sampled-{samples}",
                title=f"sampled softmax, {samples:,} samples",
                head="sampled",
                options={"num_samples": samples},
                is_estimate=True,
                **_LIGHT,
            )
            for samples in (512, 1024, _MOST_SAMPLES)
        ),
        HeadEntry(
            key="nce",
            title=f"NCE, {_MOST_SAMPLES:,} samples",
            head="sampled",
            loss="nce",
            options={"num_samples": _MOST_SAMPLES, "bias": False},  # as its records have it
            is_estimate=True,
            **_LIGHT,
        ),
        HeadEntry(key="dense-z", title="dense Z-loss", loss="z_loss", lr=_Z_LR),
        HeadEntry(
            key="gram-z", title="Gram Z-loss", head="gram", loss="z_loss", lr=_Z_LR, logits=0.1
        ),
    )
}
FACTORED = ENTRIES["factored"]

# Heads that only the first benchmark has. Tables keep them apart from today's heads.
_FORMER_TITLES = {
    "lce-first": "dense softmax, linear_cross_entropy",
    "liger-first": "dense softmax, Liger",
}


def head_title(key: str) -> str:
    """Return the name of a head in tables and plots; a head that is no longer measured may have its key alone.

    >>> head_title("dense-tf32")
    'dense softmax, TF32'
    """
    return ENTRIES[key].title if key in ENTRIES else _FORMER_TITLES.get(key, key)
