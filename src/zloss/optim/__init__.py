"""Optimizers of factored layers, of row-sparse gradients and of whole models, and clipping of all together."""

from zloss.optim.checked_optimizer import CheckedOptimizer as CheckedOptimizer
from zloss.optim.clipping import clip_grad_norm_ as clip_grad_norm_
from zloss.optim.row_adam import RowAdam as RowAdam
from zloss.optim.row_sgd import RowSGD as RowSGD
from zloss.optim.sgd import FactoredSGD as FactoredSGD
from zloss.optim.whole import Optimizer as Optimizer
