"""Feature augmentation of BalanceFL.

Shuai, Shen, Jiang, Zhao, Yan, Xing. BalanceFL: Addressing Class Imbalance in Long-Tail Federated Learning.
IPSN 2022. As a method by itself in the comparison of PKD.

Rare classes vary like plentiful ones, so a sample's feature is moved by a deviation drawn from the client's
own variation within classes. The classifier then learns from more features than there are samples.

    L = CE( W (h + a e) ),   e ~ N(0, S),   a = 1 with probability prob[y], else 0
    S = sum_c n_c/n S_c,     S_c the covariance of the features of class c under the received model
    prob[c] = p (constant),   1 - n_c / max_c n_c (official),   p for weak classes, else 0 (weak-only)

Deviations:
- This is the augmentation alone. BalanceFL also has class-balanced sampling, a cross-entropy over the classes
  of the batch, a distillation (temperature 2) over the others, and an entropy term of weight -0.002.
- `prob` is "constant" with p=1: on class-balanced clients, where PKD compares it, the official rule is 0 for
  every class and augments nothing. Classes are weak where the received model's recall on the client's own
  samples is below its mean over the classes the client holds; this rule is ours.
- Every sample has a deviation of its own, where the released code takes turns with 500 drawn in advance.
- S_c divides by n_c, so that S is the scatter within classes divided by n; the released code divides by
  n_c - 1. It is computed in evaluation mode and without augmentation, the released one in training mode
  with it.
- Deviations come from the generator that dropout uses.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot, pad

from unskew.errors import require, unknown
from unskew.method import Method, Work
from unskew.methods.card import card
from unskew.parts.heads import check_features
from unskew.types import Look, Memory, Scope, Tensors, View

Prob = Literal["constant", "official", "weak-only"]


@card(
    "balancefl",
    passes="one per round, of the received model over the client's data",
    memory="a d x d matrix for d features",
)
def balancefl(*, prob: Prob = "constant", p: float = 1.0) -> Method:
    """Augment features by deviations drawn from the client's own variation within classes."""
    require(0 <= p <= 1, f"p is {p} but should be from 0 to 1.")
    if prob not in get_args(Prob):
        raise unknown("prob", prob, get_args(Prob))
    if p == 0 and prob != "official":
        return Method()  # draws nothing, so that dropout is as in FedAvg

    def prepare(scope: Scope, look: Look) -> Tensors:
        passes = []
        for view in look(scope.anchor):
            check_features(view)
            passes.append((view.out.features, view.labels, view.out.logits.argmax(1)))
        features, labels, predicted = (torch.cat(parts) for parts in zip(*passes, strict=True))
        n, present = scope.counts, scope.counts > 0
        if prob == "official":
            chance = 1 - n / n.max()
        elif prob == "constant":
            chance = torch.full(n.shape, p, device=n.device)
        else:
            hits = one_hot(labels, len(n))[predicted == labels].sum(0)
            recall = hits / n.clamp(min=1)
            chance = torch.where(present & (recall < recall[present].mean()), p, 0.0)
        return {"balancefl/factor": within_class_factor(features, labels, n), "balancefl/prob": chance}

    def loss(view: View) -> Tensor:
        h, memory = view.out.features, view.scope.memory
        deviation = torch.randn_like(h) @ memory["balancefl/factor"]
        chosen = torch.rand(len(h), device=h.device) < memory["balancefl/prob"][view.labels]
        moved = h + torch.where(chosen.unsqueeze(1), deviation, 0.0)
        return cross_entropy(view.classify(moved), view.labels)

    return Method(loss=loss, memory=Memory(prepare=prepare), work=Work(looks=1))


def within_class_factor(features: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
    """Return R [d, d] with R^T R = S, the scatter within classes divided by the number of samples."""
    member = one_hot(labels, len(counts)).to(features.dtype)
    mean = member.T @ features / counts.clamp(min=1).unsqueeze(1)
    # The triangular factor of the centred features: S itself is not formed, may be singular, needs no jitter.
    factor = torch.linalg.qr((features - mean[labels]) / math.sqrt(len(features)), mode="r").R
    return pad(factor, (0, 0, 0, features.shape[1] - len(factor)))
