"""Coordinate-wise median.

Yin, Chen, Ramchandran, Bartlett. Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates.
ICML 2018.

The server takes the median of the clients' updates, parameter by parameter. As long as more than half of the
clients are honest, every coordinate lies between values that honest clients sent.

    Delta_j = median over k of (w_k - w[t])_j

Weights: none, every client counts alike, because a number of samples is a claim as well.

Deviations:
- Of an even number of clients it is the mean of the two values in the middle.
- BatchNorm statistics, where the run averages them, are the clients' median too. What a method reports beside
  the update (SCAFFOLD's controls, prototypes) is used as it is sent.
- It assumes clients that are alike. Under label skew few clients move the weights of a rare class, and the
  median takes those few for outliers: the class is not learnt. See docs/reliability.md, and `nnm`.
"""

from __future__ import annotations

from unskew.method import Method
from unskew.methods.card import card
from unskew.parts.robust import median as median_of
from unskew.parts.robust import median_buffers, sound_rows
from unskew.types import Params, Server, ServerState, Updates


@card("median")
def median() -> Method:
    """Take the median of the clients' updates, parameter by parameter."""
    return Method(server=Server(combine=_combine, buffers=median_buffers))


def _combine(state: ServerState, updates: Updates) -> Params:
    sound = sound_rows(updates.delta)
    return {name: median_of(value, sound) for name, value in updates.delta.items()}
