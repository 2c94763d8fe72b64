"""FPL.

Huang, Ye, Shi, Li, Du. Rethinking Federated Learning with Domain Shift: A Prototype View. CVPR 2023.

Clients send the mean feature of each class; the server clusters those of one class, so that no group of
similar clients outweighs the others. A client's features are contrasted with all cluster prototypes, and
drawn to the mean of their own class's.

    L = CE + 1/B sum_x [ l_cp + l_up ],   for samples of classes the server knows
    l_cp = -log( sum_{p in P_y} e^(cos(h,p)/tau) / sum_{all p} e^(cos(h,p)/tau) )
    l_up = ||h - u_y||^2 / d,   u_c = mean of P_c, the cluster means of class c

Deviations:
- A client's prototypes are the mean features of its trained model in evaluation mode, over all its data
  without augmentation. The released code gathers them during the last local epoch, while the model moves.
- Clusters are found by FINCH, written anew; see unskew.parts.finch. As released, only the prototypes of the
  last cohort count, and the first round is plain cross-entropy.
- The server weighs parameters by samples, the released default; `average="uniform"`, the released option
  "equal", counts clients alike. BatchNorm statistics follow the run's policy.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from unskew.errors import require, unknown
from unskew.method import Method, Work
from unskew.methods.card import card
from unskew.models.directions import directions
from unskew.parts.finch import cluster_means, finch
from unskew.parts.prototypes import class_means
from unskew.parts.servers import combine_equally
from unskew.types import End, Memory, Scope, Server, ServerState, Tensors, Updates, View, Weights

Average = Literal["uniform", "size"]


@card(
    "fpl",
    passes="one per round over the client's data",
    traffic="one feature per class up; down up to half as many per class as clients in the cohort",
    sends="the mean feature of each of its classes, and so which classes it has",
)
def fpl(*, tau: float = 0.02, average: Average = "size") -> Method:
    """Contrast features with prototypes of every class, clustered over the clients."""
    require(tau > 0, f"tau is {tau} but should be above 0.")
    if average not in get_args(Average):
        raise unknown("average", average, get_args(Average))

    def term(view: View) -> Tensor:
        shared, h = view.scope.shared, view.out.features
        if "fpl/prototypes" not in shared:  # the first round
            return h.new_zeros(())
        return prototype_loss(h, view.labels, shared["fpl/prototypes"], shared["fpl/known"], tau=tau)

    combine = combine_equally if average == "uniform" else Server().combine
    server = Server(combine, note=_clusters, share=_share)
    return Method(terms=(term,), memory=Memory(update=_report), server=server, work=Work(looks=1))


def prototype_loss(
    features: Tensor, labels: Tensor, prototypes: Tensor, known: Tensor, *, tau: float
) -> Tensor:
    """Return l_cp + l_up, the mean over the batch. `prototypes` are [C, K, d] and `known` bool [C, K]; rows
    that are not known may hold any values. A sample whose class has no known prototype contributes 0."""
    C, K, d = prototypes.shape
    features = features.to(torch.promote_types(features.dtype, torch.float32))
    prototypes = torch.where(known.unsqueeze(2), prototypes.to(features.dtype), 0.0)
    cosine = directions(features) @ directions(prototypes.view(C * K, d)).T
    low = torch.finfo(cosine.dtype).min / 2  # finite: a row without any prototype is discarded, not NaN
    logits = torch.where(known.view(1, C * K), cosine / tau, low)
    own = (labels.unsqueeze(1) == torch.arange(C, device=labels.device)).repeat_interleave(K, dim=1)
    contrast = logits.logsumexp(1) - torch.where(own, logits, low).logsumexp(1)
    centre = prototypes.sum(1) / known.sum(1, keepdim=True).clamp(min=1)
    distance = (features - centre[labels]).square().mean(1)
    return torch.where(known.any(1)[labels], contrast + distance, 0.0).mean()


def _report(scope: Scope, end: End) -> tuple[Tensors, Tensors]:
    means = class_means(end.look(end.weights), len(scope.counts))
    return {}, {"fpl/prototypes": means, "fpl/known": scope.counts > 0}


def _clusters(state: ServerState, after: Weights, updates: Updates) -> Tensors:
    sent = updates.reported["fpl/prototypes"].double().cpu().numpy()
    held = updates.reported["fpl/known"].cpu().numpy()
    clients, C, d = sent.shape
    # At most half as many clusters as clients: the first links join every prototype with another.
    prototypes = torch.zeros(C, max(clients // 2, 1), d)
    known = torch.zeros(prototypes.shape[:2], dtype=torch.bool)
    for c in range(C):
        if held[:, c].any():
            points = sent[held[:, c], c]
            means = cluster_means(points, finch(points))
            prototypes[c, : len(means)] = torch.from_numpy(means)
            known[c, : len(means)] = True
    device = updates.reported["fpl/known"].device
    return {"fpl/prototypes": prototypes.to(device), "fpl/known": known.to(device)}


def _share(state: ServerState) -> Tensors:
    return {name: value for name, value in state.memory.items() if name.startswith("fpl/")}
