"""FedMR.

Fan, Yao, Zhang, Lyu, Zhang, Wang. Federated Learning under Partially Class-Disjoint Data via Manifold
Reshaping. TMLR 2023.

Where classes are missing, the features of the others collapse and spread into the space of the missing ones.
An intra-class term decorrelates the dimensions inside each class; an inter-class term keeps a feature nearer
to the global prototype of its own class than to those of the others.

    L = CE + mu1 L_intra + mu2 L_inter
    L_intra = sum_c mean_{i != j} (X_c^T X_c)_ij^2 / sum_c n_c,   X_c the class's standardised features in
              the batch, c over the classes with at least two samples there
    L_inter = mean_x mean_{c != y} max(||h - g_y|| - ||h - g_c||, 0)
    g_c = sum_k n_kc (client k's mean feature of c) / sum_k n_kc

Deviations:
- The released code, and FedVLS's copy of it, hold the intra-class term alone, so `mu2` is 0 by default. With
  mu2 above 0 clients send the mean feature and the number of samples of each class.
- `mu1` is 0.01, the default of the authors' program (their README's example has 1e-5). FedVLS's comparison
  prints "deco=4", and its code has 0.001 by default: with 4 all features of its network die on MNIST under
  Dirichlet 0.05, with 0.001 its printed number is met.
- The clients' mean features are those of the trained local model, in evaluation mode, over all their data. A
  class that nobody in a cohort holds keeps its last global prototype. In the first round there are none, and
  L_inter is 0.

Rounding grows fast here: two samples of a class in a batch that nearly agree in a dimension are divided by
almost nothing there (the floor is the published 1e-8 on the variance). In batches of 4, initial weights that
differ by one part in ten million can end elsewhere after three rounds, and so can engines and precisions
whose last bits differ.
"""

from __future__ import annotations

from torch import Tensor

from unskew.errors import require
from unskew.losses import manifold_term, prototype_margin_term
from unskew.method import Method, Work
from unskew.methods.card import card
from unskew.parts.prototypes import class_means
from unskew.types import End, Memory, Scope, Server, ServerState, Tensors, Updates, View, Weights


@card(
    "fedmr",
    passes="none; with mu2 above 0 one per round over the client's data",
    traffic="none; with mu2 above 0 one feature per class down and up",
    sends="nothing; with mu2 above 0 its label counts and the mean feature of each of its classes",
)
def fedmr(*, mu1: float = 0.01, mu2: float = 0.0) -> Method:
    """Decorrelate features inside each class, and keep classes near their global prototypes."""
    require(mu1 >= 0, f"mu1 is {mu1} but should be 0 or more.")
    require(mu2 >= 0, f"mu2 is {mu2} but should be 0 or more.")

    def intra(view: View) -> Tensor:
        return mu1 * manifold_term(view.out.features, view.labels, view.out.logits.shape[1])

    def inter(view: View) -> Tensor:
        shared, h = view.scope.shared, view.out.features
        if "fedmr/prototypes" not in shared:  # the first round
            return h.new_zeros(())
        known = shared["fedmr/known"]
        return mu2 * prototype_margin_term(h, view.labels, shared["fedmr/prototypes"], known)

    if mu2 == 0:
        return Method(terms=(intra,), work=Work())
    return Method(
        terms=(intra, inter),
        memory=Memory(update=_report),
        server=Server(note=_prototypes, share=_share),
        work=Work(looks=1),
    )


def _report(scope: Scope, end: End) -> tuple[Tensors, Tensors]:
    means = class_means(end.look(end.weights), len(scope.counts))
    return {}, {"fedmr/prototypes": means, "fedmr/counts": scope.counts}


def _prototypes(state: ServerState, after: Weights, updates: Updates) -> Tensors:
    means, counts = updates.reported["fedmr/prototypes"], updates.reported["fedmr/counts"]
    total = counts.sum(0)
    held = total > 0
    share = counts / total.clamp(min=1)
    fresh = (share.unsqueeze(2) * means).sum(0)
    if "fedmr/prototypes" not in state.memory:
        return {"fedmr/prototypes": fresh, "fedmr/known": held}
    return {
        "fedmr/prototypes": fresh.where(held.unsqueeze(1), state.memory["fedmr/prototypes"]),
        "fedmr/known": held | state.memory["fedmr/known"],
    }


def _share(state: ServerState) -> Tensors:
    return {name: value for name, value in state.memory.items() if name.startswith("fedmr/")}
