"""Coordinate-wise trimmed mean.

Yin, Chen, Ramchandran, Bartlett. Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates.
ICML 2018.

Parameter by parameter, the server leaves out the largest and the smallest values and averages the rest. It
withstands as many bad clients as are left out on one side, and keeps more of what honest clients say than the
median does.

    Delta_j = mean over k of (w_k - w[t])_j without the f largest and f smallest,   f = floor(fraction n)

Weights: none, every client counts alike, because a number of samples is a claim as well.

Deviations:
- n are the clients of the cohort that trained. By chance a small cohort may hold more bad clients than the
  federation's fraction: choose it larger than that.
- BatchNorm statistics, where the run averages them, are the clients' median. What a method reports beside the
  update (SCAFFOLD's controls, prototypes) is used as it is sent.
- It assumes clients that are alike: under label skew what is left out is often a rare class. See
  docs/reliability.md, and `nnm`.
"""

from __future__ import annotations

from unskew.method import Method
from unskew.methods.card import card
from unskew.parts.robust import check_fraction, median_buffers, sound_rows
from unskew.parts.robust import trimmed_mean as trimmed_mean_of
from unskew.types import Params, Server, ServerState, Updates


@card("trimmed-mean")
def trimmed_mean(*, fraction: float = 0.2) -> Method:
    """Average the clients' updates without the largest and smallest values of every parameter."""
    check_fraction(fraction)

    def combine(state: ServerState, updates: Updates) -> Params:
        sound = sound_rows(updates.delta)
        return {name: trimmed_mean_of(value, sound, fraction) for name, value in updates.delta.items()}

    return Method(server=Server(combine=combine, buffers=median_buffers))
