"""Plain SGD on factored layers and on row-sparse gradients, and clipping of all gradients together."""

from zloss.optim.clipping import clip_grad_norm_ as clip_grad_norm_
from zloss.optim.row_sgd import RowSGD as RowSGD
from zloss.optim.sgd import FactoredSGD as FactoredSGD
from zloss.optim.sgd import PlainSGD as PlainSGD
