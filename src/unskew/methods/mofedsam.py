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

import torch
from torch import Tensor

from unskew.errors import require
from unskew.method import Method, Work
from unskew.methods.card import card
from unskew.parts.naming import select, taken, under
from unskew.parts.servers import weighted_sum
from unskew.parts.sharpness import uphill
from unskew.parts.steps import effective_steps
from unskew.types import Gradient, Params, Scope, Server, ServerState, Tensors, Updates, Weights

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
        flat = uphill(gradient, rho)
        direction = taken(DIRECTION, scope.shared)

        def mixed(params: Params, /, *, track: bool = True) -> tuple[Tensor, Params]:
            loss, grads = flat(params, track=track)
            return loss, {name: beta * grad + (1 - beta) * direction[name] for name, grad in grads.items()}

        return mixed

    def init(weights: Weights) -> Tensors:
        return under(DIRECTION, {name: torch.zeros_like(value) for name, value in weights.params.items()})

    def note(state: ServerState, after: Weights, updates: Updates) -> Tensors:
        counts = [effective_steps(steps, updates.momentum) for steps in updates.steps.tolist()]
        scale = -updates.weight / (updates.lr * updates.weight.new_tensor(counts))
        return under(DIRECTION, weighted_sum(updates.delta, scale))

    def share(state: ServerState) -> Tensors:
        return select(DIRECTION, state.memory)

    return Method(
        transform=transform,
        server=Server(init=init, note=note, share=share),
        fresh_momentum=True,
        needs_sgd="its steps lean to a mean gradient, which a client's move, divided by lr and steps, is "
        "under SGD alone",
        work=Work(points=2 if rho else 1),
    )
