"""Losses. Spherical losses are functions of `SphericalStats`, and dense losses need every logit."""

from zloss.losses.dense import SigmoidCrossEntropy as SigmoidCrossEntropy
from zloss.losses.dense import SoftmaxCrossEntropy as SoftmaxCrossEntropy
from zloss.losses.dense import ZNormalized as ZNormalized
from zloss.losses.functions import spherical_softmax as spherical_softmax
from zloss.losses.functions import squared_error as squared_error
from zloss.losses.functions import taylor_softmax as taylor_softmax
from zloss.losses.functions import z_loss as z_loss
from zloss.losses.spherical import SphericalLoss as SphericalLoss
from zloss.losses.spherical import SphericalSoftmax as SphericalSoftmax
from zloss.losses.spherical import SquaredError as SquaredError
from zloss.losses.spherical import TaylorSoftmax as TaylorSoftmax
from zloss.losses.spherical import ZLoss as ZLoss
