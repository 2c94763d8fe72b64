"""SCAFFOLD.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh. SCAFFOLD: Stochastic Controlled Averaging for Federated
Learning. ICML 2020.

Every client estimates its own gradient direction, the server their mean; each local step is corrected by the
difference. Clients then move as if they saw everybody's data, and many local steps cause no drift.

    step with  g = grad L(w) - c_k + c                                     fed to the local optimiser
    option II: c_k+ = c_k - c + (w[t] - w_k) / (lr A(K, rho))
    option I:  c_k+ = grad L_k(w[t]), over all samples of the client
    c <- c + 1/N sum_k (c_k+ - c_k),   w[t+1] = w[t] + server_lr sum_k p_k (w_k - w[t])
    A(K, rho) = (K - rho (1 - rho^K) / (1 - rho)) / (1 - rho),   K steps with momentum rho; A(K, 0) = K

Deviations:
- The paper has no local momentum. With it, w[t] - w_k is lr A(K, rho) times a mean gradient, so that is the
  divisor; lr K would make c_k up to 1 / (1 - rho) times too large.
- Models are averaged by the number of samples, controls over all N clients that have data alike, so the fixed
  point is the minimum of the unweighted mean of the clients' losses. scaffold+uniform is the paper's
  Algorithm 1.
- Weight decay is part of the local steps, hence of c_k under option II, and not under option I.
- Option I differentiates the cross-entropy, in evaluation mode, whatever loss it is combined with.
- Controls start at zero and exist for parameters only. NIID-Bench starts them from random networks,
  corrects BatchNorm statistics too, and shifts the weights by -lr (c - c_k) after the optimiser's step: its
  correction then enters no momentum, and its divisor is lr K.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from unskew.errors import require
from unskew.method import DRIFT, Method, Work
from unskew.methods.card import card
from unskew.parts.naming import select, taken, under, zeros
from unskew.parts.steps import effective_steps
from unskew.types import End, Look, Memory, Params, Scope, Server, ServerState, Tensors, Updates, Weights

CONTROL, CHANGE = "scaffold/c", "scaffold/change"


@card(
    "scaffold",
    passes="none; with option=I one per round and its gradient, of the received model",
    memory="two vectors of the model's size: its control and everybody's",
    traffic="one vector of the model's size down and one up",
    sends="the change of its control, a mean gradient over its data",
)
def scaffold(*, option: Literal["I", "II"] = "II", server_lr: float = 1.0) -> Method:
    """Correct every local step by how the client's gradients differ from everybody's."""
    require(option in ("I", "II"), f"option is '{option}' but should be 'I' or 'II'.")
    require(server_lr > 0, f"server_lr is {server_lr} but should be above 0.")

    def correction(scope: Scope) -> Params:
        own, all_ = taken(CONTROL, scope.memory), taken(CONTROL, scope.shared)
        return {name: all_[name] - value for name, value in own.items()}

    def update(scope: Scope, end: End) -> tuple[Tensors, Tensors]:
        own = taken(CONTROL, scope.memory)
        if option == "I":
            new = _full_gradient(scope.anchor, end.look)
        else:
            shift, divisor = correction(scope), end.lr * effective_steps(end.steps, end.momentum)
            new = {
                name: (value - end.weights.params[name]) / divisor - shift[name]
                for name, value in scope.anchor.params.items()
            }
        change = {name: new[name] - value for name, value in own.items()}
        return under(CONTROL, new), under(CHANGE, change)

    def note(state: ServerState, after: Weights, updates: Updates) -> Tensors:
        change = taken(CHANGE, updates.reported)
        return under(
            CONTROL,
            {
                name: value + change[name].sum(dim=0) / updates.holders
                for name, value in taken(CONTROL, state.memory).items()
            },
        )

    def share(state: ServerState) -> Tensors:
        return select(CONTROL, state.memory)

    def move(state: ServerState, delta: Params) -> tuple[Params, Tensors]:
        return {name: value + server_lr * delta[name] for name, value in state.weights.params.items()}, {}

    return Method(
        corrections=(correction,),
        roles=frozenset({DRIFT}),
        fresh_momentum=option == "II",
        steady_lr=option == "II",
        needs_sgd="its controls are gradients, and so is a client's move, divided by lr and steps, under SGD "
        "alone",
        work=Work(gradients=1 if option == "I" else 0),
        memory=Memory(lambda weights, counts: zeros(CONTROL, weights), update=update),
        server=Server(
            init=partial(zeros, CONTROL),
            note=note,
            share=share,
            move=Server().move if server_lr == 1 else move,
        ),
        notes=("scaffold's option I estimates controls by the plain cross-entropy.",)
        if option == "I"
        else (),
    )


@torch.enable_grad()
def _full_gradient(weights: Weights, look: Look) -> Params:
    """Return the gradient of the mean cross-entropy over all samples of the client."""
    total = {name: torch.zeros_like(value) for name, value in weights.params.items()}
    samples = 0
    for view in look(weights, grad=True):
        loss: Tensor = cross_entropy(view.out.logits, view.labels, reduction="sum")
        grads = torch.autograd.grad(
            loss, list(view.params.values()), allow_unused=True, materialize_grads=True
        )
        total = {name: total[name] + grad for name, grad in zip(view.params, grads, strict=True)}
        samples += len(view.labels)
    return {name: value / samples for name, value in total.items()}
