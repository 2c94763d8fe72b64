"""FedSAM.

Qu, Li, Duan, Liu, Tang, Lu. Generalized Federated Learning via Sharpness Aware Minimization. ICML 2022; also
Caldarola, Caputo, Ciccone. Improving Generalization in Federated Learning by Seeking Flat Minima. ECCV 2022.

Clients look for flat minima, which average better than sharp ones: each step takes the gradient at the worst
point near the current one.

    g = grad L(w),   e = rho g / (||g|| + 1e-12),   step with  grad L(w + e)  on the same batch

Deviations:
- The norm is that of all parameters together. Momentum and weight decay act at w.
- BatchNorm statistics move in the first pass of a step only. Dropout is drawn anew in the second.
- rho is 0.1 as in FedVLS's comparison, which also prints beta=0.9: by its code that is the momentum of the
  local optimiser, which belongs to the budget here. mofedsam has a beta of its own.
- FedVLS's released FedSAM optimises the FedVLS loss and clips gradients at 5: that would be fedvls+fedsam,
  without clipping.
"""

from __future__ import annotations

from unskew.errors import require
from unskew.method import Method, Work
from unskew.methods.card import COPY, card
from unskew.parts.sharpness import uphill
from unskew.types import Gradient, Scope


@card("fedsam", passes="one per step and its gradient: twice the work", memory=COPY)
def fedsam(*, rho: float = 0.1) -> Method:
    """Seek flat minima: step by the gradient at the worst point nearby."""
    require(rho >= 0, f"rho is {rho} but should be 0 or more.")

    def transform(gradient: Gradient, scope: Scope) -> Gradient:
        return uphill(gradient, rho)

    return Method(transform=transform, work=Work(points=2 if rho else 1))
