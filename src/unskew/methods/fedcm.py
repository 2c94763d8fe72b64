"""FedCM.

Xu, Wang, Wang, Yao. FedCM: Federated Learning with Client-level Momentum. arXiv:2106.10874, 2021.

Every local step leans to the direction in which everybody moved in the last round. Clients keep nothing: the
momentum comes with the model.

    step with  alpha grad L(w) + (1 - alpha) D
    D = - sum_k p_k (w_k - w[t]) / (lr A(K_k, rho_m)),   zero in the first round

A is the effective number of steps under local momentum rho_m (see scaffold), K without it. The lr is that of
the round in which the clients moved. It is MoFedSAM without the step uphill: mofedsam with rho=0 and
beta=alpha.

Deviations:
- The paper has neither local momentum nor unequal clients: it divides by lr K and takes the plain mean. The
  server averages models as FedAvg does, which is the paper's server step with server_lr = lr K.
- alpha is 0.1 as in FL-Simulator and in GHBM's code; FedSWA's code has 0.15. No code of the authors was
  found. FL-Simulator takes the number of steps from the first client, FedSWA's code a fixed 50; here it is
  each client's own.
- FL-Simulator clips the mixed gradient to norm 10, FedSWA's code the client's own; here nothing is clipped.
- Weight decay is added after mixing, as in both. In the first round steps are alpha times FedAvg's.
"""

from __future__ import annotations

from unskew.errors import require
from unskew.method import Method, Work
from unskew.methods.card import card
from unskew.parts.leaning import NEEDS_SGD, last_direction, leaning
from unskew.parts.naming import taken
from unskew.types import Gradient, Scope

DIRECTION = "fedcm/direction"


@card(
    "fedcm",
    memory="one vector of the model's size",
    traffic="one vector of the model's size down",
    sends="its number of local steps",
)
def fedcm(*, alpha: float = 0.1) -> Method:
    """Let local steps lean to where everybody moved in the last round."""
    require(0 < alpha <= 1, f"alpha is {alpha} but should be above 0 and at most 1.")

    def transform(gradient: Gradient, scope: Scope) -> Gradient:
        return leaning(gradient, taken(DIRECTION, scope.shared), alpha)

    return Method(
        transform=transform,
        server=last_direction(DIRECTION),
        fresh_momentum=True,
        steady_lr=True,
        needs_sgd=NEEDS_SGD,
        work=Work(),
    )
