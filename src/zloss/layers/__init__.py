"""Output layers: ways to obtain `SphericalStats`. README.md beside this file follows one step of training."""

from zloss.layers.dense import DenseLinear as DenseLinear
from zloss.layers.factored import FactoredLinear as FactoredLinear
from zloss.layers.gram import GramLinear as GramLinear
from zloss.layers.supervisor import RefusedStepError as RefusedStepError
from zloss.layers.tied import TiedEmbedding as TiedEmbedding
