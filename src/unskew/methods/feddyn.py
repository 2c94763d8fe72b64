"""FedDyn.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama. Federated Learning Based on Dynamic
Regularization. ICLR 2021.

Each client's loss gets a linear and a proximal term that change from round to round, such that what clients
minimise agrees with the global loss at its minimum. A client remembers a gradient estimate; nothing but the
model travels.

    L = CE - <g_k, w> + alpha_k / 2 ||w - w[t]||^2,   then  g_k <- g_k - alpha_k (w_k - w[t])
    h <- h - alpha / N sum_k (w_k - w[t]),   w[t+1] = 1/m sum_k w_k - h / alpha
    alpha_k = alpha, or alpha mean_samples / n_k

Deviations:
- alpha is 0.1 as in the FedNTD and FedLMD code; the authors take 0.01 for CIFAR.
- The authors' code always uses alpha_k = alpha (n/N) / n_k, by which the fixed point is the minimum of the
  loss over all samples. Give n/N, the mean number of samples per client, as mean_samples for that; with the
  default 0 clients count alike, as in the paper.
- The authors train from the corrected model and test the plain mean of the clients that trained:
  serve="mean". serve="corrected" tests the model w[t+1] itself.
- The authors' code and the paper count clients alike in w[t+1]. The FedNTD code weighs them by samples there,
  and not in h: average="size", with serve="corrected".
- The authors clip gradients at 10; here they are not.
- BatchNorm statistics are averaged by the number of samples, because what becomes of them is a policy of the
  run. N counts the clients that have data.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from unskew.errors import require
from unskew.losses import proximal_term
from unskew.method import DRIFT, START, Method, Work
from unskew.methods.card import card
from unskew.parts.naming import taken, under, zeros
from unskew.parts.servers import equal_mean
from unskew.types import End, Memory, Params, Scope, Server, ServerState, Tensors, Updates, View, Weights

GRADIENT, H, MEAN = "feddyn/g", "feddyn/h", "feddyn/mean"


@card("feddyn", memory="a gradient estimate of the model's size, and one copy of the weights")
def feddyn(
    *,
    alpha: float = 0.1,
    mean_samples: float = 0.0,
    serve: Literal["mean", "corrected"] = "mean",
    average: Literal["uniform", "size"] = "uniform",
) -> Method:
    """Change every client's loss from round to round so that its minimum agrees with the global one."""
    require(alpha > 0, f"alpha is {alpha} but should be above 0: the server divides by it.")
    require(mean_samples >= 0, f"mean_samples is {mean_samples} but should be 0 or more.")
    require(serve in ("mean", "corrected"), f"serve is '{serve}' but should be 'mean' or 'corrected'.")
    require(average in ("uniform", "size"), f"average is '{average}' but should be 'uniform' or 'size'.")

    def share_of(scope: Scope) -> Tensor | float:
        return mean_samples / scope.counts.sum() if mean_samples else 1.0

    def linear(view: View) -> Tensor:
        estimate = taken(GRADIENT, view.scope.memory)
        parts = [torch.dot(estimate[name].flatten(), value.flatten()) for name, value in view.params.items()]
        return -torch.stack(parts).sum()

    def proximal(view: View) -> Tensor:
        return share_of(view.scope) * proximal_term(view.params, view.scope.anchor.params, mu=alpha)

    def update(scope: Scope, end: End) -> tuple[Tensors, Tensors]:
        strength = alpha * share_of(scope)
        gradient = {
            name: value - strength * (end.weights.params[name] - scope.anchor.params[name])
            for name, value in taken(GRADIENT, scope.memory).items()
        }
        return under(GRADIENT, gradient), {}

    def next_h(state: ServerState, updates: Updates) -> Params:
        scale = alpha / updates.holders
        return {
            name: value - scale * updates.delta[name].sum(dim=0)
            for name, value in taken(H, state.memory).items()
        }

    def mean_of(updates: Updates) -> Params:
        return equal_mean(updates) if average == "uniform" else updates.mean

    def combine(state: ServerState, updates: Updates) -> Params:
        h = next_h(state, updates)
        return {name: value - h[name] / alpha for name, value in mean_of(updates).items()}

    def note(state: ServerState, after: Weights, updates: Updates) -> Tensors:
        mean = {name: state.weights.params[name] + value for name, value in mean_of(updates).items()}
        return under(H, next_h(state, updates)) | under(MEAN, mean)

    def plain_mean(state: ServerState) -> Weights:
        return Weights(taken(MEAN, state.memory), state.weights.buffers)

    return Method(
        terms=(linear, proximal),
        work=Work(),
        roles=frozenset({DRIFT, START} if serve == "mean" else {DRIFT}),
        needs_sgd="it takes a client's move for a gradient, which the signed steps of Adam are not",
        memory=Memory(lambda weights, counts: zeros(GRADIENT, weights), update=update),
        server=Server(
            combine=combine,
            init=lambda weights: zeros(H, weights) | under(MEAN, weights.params),
            note=note,
            serve=plain_mean if serve == "mean" else Server().serve,
        ),
        notes=("feddyn's tested model is the mean of the clients that trained, not the one trained from.",)
        if serve == "mean"
        else (),
    )
