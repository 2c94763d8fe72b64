"""FedExP.

Jhunjhunwala, Wang, Joshi. FedExP: Speeding Up Federated Averaging via Extrapolation. ICLR 2023.

The more the clients' updates disagree, the shorter their mean and the further it may safely be followed. The
server's step size is found anew in each round from the norms of the updates.

    eta_g = max(1, sum_k p_k ||Delta_k||^2 / (2 (||Delta||^2 + epsilon))),   Delta = sum_k p_k Delta_k
    w[t+1] = w[t] + eta_g Delta

Deviations:
- epsilon is the authors' 0.001 for CIFAR; they take 0.1 for EMNIST, multiply it by the cohort's size and let
  it decay by 0.998^2 a round. FedVLS prints 0.01.
- Clients weigh by their number of samples, as in the authors' code; weighting="uniform" is the paper's form.
- The authors test the mean of the last two global models, because extrapolated ones oscillate. That is
  average=True; the default tests the last one, as all other methods are tested.
- Norms are of parameters only. The code of FedDecorr and FedVLS includes BatchNorm's step counters, which
  outweigh everything else and hold eta_g at 1: norms="state".
- Gradients are not clipped; the authors clip them at 10.
- With fedavgm the extrapolated update enters the momentum; the authors extrapolate the velocity instead.
"""

from __future__ import annotations

from typing import Literal

import torch

from unskew.errors import require
from unskew.method import Method
from unskew.methods.card import card
from unskew.parts.naming import packed, unpacked
from unskew.parts.servers import blend, squared_norms, weighted_sum
from unskew.types import Params, Server, ServerState, Tensors, Updates, Weights

PREVIOUS = "fedexp/previous"


@card("fedexp")
def fedexp(
    *,
    epsilon: float = 1e-3,
    weighting: Literal["size", "uniform"] = "size",
    norms: Literal["parameters", "state"] = "parameters",
    average: bool = False,
) -> Method:
    """Extrapolate the mean update, the further the more the clients disagree."""
    require(norms in ("parameters", "state"), f"norms is '{norms}' but should be 'parameters' or 'state'.")
    require(epsilon >= 0, f"epsilon is {epsilon} but should be 0 or more.")
    require(
        weighting in ("size", "uniform"), f"weighting is '{weighting}' but should be 'size' or 'uniform'."
    )

    def combine(state: ServerState, updates: Updates) -> Params:
        p = updates.weight
        if weighting == "uniform":
            p = torch.full_like(p, 1 / len(p))
        mean = weighted_sum(updates.delta, p)
        moves = updates.delta
        if norms == "state":
            moves = moves | {
                name: (rows.double() - state.weights.buffers[name]).reshape(len(rows), -1)
                for name, rows in updates.buffers.items()
            }
        spread = torch.dot(p, squared_norms(moves))
        whole = {name: rows[None] for name, rows in weighted_sum(moves, p).items()}
        length = squared_norms(whole)[0] + epsilon
        # Without any length there is nothing to extrapolate.
        eta_g = torch.where(length > 0, spread / (2 * length), 1.0).clamp(min=1)
        return {name: eta_g.to(value) * value for name, value in mean.items()}

    if not average:
        return Method(server=Server(combine=combine))

    def init(weights: Weights) -> Tensors:
        return packed(PREVIOUS, weights) | {"fedexp/rounds": torch.zeros((), dtype=torch.int64)}

    def note(state: ServerState, after: Weights, updates: Updates) -> Tensors:
        return packed(PREVIOUS, state.weights) | {"fedexp/rounds": state.memory["fedexp/rounds"] + 1}

    def serve(state: ServerState) -> Weights:
        if state.memory["fedexp/rounds"] < 2:  # the initial model was not trained
            return state.weights
        return blend(unpacked(PREVIOUS, state.memory), state.weights, 0.5)

    return Method(server=Server(combine=combine, init=init, note=note, serve=serve))
