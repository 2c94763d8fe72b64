"""FedACG.

Kim, Kim, Han. Communication-Efficient Federated Learning with Accelerated Client Gradient. CVPR 2024.

The server moves with momentum, and sends the model as it will be when the momentum has carried it on: clients
train from where the others are heading, and are held near there.

    sent:    f = w[t] + lam m
    clients: L = CE + beta ||w - f||^2
    server:  m <- lam m + Delta,   Delta = sum_k p_k (w_k - f)
             w[t+1] = w[t] + m = f + Delta

Tested and saved is w, not f; so an average on top, such as ema's, is one of w.

Deviations:
- The released code averages clients alike; here they count by their samples, and fedacg+uniform is its form.
- lam is 0.85 and beta 0.001, as released for CIFAR-10, CIFAR-100 and Tiny-ImageNet. There is no half before
  beta: it is FedProx with mu = 2 beta, measured from f. The release trains with SGD without momentum, lr 0.1
  with a decay in every round and again in every local epoch, weight decay 0.001, and gradients clipped to
  norm 10.
- The released code adds lam m to all that the model holds, BatchNorm's statistics too, and fails on its
  counters; here to parameters alone.
"""

from __future__ import annotations

from torch import Tensor

from unskew.errors import require
from unskew.losses import proximal_term
from unskew.method import START, Method, Work
from unskew.methods.card import COPY, card
from unskew.parts.naming import taken, under, zeros
from unskew.types import Params, Server, ServerState, Tensors, View, Weights

MOMENTUM = "fedacg/momentum"


@card("fedacg", memory=f"{COPY}; with beta=0 none")
def fedacg(*, lam: float = 0.85, beta: float = 0.001) -> Method:
    """Move with momentum, and send the model from where the momentum carries it."""
    require(0 <= lam < 1, f"lam is {lam} but should be at least 0 and below 1.")
    require(beta >= 0, f"beta is {beta} but should be 0 or more.")

    def term(view: View) -> Tensor:
        return proximal_term(view.params, view.scope.anchor.params, mu=2 * beta)

    def init(weights: Weights) -> Tensors:
        return zeros(MOMENTUM, weights)

    def send(state: ServerState) -> Weights:
        momentum, now = taken(MOMENTUM, state.memory), state.weights
        ahead = {name: value + lam * momentum[name] for name, value in now.params.items()}
        return Weights(ahead, now.buffers)

    def move(state: ServerState, delta: Params) -> tuple[Params, Tensors]:
        momentum = {name: lam * value + delta[name] for name, value in taken(MOMENTUM, state.memory).items()}
        params = {name: value + momentum[name] for name, value in state.weights.params.items()}
        return params, under(MOMENTUM, momentum)

    return Method(
        terms=(term,) if beta else (),
        server=Server(init=init, send=send, move=move),
        roles=frozenset({START}),
        work=Work(),
    )
