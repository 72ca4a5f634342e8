"""The optimizer, the rate and the options with which each head was best, in one place.

The numbers are measured: `python -m benchmarks.head_defaults` gives every head the same number of trials on two
corpora and checks its best settings on two others. The guide on heads has the table of the results.
"""

from dataclasses import dataclass
from typing import Literal

OptimizerName = Literal["sgd", "adagrad", "adam"]


@dataclass(frozen=True)
class HeadDefaults:
    """The optimizer of a head and its learning rate, for mean losses and batches of some hundred examples."""

    optimizer: OptimizerName
    lr: float


FACTORED_Z_LOSS = HeadDefaults("sgd", 50.0)
GRAM = HeadDefaults("adam", 0.003)
DENSE = HeadDefaults("adam", 0.003)
HIERARCHICAL = HeadDefaults("adam", 0.003)
ADAPTIVE = HeadDefaults("adam", 0.003)
SAMPLED = HeadDefaults("adam", 0.01)
NCE = HeadDefaults("adam", 0.003)
NUM_SAMPLES = 512  # S of the sampled softmax and of NCE, for any number of classes
