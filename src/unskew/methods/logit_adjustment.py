"""Logit adjustment, known as balanced softmax.

Menon, Jayasumana, Rawat, Jain, Veit, Kumar. Long-Tail Learning via Logit Adjustment. ICLR 2021.
Ren, Yu, Sheng, Ma, Zhao, Yi, Li. Balanced Meta-Softmax for Long-Tailed Visual Recognition. NeurIPS 2020.

The log-prior of the classes is added to the logits in the local loss, so that the model learns what is left
without it: the same at all clients, however skewed. Post hoc, the log-prior is taken off the logits of a
model that was trained without it.

    L = CE(z + tau log p, y),   p_c = n_c / n
    prior="global":  n_c summed over the clients
    floor=f > 0:     p_c = (n_c / n + f) / (1 + C f), a soft prior: vacant classes stay in the softmax
    post hoc:        predict the largest z - tau log p, p global

Deviations:
- With tau=1 this is balanced softmax.
- floor=0 leaves the classes with p_c = 0 out of the softmax, the limit p_c -> 0. A floor above 0 adds
  tau log(p + floor) instead; 1 + C f shifts all logits alike and cancels. It goes from balanced softmax to
  plain cross-entropy as it grows; 0.01 is a soft prior to begin with. FedVLS released 1e-9. PyTorch code of
  logit adjustment that is widely used adds log(p^tau + 1e-12), which for tau=1 is floor=1e-12; for other tau
  a vacant class weighs otherwise.
- prior="global": the server knows the counts of the clients that have taken part. Where a client's own count
  is larger than the sum of those, it stands in; so in the first round the prior is the client's.
- Post hoc, the correction is written into the last bias of the served model, and a class nobody has reported
  counts as one sample. Training is untouched. It helps only where all the data together are imbalanced.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from unskew.errors import UserError, require
from unskew.losses import calibrated_cross_entropy
from unskew.method import Method, Work
from unskew.methods.card import card
from unskew.parts.heads import find_head
from unskew.program import Program, Run
from unskew.result import Result
from unskew.trial import weights_of
from unskew.types import End, Look, Memory, Scope, Server, ServerState, Tensors, Updates, View, Weights

COUNTS = "logit-adjustment/counts"
"""At a client: the counts that it has reported. At the server: their sum over the clients."""
CHANGE = "logit-adjustment/change"
"""Reported: the difference between a client's counts and those that it reported before."""
TOTAL = "logit-adjustment/total"
"""Broadcast: the sum over clients. At the client: the counts of which the prior is made."""


@card(
    "logit-adjustment",
    traffic="none; with prior=global C numbers down and up",
    sends="nothing; with prior=global its label counts",
)
def logit_adjustment(
    *, tau: float = 1.0, prior: Literal["client", "global"] = "client", floor: float = 0.0
) -> Method:
    """Add the log-prior of the classes to the logits in the loss."""
    require(tau >= 0, f"tau is {tau} but should be 0 or more.")
    require(floor >= 0, f"floor is {floor} but should be 0 or more.")
    require(prior in ("client", "global"), f"prior is '{prior}' but should be client or global.")

    def loss(view: View) -> Tensor:
        counts = view.scope.counts if prior == "client" else view.scope.memory[TOTAL]
        return calibrated_cross_entropy(view.out.logits, view.labels, counts, tau=tau, floor=floor or None)

    if prior == "client":
        return Method(loss=loss, work=Work())
    memory, server = Memory(_zero_counts, _total, _report_counts), Server(note=_note, share=_share)
    return Method(loss=loss, memory=memory, server=server, work=Work())


@card("logit-adjustment-post-hoc", traffic="C numbers up", sends="its label counts")
def logit_adjustment_post_hoc(*, tau: float = 1.0) -> Program:
    """Take the global log-prior off the logits of the trained model."""
    require(tau >= 0, f"tau is {tau} but should be 0 or more.")

    def run(run: Run) -> Result:
        base, module = run.base, run.trial.build()
        bias = find_head(module, len(run.trial.federation.dataset.classes)).bias
        if bias is None or bias not in weights_of(module).params:
            raise UserError(
                "logit-adjustment-post-hoc needs a model whose last layer has a trained bias: choose another."
            )

        def serve(state: ServerState) -> Weights:
            weights = base.server.serve(state)
            if COUNTS not in state.memory:
                return weights
            counts = state.memory[COUNTS].clamp(min=1).to(weights.params[bias])
            shift = tau * (counts / counts.sum()).log()
            return Weights({**weights.params, bias: weights.params[bias] - shift}, weights.buffers)

        counting = Method(
            memory=Memory(_zero_counts, update=_report_counts), server=Server(note=_note), work=Work()
        )
        method = base + counting
        return run.train_all(replace(method, server=replace(method.server, serve=serve)))

    return Program(run, work=Work())


def _total(scope: Scope, look: Look) -> Tensors:
    return {TOTAL: torch.maximum(scope.shared.get(TOTAL, scope.counts), scope.counts)}


def _zero_counts(weights: Weights, counts: Tensor) -> Tensors:
    return {COUNTS: torch.zeros_like(counts)}


def _report_counts(scope: Scope, end: End) -> tuple[Tensors, Tensors]:
    return {COUNTS: scope.counts}, {CHANGE: scope.counts - scope.memory[COUNTS]}


def _note(state: ServerState, after: Weights, updates: Updates) -> Tensors:
    change = updates.reported[CHANGE].sum(0)
    return {COUNTS: state.memory[COUNTS] + change if COUNTS in state.memory else change}


def _share(state: ServerState) -> Tensors:
    return {TOTAL: state.memory[COUNTS]} if COUNTS in state.memory else {}
