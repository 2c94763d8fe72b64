"""FedAvg.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas. Communication-Efficient Learning of Deep Networks from
Decentralized Data. AISTATS 2017.

Every client trains the received model on its own data; the server averages the results, each weighted by
its client's number of samples.

    w[t+1] = w[t] + sum_k p_k (w_k - w[t]),   p_k = n_k / sum of n over the cohort

Deviations: none. The weights p_k are taken over the clients that trained, so they sum to 1 under partial
participation.
"""

from __future__ import annotations

from unskew.method import Method
from unskew.methods.card import card


@card("fedavg")
def fedavg() -> Method:
    """Average the clients' models, weighted by their number of samples."""
    return Method()
