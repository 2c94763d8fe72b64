"""MOON.

Li, He, Song. Model-Contrastive Federated Learning. CVPR 2021.

A client's features are drawn to those of the received model, and away from those of the client's own model
of its previous round. Both are frozen, so only the model being trained moves.

    L = CE + mu mean_x -log( e^(s_g/tau) / (e^(s_g/tau) + sum_r e^(s_r/tau)) )
    s_g = cos(h, h of the received model),   s_r = cos(h, h of the client's r-th previous model)

Deviations:
- The default is the model without a projection, h its features, as FedLMD's code has it: then every method is
  compared on the same network. `projection="moon"` puts the authors' two layers (d -> d -> 256) before the
  classifier, "fedvls" those of FedVLS's code (d -> d/2 -> 256); the model then has more parameters.
- `mu` is 0.01 and `tau` 0.5 as in FedVLS's comparison. FedLMD tuned mu 0.1 and tau 0.5 or 1; the original
  tunes mu over 0.1, 1, 5 and 10 and takes 5 for CIFAR-10, 1 for CIFAR-100 and Tiny-ImageNet, with tau 0.5.
- A client that takes part for the first time contrasts with the run's initial model. The released code has no
  contrast in its first round, and later each new client's own random network. With a `buffer` of several
  previous models those not yet there are the initial model too: the number of contrasts never changes.
- Both frozen models run in evaluation mode; FedVLS's code leaves them in training mode. FedDecorr's code
  reads tau and does not use it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor

from unskew.errors import require, unknown
from unskew.losses import contrastive_term
from unskew.method import Method, Work
from unskew.methods.card import card
from unskew.parts.naming import packed, unpacked
from unskew.program import Program, Run
from unskew.result import Result
from unskew.types import End, Memory, Scope, Tensors, View, Weights

Projection = Literal["none", "moon", "fedvls"]


@card(
    "moon",
    passes="two per batch, of the received and of the client's previous model",
    memory="the client's previous model, or as many as buffer says",
)
def moon(
    *, mu: float = 0.01, tau: float = 0.5, buffer: int = 1, projection: Projection = "none"
) -> Method | Program:
    """Contrast a client's features with its previous model's, and align them with the received model's."""
    require(mu >= 0, f"mu is {mu} but should be 0 or more.")
    require(tau > 0, f"tau is {tau} but should be above 0.")
    require(buffer >= 1, f"buffer is {buffer} but should be at least 1, the previous model.")
    if projection not in get_args(Projection):
        raise unknown("projection", projection, get_args(Projection))

    def models(scope: Scope) -> list[Weights]:
        return [unpacked(f"moon/{slot}", scope.memory) for slot in range(buffer)]

    def keep(newest_first: list[Weights]) -> Tensors:
        slots = [packed(f"moon/{slot}", weights) for slot, weights in enumerate(newest_first)]
        return {name: value for slot in slots for name, value in slot.items()}

    def term(view: View) -> Tensor:
        previous = torch.stack([view.forward(model).features for model in models(view.scope)])
        return mu * contrastive_term(view.out.features, view.teacher.features, previous, temperature=tau)

    def init(weights: Weights, counts: Tensor) -> Tensors:
        return keep([weights] * buffer)

    def update(scope: Scope, end: End) -> tuple[Tensors, Tensors]:
        return keep([end.weights, *models(scope)[:-1]]), {}

    contrast = Method(
        terms=(term,), memory=Memory(init, update=update), work=Work(teacher=True, frozen=buffer)
    )
    if projection == "none":
        return contrast

    def run(run: Run) -> Result:
        require(
            isinstance(run.trial.model, str),
            "moon can put its projection into named models only: build it into your module and choose "
            "projection=none.",
        )
        options = {**run.trial.model_options, "projection": projection}
        return run.train_all(run.base, replace(run.trial, model_options=options))

    note = f"the model has the '{projection}' projection before its head: it is not the other methods' model."
    return Program(run, replace(contrast, notes=(note,)), work=Work())
