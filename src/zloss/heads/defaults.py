"""The optimizer and the rate of each head, and the number of samples, in one place.

Most numbers are measured: `python -m benchmarks.head_defaults` searches for them on two corpora and checks them on two
others. The guide on heads has the table of the results. `python -m benchmarks.rates` argues the relative rate of the
factored Z-loss. Where `is_measured` is False, the numbers are usual starts.
"""

from dataclasses import dataclass
from typing import Literal

from zloss.optim import relative_rate

OptimizerName = Literal["sgd", "adagrad", "adam"]


@dataclass(frozen=True)
class HeadDefaults:
    """The optimizer of a head and its learning rate, for mean losses and batches of some hundred examples.

    A relative rate suits batches of any size: see `zloss.FactoredSGD`.
    """

    optimizer: OptimizerName
    lr: float
    is_relative: bool = False
    is_measured: bool = True


FACTORED_Z_LOSS = HeadDefaults("sgd", relative_rate.DEFAULT, is_relative=True)
GRAM = HeadDefaults("adam", 0.003, is_measured=False)
DENSE = HeadDefaults("adam", 0.003, is_measured=False)
HIERARCHICAL = HeadDefaults("adam", 0.003, is_measured=False)
ADAPTIVE = HeadDefaults("adam", 0.003, is_measured=False)
SAMPLED = HeadDefaults("adam", 0.01)
NCE = HeadDefaults("sgd", 30.0)
NUM_SAMPLES = 512  # S of the sampled softmax and of NCE, for any number of classes
