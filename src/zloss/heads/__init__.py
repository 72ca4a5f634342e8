"""Output layers with their losses behind one interface: `head(h, target) -> loss`, ranks and top-k of all classes."""

from zloss.heads.adaptive import AdaptiveSoftmax as AdaptiveSoftmax
from zloss.heads.balance import balanced_weights as balanced_weights
from zloss.heads.clustering import Clustering as Clustering
from zloss.heads.config import HeadConfig as HeadConfig
from zloss.heads.dense import DenseOutput as DenseOutput
from zloss.heads.head import Head as Head
from zloss.heads.hierarchical import HierarchicalSoftmax as HierarchicalSoftmax
from zloss.heads.negatives import SharedNegatives as SharedNegatives
from zloss.heads.sampled import SampledSoftmax as SampledSoftmax
from zloss.heads.samplers import LogUniformSampler as LogUniformSampler
from zloss.heads.samplers import UniformSampler as UniformSampler
from zloss.heads.samplers import UnigramSampler as UnigramSampler
from zloss.heads.softmax import softmax_implementations as softmax_implementations
from zloss.heads.spherical import SphericalOutput as SphericalOutput
