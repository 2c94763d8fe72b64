"""WIMA.

Caldarola, Caputo, Ciccone. Window-based Model Averaging Improves Generalization in Heterogeneous Federated
Learning. ICCV Workshops 2023.

Under label skew the global model swings with the classes of each cohort. Clients and server train as always,
but the model that is tested, saved and deployed is the mean of those of the last rounds, in which the swings
cancel. Unlike ema's, it forgets older models at once.

    served: mean of w[t+1], w[t], ..., of the last `window` rounds, or of as many as there are

Deviations:
- No released code was found, and no width of the window in what of the paper could be read: 10 is our choice.
  The average is served from the first round on. window=1 serves the last model.
- Floating-point buffers, such as BatchNorm's running statistics, are averaged in the same way; counters are
  those of the last round.
- The server keeps `window` models, and so does every checkpoint.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unskew.errors import require
from unskew.method import Method
from unskew.methods.card import card
from unskew.parts.naming import packed, unpacked
from unskew.types import Server, ServerState, Tensors, Updates, Weights

MODELS, ROUNDS = "wima/models", "wima/rounds"


@card("wima")
def wima(*, window: int = 10) -> Method:
    """Serve the mean of the global models of the last rounds instead of the last one."""
    require(window >= 1, f"window is {window} but should be at least 1.")

    def init(weights: Weights) -> Tensors:
        return {ROUNDS: torch.zeros((), dtype=torch.int64)}

    def note(state: ServerState, after: Weights, updates: Updates) -> Tensors:
        rounds = state.memory[ROUNDS]
        return packed(_place(int(rounds) % window), after) | {ROUNDS: rounds + 1}

    def serve(state: ServerState) -> Weights:
        rounds = int(state.memory[ROUNDS])
        if not rounds:
            return state.weights
        latest = range(max(0, rounds - window), rounds)
        return _mean([unpacked(_place(n % window), state.memory) for n in latest])

    return Method(server=Server(init=init, note=note, serve=serve))


def _place(slot: int) -> str:
    return f"{MODELS}/{slot}"


def _mean(models: list[Weights]) -> Weights:
    """Return the mean of models, which are given from the oldest on. Counters are those of the last one."""

    def mean(values: list[Tensor]) -> Tensor:
        return torch.stack(values).mean(dim=0) if values[0].is_floating_point() else values[-1]

    last = models[-1]
    return Weights(
        {name: mean([model.params[name] for model in models]) for name in last.params},
        {name: mean([model.buffers[name] for model in models]) for name in last.buffers},
    )
