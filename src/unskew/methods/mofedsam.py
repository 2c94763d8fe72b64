"""MoFedSAM.

Qu, Li, Duan, Liu, Tang, Lu. Generalized Federated Learning via Sharpness Aware Minimization. ICML 2022.

FedSAM whose local steps lean to the direction in which everybody moved in the last round.

    step with  beta grad L(w + e) + (1 - beta) D,   e as in FedSAM
    D = - sum_k p_k (w_k - w[t]) / (lr A(K_k, rho_m)),   zero in the first round

A is the effective number of steps under local momentum rho_m (see scaffold), K without it.

Deviations:
- The paper has neither local momentum nor unequal clients: it divides by lr K and takes the plain mean. Its
  server moves by -server_lr D with a server_lr of its own; here the server averages models as FedAvg does,
  which for equal K is server_lr = lr K. The re-implementation in FedGF's code moves by D itself, a step lr K
  times shorter or longer, and scales the shared D in place at each step.
- beta is 0.9 as FedVLS prints for FedSAM, though it may mean the local momentum; FedGF's scripts search 0.1,
  0.7 and 0.9. beta=1 is FedSAM. In the first round steps are beta times FedSAM's.
"""

from __future__ import annotations

from unskew.errors import require
from unskew.method import Method, Work
from unskew.methods.card import card
from unskew.parts.leaning import NEEDS_SGD, last_direction, leaning
from unskew.parts.naming import taken
from unskew.parts.sharpness import uphill
from unskew.types import Gradient, Scope

DIRECTION = "mofedsam/direction"


@card(
    "mofedsam",
    passes="one per step and its gradient: twice the work",
    memory="one copy of the weights and one vector of their size",
    traffic="one vector of the model's size down",
    sends="its number of local steps",
)
def mofedsam(*, rho: float = 0.1, beta: float = 0.9) -> Method:
    """FedSAM whose steps lean to where everybody moved in the last round."""
    require(rho >= 0, f"rho is {rho} but should be 0 or more.")
    require(0 < beta <= 1, f"beta is {beta} but should be above 0 and at most 1.")

    def transform(gradient: Gradient, scope: Scope) -> Gradient:
        return leaning(uphill(gradient, rho), taken(DIRECTION, scope.shared), beta)

    return Method(
        transform=transform,
        server=last_direction(DIRECTION),
        fresh_momentum=True,
        steady_lr=True,
        needs_sgd=NEEDS_SGD,
        work=Work(points=2 if rho else 1),
    )
