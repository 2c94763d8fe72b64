"""FedAvgM.

Hsu, Qi, Brown. Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification. arXiv:1909.06335, 2019.

The server takes the mean update for a gradient and moves with momentum. What the clients agree on adds up
over the rounds; what a cohort happened to hold averages out.

    v <- beta v + (1 - dampening) Delta,   Delta = sum_k p_k (w_k - w[t])
    w[t+1] = w[t] + server_lr v

Deviations:
- beta is 0.7 as in FedLMD's code, whose paper combines it with FedLMD and FedProx and prints no beta; 0.9 is
  common elsewhere.
- dampening=beta gives FedDecorr's form, an exponential average of the updates, 1/(1-beta) times weaker.
- FedLMD's paper calls this method Adam-based; it is not.
"""

from __future__ import annotations

from unskew.errors import require
from unskew.method import Method
from unskew.methods.card import card
from unskew.parts.naming import taken, under, zeros
from unskew.types import Params, Server, ServerState, Tensors, Weights

VELOCITY = "fedavgm/velocity"


@card("fedavgm")
def fedavgm(*, beta: float = 0.7, server_lr: float = 1.0, dampening: float = 0.0) -> Method:
    """Move the global model with momentum."""
    require(0 <= beta < 1, f"beta is {beta} but should be at least 0 and below 1.")
    require(server_lr > 0, f"server_lr is {server_lr} but should be above 0.")
    require(0 <= dampening < 1, f"dampening is {dampening} but should be at least 0 and below 1.")

    def init(weights: Weights) -> Tensors:
        return zeros(VELOCITY, weights)

    def move(state: ServerState, delta: Params) -> tuple[Params, Tensors]:
        velocity = {
            name: beta * value + (1 - dampening) * delta[name]
            for name, value in taken(VELOCITY, state.memory).items()
        }
        params = {name: value + server_lr * velocity[name] for name, value in state.weights.params.items()}
        return params, under(VELOCITY, velocity)

    return Method(server=Server(init=init, move=move))
