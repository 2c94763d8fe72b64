"""FedCodl.

Ni, Shen, Zhao. Federated Optimization via Knowledge Codistillation. Expert Systems with Applications 191,
2022. As described by Gan et al., Partial Knowledge Distillation (PKD), who compare against it.

The received model teaches the local one on the client's own samples. Cross-entropy and distillation share the
weight.

    L = (1 - alpha) CE + alpha T^2 KL( softmax(g / T) || softmax(z / T) ),   g: logits of the received model

Deviations:
- This is PKD's description with the options of a third-party implementation, not checked against the original
  text: call results FedCodl-style. alpha=0.5 is that implementation's; PKD prints neither alpha nor T.
- PKD computes the teacher's outputs once per round; here every batch is taught as it was augmented.
- warmup_rounds: plain FedAvg in the first rounds.
- student_init="own": a client that took part in the round before continues from its own last weights. Engines
  start every client at the received model, so gradients are taken at a shifted point and the result is
  shifted back. The steps are those from its own weights, except that weight decay does not see the shift and
  BatchNorm statistics start at the received ones. The client reports the shift; a deployment would add it to
  the weights before sending them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from unskew.errors import require
from unskew.losses import distillation
from unskew.method import Method, Work, plain_loss
from unskew.methods.card import TEACHER, card
from unskew.parts.naming import taken, under
from unskew.parts.rounds import share_round
from unskew.types import (
    End,
    Gradient,
    Look,
    Memory,
    Params,
    Scope,
    ServerState,
    Tensors,
    Updates,
    View,
    Weights,
)

ROUND = "fedcodl/round"
LAST = "fedcodl/last"
OWN = "fedcodl/own"
SHIFT = "fedcodl/shift"


@card(
    "fedcodl",
    passes=TEACHER,
    memory="one copy of the weights; with student_init=own three",
    traffic="one number down; with student_init=own one copy of the weights up",
    sends="nothing; with student_init=own where it started",
)
def fedcodl(
    *,
    alpha: float = 0.5,
    temperature: float = 1.0,
    warmup_rounds: int = 0,
    student_init: Literal["global", "own"] = "global",
) -> Method:
    """Share the weight between cross-entropy and distillation from the received model."""
    require(0 <= alpha <= 1, f"alpha is {alpha} but should be from 0 to 1.")
    require(temperature > 0, f"temperature is {temperature} but should be above 0.")
    require(warmup_rounds >= 0, f"warmup_rounds is {warmup_rounds} but should be 0 or more.")
    require(
        student_init in ("global", "own"), f"student_init is '{student_init}' but should be global or own."
    )

    def share(scope: Scope) -> Tensor:
        return torch.where(scope.shared[ROUND] < warmup_rounds, 0.0, alpha)

    def loss(view: View) -> Tensor:
        return (1 - share(view.scope)) * plain_loss(view)

    def term(view: View) -> Tensor:
        return share(view.scope) * distillation(view.out.logits, view.teacher.logits, temperature=temperature)

    method = Method(loss=loss, terms=(term,), server=share_round(ROUND), work=Work(teacher=True))
    return _continued(method, warmup_rounds) if student_init == "own" else method


def _continued(method: Method, warmup_rounds: int) -> Method:
    """Return the method with clients that start at their own last weights if they took part in the round
    before."""

    def init(weights: Weights, counts: Tensor) -> Tensors:
        never = torch.full((), -2, device=next(iter(weights.params.values())).device)
        return {LAST: never, **under(OWN, weights.params)}

    def prepare(scope: Scope, look: Look) -> Tensors:
        now, own = scope.shared[ROUND], taken(OWN, scope.memory)
        goes_on = (scope.memory[LAST] == now - 1) & (now >= warmup_rounds)
        shift = {
            name: torch.where(goes_on, own[name] - value, 0.0) for name, value in scope.anchor.params.items()
        }
        return under(SHIFT, shift)

    def transform(gradient: Gradient, scope: Scope) -> Gradient:
        shift = taken(SHIFT, scope.memory)

        def shifted(params: Params, /, *, track: bool = True) -> tuple[Tensor, Params]:
            return gradient(_sum(params, shift), track=track)

        return shifted

    def update(scope: Scope, end: End) -> tuple[Tensors, Tensors]:
        shift = taken(SHIFT, scope.memory)
        kept = {LAST: scope.shared[ROUND], **under(OWN, _sum(end.weights.params, shift))}
        return kept, under(SHIFT, shift)

    def combine(state: ServerState, updates: Updates) -> Params:
        return replace(updates, delta=_sum(updates.delta, taken(SHIFT, updates.reported))).mean

    return replace(
        method,
        transform=transform,
        memory=Memory(init, prepare, update),
        server=replace(method.server, combine=combine),
        own_start=True,
    )


def _sum(params: Params, more: Params) -> Params:
    return {name: value + more[name] for name, value in params.items()}
