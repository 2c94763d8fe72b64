"""Weights over all data, as Algorithm 1 of FedVLS and FedED prints them.

Guo, Ding, Liang, He, Wang, Tan. Exploring Vacant Classes in Label-Skewed Federated Learning. AAAI 2025.

The printed sum weighs a client by its part of all data, also where only some clients take part: the weights
then do not sum to 1, and every step shrinks by the part of the data that stayed away. For study: the released
code weighs over the cohort, as FedAvg does.

    w[t+1] = w[t] + sum_k n_k / n (w_k - w[t]),   n over all clients

Deviations: the print averages the models themselves, which would shrink the weights with the step; here the
updates are averaged, which is the same when all clients take part.
"""

from __future__ import annotations

from unskew.method import Method
from unskew.methods.card import card
from unskew.types import Params, Server, ServerState, Updates


@card("unnormalised")
def unnormalised() -> Method:
    """Weigh clients by their part of all data, whoever takes part."""

    def combine(state: ServerState, updates: Updates) -> Params:
        return {name: updates.share * value for name, value in updates.mean.items()}

    return Method(server=Server(combine=combine))
