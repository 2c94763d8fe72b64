"""FedProx.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated Optimization in Heterogeneous Networks. MLSys 2020.

A proximal term keeps each client's model near the received one.

    L = CE + mu/2 ||w - w[t]||^2,   over trainable parameters

Deviations: clients are sampled uniformly and averaged by their number of samples, as the label-skew papers
do; the original samples by size and averages uniformly. The term diverges when lr * mu >= 2.
"""

from __future__ import annotations

from torch import Tensor

from unskew.errors import require
from unskew.losses import proximal_term
from unskew.method import Method, Work
from unskew.methods.card import COPY, card
from unskew.types import View


@card("fedprox", memory=COPY)
def fedprox(*, mu: float = 0.01) -> Method:
    """Keep every client near the received model by a proximal term."""
    require(mu >= 0, f"mu is {mu} but should be 0 or more.")

    def term(view: View) -> Tensor:
        return proximal_term(view.params, view.scope.anchor.params, mu=mu)

    return Method(terms=(term,), work=Work())
