"""FedAdam, FedYogi, FedAdagrad (FedOpt).

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan. Adaptive Federated Optimization. ICLR 2021.

The server takes the mean update for a gradient and moves with an adaptive optimiser: parameters whose
updates are large or frequent get smaller steps. Elementwise, without bias correction:

    Delta = sum_k p_k (w_k - w[t])
    m <- beta1 m + (1 - beta1) Delta
    FedAdagrad  v <- v + Delta^2
    FedAdam     v <- beta2 v + (1 - beta2) Delta^2
    FedYogi     v <- v - (1 - beta2) Delta^2 sign(v - Delta^2)
    w[t+1] = w[t] + server_lr m / (sqrt(v) + tau),   v starts at tau^2, m at 0

Deviations:
- server_lr has no value that suits every task, and the paper tunes it together with tau. It is about how far
  a parameter moves in a round; the defaults here are a careful start.
- Updates are weighted by the number of samples, as in FedAvg; Algorithm 2 prints the plain mean.
- FedLC compares with "FedOpt" and names no variant: take fedadam.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from unskew.errors import require
from unskew.method import Method
from unskew.methods.card import card
from unskew.parts.naming import taken, under, zeros
from unskew.types import Params, Server, ServerState, Tensors, Weights


@card("fedadam")
def fedadam(*, server_lr: float = 0.01, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3) -> Method:
    """Move the global model with Adam."""
    _decay("beta2", beta2)

    def second(v: Tensor, squared: Tensor) -> Tensor:
        return beta2 * v + (1 - beta2) * squared

    return _adaptive("fedadam", server_lr, beta1, tau, second)


@card("fedyogi")
def fedyogi(*, server_lr: float = 0.01, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3) -> Method:
    """Move the global model with Yogi, which forgets large updates more slowly than Adam."""
    _decay("beta2", beta2)

    def second(v: Tensor, squared: Tensor) -> Tensor:
        return v - (1 - beta2) * squared * (v - squared).sign()

    return _adaptive("fedyogi", server_lr, beta1, tau, second)


@card("fedadagrad")
def fedadagrad(*, server_lr: float = 0.1, beta1: float = 0.0, tau: float = 1e-3) -> Method:
    """Move the global model with Adagrad."""

    def second(v: Tensor, squared: Tensor) -> Tensor:
        return v + squared

    return _adaptive("fedadagrad", server_lr, beta1, tau, second)


def _adaptive(
    name: str, server_lr: float, beta1: float, tau: float, second: Callable[[Tensor, Tensor], Tensor]
) -> Method:
    require(server_lr > 0, f"server_lr is {server_lr} but should be above 0.")
    _decay("beta1", beta1)
    require(tau > 0, f"tau is {tau} but should be above 0.")
    M, V = f"{name}/m", f"{name}/v"

    def init(weights: Weights) -> Tensors:
        return zeros(M, weights) | {name: value + tau**2 for name, value in zeros(V, weights).items()}

    def move(state: ServerState, delta: Params) -> tuple[Params, Tensors]:
        m, v = taken(M, state.memory), taken(V, state.memory)
        m = {name: beta1 * value + (1 - beta1) * delta[name] for name, value in m.items()}
        v = {name: second(value, delta[name].square()) for name, value in v.items()}
        params = {
            name: value + server_lr * m[name] / (v[name].sqrt() + tau)
            for name, value in state.weights.params.items()
        }
        return params, under(M, m) | under(V, v)

    return Method(server=Server(init=init, move=move))


def _decay(name: str, value: float) -> None:
    require(0 <= value < 1, f"{name} is {value} but should be at least 0 and below 1.")
