"""SGD on factored layers, SGD and Adam on row-sparse gradients, and clipping of all gradients together."""

from zloss.optim.clipping import clip_grad_norm_ as clip_grad_norm_
from zloss.optim.row_adam import RowAdam as RowAdam
from zloss.optim.sgd import FactoredSGD as FactoredSGD
from zloss.optim.sgd import PlainSGD as PlainSGD
from zloss.optim.sgd import RowSGD as RowSGD
