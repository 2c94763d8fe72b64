"""FedCurv.

Shoham, Avidor, Keren, Israel, Benditkis, Mor-Yosef, Zeitak. Overcoming Forgetting in Federated Learning on
Non-IID Data. NeurIPS 2019 workshop on federated learning.

Elastic weight consolidation across clients: each client is held near the other clients' last models,
parameter by parameter, as firmly as the Fisher information says those clients need it. The server knows the
clients' diagonal Fisher I_k and I_k w_k, and sends the sums over all clients that ever took part.

    L = CE + lam sum_{j != k} (w - w_j)' diag(I_j) (w - w_j)
      = CE + lam (<P_k, w^2> - 2 <Q_k, w>) + const,   P_k = sum_{j != k} I_j,   Q_k = sum_{j != k} I_j w_j
    I_k = mean over mini-batches of (grad CE)^2 at w_k

Deviations:
- Only the second form is computed, so the training loss lacks the constant and may be negative.
- lam=1 and 500 samples are FedLMD's most frequent choice (it tunes 1 or 2, 250 or 500). The term diverges
  when lr lam max(P_k) >= 1, and P_k grows with the number of clients.
- The Fisher is that of the cross-entropy in evaluation mode, without augmentation, on `samples` of the
  client's samples, shuffled as in the released loader, whatever loss it is combined with. Squares of
  mini-batch means underestimate it; batch_size=1 is exact and slow. 50 is FedLMD's local batch size.
- Clients send how their I_k and I_k w_k have changed, so that the server keeps two sums in place of every
  client's last ones.
- The code of FedNTD and FedLMD subtracts a client's own terms from the shared sum in place, so that the next
  client of the round receives a wrong sum. Here every client subtracts them from its own copy.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from unskew.errors import require
from unskew.method import Method, Work
from unskew.methods.card import card
from unskew.parts.naming import select, taken, under, zeros
from unskew.trial import Trial
from unskew.types import (
    End,
    Look,
    Memory,
    Params,
    Scope,
    Server,
    ServerState,
    Tensors,
    Updates,
    View,
    Weights,
)

U, V = "fedcurv/u", "fedcurv/v"
"""Names of I_k and I_k w_k: at a client its own, at the server and in a broadcast their sums over clients. A
client reports how its own have changed, which the server adds to its sums."""
P, Q = "fedcurv/p", "fedcurv/q"


@card(
    "fedcurv",
    passes="one per round and its gradients, over `samples` samples",
    memory="four vectors of the model's size",
    traffic="two vectors of the model's size down and two up",
    sends="how the diagonal Fisher information of its data, and that times its weights, have changed",
)
def fedcurv(*, lam: float = 1.0, samples: int = 500, batch_size: int = 50) -> Method:
    """Hold every client near the others' models where those need it, by their Fisher information."""
    require(lam >= 0, f"lam is {lam} but should be 0 or more.")
    require(samples >= 1, f"samples is {samples} but should be at least 1.")
    require(batch_size >= 1, f"batch_size is {batch_size} but should be at least 1.")

    def term(view: View) -> Tensor:
        total = view.out.logits.new_zeros(())
        for name, w in view.params.items():
            p, q = view.scope.memory[f"{P}/{name}"], view.scope.memory[f"{Q}/{name}"]
            total = total + (w * (p * w - 2 * q)).sum()
        return lam * total

    def init(weights: Weights, counts: Tensor) -> Tensors:
        return zeros(U, weights) | zeros(V, weights)

    def prepare(scope: Scope, look: Look) -> Tensors:
        others = {
            name: value - scope.memory[name]
            for kind in (U, V)
            for name, value in select(kind, scope.shared).items()
        }
        # Rounding must not turn a curvature negative.
        p = {name: value.clamp(min=0) for name, value in taken(U, others).items()}
        return under(P, p) | under(Q, taken(V, others))

    def update(scope: Scope, end: End) -> tuple[Tensors, Tensors]:
        fisher = _fisher(end, samples, batch_size)
        weighted = {name: value * end.weights.params[name] for name, value in fisher.items()}
        own = under(U, fisher) | under(V, weighted)
        return own, {name: value - scope.memory[name] for name, value in own.items()}

    def server_init(weights: Weights) -> Tensors:
        return zeros(U, weights) | zeros(V, weights)

    def note(state: ServerState, after: Weights, updates: Updates) -> Tensors:
        sums = select(U, state.memory) | select(V, state.memory)
        return {name: value + updates.reported[name].sum(dim=0) for name, value in sums.items()}

    def share(state: ServerState) -> Tensors:
        return select(U, state.memory) | select(V, state.memory)

    def work(trial: Trial) -> Work:
        whole = -(-samples // batch_size) * batch_size  # the last batch is passed through in full
        sizes = trial.federation.sizes
        return Work(gradients=float(sizes.clamp(max=whole).sum() / sizes.sum().clamp(min=1)))

    return Method(
        terms=(term,),
        memory=Memory(init, prepare, update),
        server=Server(init=server_init, note=note, share=share),
        work=work,
    )


@torch.enable_grad()
def _fisher(end: End, samples: int, batch_size: int) -> Params:
    """Return the diagonal Fisher information of the cross-entropy at the client's last weights."""
    total = {name: torch.zeros_like(value) for name, value in end.weights.params.items()}
    batches, left = 0, samples
    for view in end.look(end.weights, grad=True, batch_size=batch_size, shuffle=True):
        loss = cross_entropy(view.out.logits[:left], view.labels[:left])
        grads = torch.autograd.grad(
            loss, list(view.params.values()), allow_unused=True, materialize_grads=True
        )
        total = {name: total[name] + grad.square() for name, grad in zip(view.params, grads, strict=True)}
        batches += 1
        left -= len(view.labels)
        if left <= 0:
            break
    return {name: value / batches for name, value in total.items()}
