"""FedNova.

Wang, Liu, Liang, Joshi, Poor. Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization. NeurIPS 2020.

A client that took more steps moved further and pulls the average its way. Each update is divided by the
client's effective number of steps, and the average is scaled back to a typical length.

    w[t+1] = w[t] + tau_eff sum_k p_k (w_k - w[t]) / a_k,   tau_eff = sum_k p_k A(K_k)
    a_k = A(K_k),   A(K) = (K - rho (1 - rho^K) / (1 - rho)) / (1 - rho)   for K steps with momentum rho
    with a proximal term of weight mu and no momentum: a_k = sum_{j<K} (1 - lr mu)^j

Deviations:
- `mu` is the one of the fedprox it is combined with; it changes a_k. With momentum too, a_k is the
  distance covered under a constant gradient, computed step by step, and tau_eff the one without the proximal
  term; the authors' code then adds both counts in one recursion and takes sum_k p_k K_k.
- Server momentum (the authors' gmf) is fednova+fedavgm.
- BatchNorm statistics follow the run's policy. NIID-Bench's code normalises them by a_k like weights, by
  which they may leave the range of what any client has seen.
- The code of FedNTD and FedLMD adds a control term whose global part is never updated, so that each client
  subtracts its own last direction. That is not FedNova and not here.
"""

from __future__ import annotations

import torch

from unskew.errors import require
from unskew.method import Method
from unskew.methods.card import card
from unskew.parts.servers import weighted_sum
from unskew.parts.steps import effective_steps
from unskew.types import Params, Server, ServerState, Updates


@card("fednova", sends="its number of local steps")
def fednova(*, mu: float = 0.0) -> Method:
    """Let clients count alike however many steps they took."""
    require(mu >= 0, f"mu is {mu} but should be 0 or more.")

    def combine(state: ServerState, updates: Updates) -> Params:
        steps, momentum = updates.steps.tolist(), updates.momentum
        plain = updates.weight.new_tensor([effective_steps(K, momentum) for K in steps])
        a = updates.weight.new_tensor([effective_steps(K, momentum, pull=updates.lr * mu) for K in steps])
        tau_eff = torch.dot(updates.weight, plain)
        return weighted_sum(updates.delta, tau_eff * updates.weight / a)

    return Method(
        server=Server(combine=combine),
        fresh_momentum=True,
        steady_lr=True,
        needs_sgd="it divides a client's move by how far its steps of SGD would go",
    )
