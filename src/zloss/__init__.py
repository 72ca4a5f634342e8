"""zloss: classifiers with a huge number of classes, trained at a cost that does not depend on their number."""

from zloss.capture import CapturedStep as CapturedStep
from zloss.heads import AdaptiveSoftmax as AdaptiveSoftmax
from zloss.heads import Clustering as Clustering
from zloss.heads import DenseOutput as DenseOutput
from zloss.heads import Head as Head
from zloss.heads import HeadConfig as HeadConfig
from zloss.heads import HierarchicalSoftmax as HierarchicalSoftmax
from zloss.heads import LogUniformSampler as LogUniformSampler
from zloss.heads import SampledSoftmax as SampledSoftmax
from zloss.heads import SharedNegatives as SharedNegatives
from zloss.heads import SphericalOutput as SphericalOutput
from zloss.heads import UniformSampler as UniformSampler
from zloss.heads import UnigramSampler as UnigramSampler
from zloss.heads import balanced_weights as balanced_weights
from zloss.heads import softmax_implementations as softmax_implementations
from zloss.layers import DenseLinear as DenseLinear
from zloss.layers import FactoredLinear as FactoredLinear
from zloss.layers import GramLinear as GramLinear
from zloss.layers import RefusedStepError as RefusedStepError
from zloss.layers import TiedEmbedding as TiedEmbedding
from zloss.losses import SigmoidCrossEntropy as SigmoidCrossEntropy
from zloss.losses import SoftmaxCrossEntropy as SoftmaxCrossEntropy
from zloss.losses import SphericalLoss as SphericalLoss
from zloss.losses import SphericalSoftmax as SphericalSoftmax
from zloss.losses import SquaredError as SquaredError
from zloss.losses import TaylorSoftmax as TaylorSoftmax
from zloss.losses import ZLoss as ZLoss
from zloss.losses import ZNormalized as ZNormalized
from zloss.losses import spherical_softmax as spherical_softmax
from zloss.losses import squared_error as squared_error
from zloss.losses import taylor_softmax as taylor_softmax
from zloss.losses import z_loss as z_loss
from zloss.metrics import MeanReciprocalRank as MeanReciprocalRank
from zloss.metrics import Perplexity as Perplexity
from zloss.metrics import TopKError as TopKError
from zloss.optim import FactoredSGD as FactoredSGD
from zloss.optim import Optimizer as Optimizer
from zloss.optim import RowAdam as RowAdam
from zloss.optim import RowSGD as RowSGD
from zloss.optim import clip_grad_norm_ as clip_grad_norm_
from zloss.parallel import gather_batch as gather_batch
from zloss.stats import SphericalStats as SphericalStats

__version__ = "0.1.0"
