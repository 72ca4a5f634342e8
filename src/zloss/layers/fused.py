"""The factored layer's arithmetic by kernels: what they keep beside the factors, and the step they take.

`zloss.layers.statistics` and `zloss.layers.update` define what is computed; on a GPU with Triton the same is done by
few launches, none of which waits for the device, so that a step can be captured as a CUDA graph.
"""

import torch
from torch import Tensor

from zloss import kernels
from zloss.layers.faults import Fault
from zloss.layers.gradient import RecordedGradient
from zloss.layers.update import Factors


class FusedFactors:
    """Copies of the H x H factors as products want them, and the report of the latest step."""

    def __init__(self, factors: Factors, product_dtype: torch.dtype) -> None:
        width = len(factors.U)
        self._kernels = kernels.load("factored_update")
        self.pack = torch.empty(3, width, width, dtype=product_dtype, device=factors.U.device)
        self.report = torch.zeros(
            self._kernels.report_length(width), dtype=torch.float64, device=factors.U.device
        )
        self.refresh_(factors)

    def refresh_(self, factors: Factors) -> None:
        """Copy the factors, after they have changed by other means than a step of this class."""
        self._kernels.refresh_(self.pack, factors.gram, factors.U, factors.U_inv)

    def step_(
        self,
        V: Tensor,
        factors: Factors,
        fault: Tensor,
        grad: RecordedGradient,
        lr: float,
        weight_decay: float,
    ) -> None:
        """Change V and the factors in place, or set a fault and change nothing."""
        f = factors
        self._kernels.step_(
            self._kernels.State(
                V, f.U, f.U_inv, f.omega, f.wbar, f.gram, self.pack, fault, self.report
            ),
            self._kernels.Batch(
                *(part.to(self.pack.dtype) for part in (grad.h, grad.hg)),
                *(part.double() for part in (grad.mean, grad.curvature, grad.mean_grad)),
                grad.index,
                grad.target_grad.double(),
                grad.target_rows.to(self.pack.dtype),
                grad.begun,
            ),
            lr,
            weight_decay,
            gradient_fault=Fault.GRADIENT.value,
            singular_fault=Fault.SINGULAR.value,
        )
