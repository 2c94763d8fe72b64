"""unskew's own default: a calibrated loss and a server with momentum, with no hyperparameter to choose.

It combines prior work. Its loss is balanced softmax (Ren et al., NeurIPS 2020; Menon et al., ICLR
2021), brought to federated learning by FedLC (ICML 2022) and CalFAT (NeurIPS 2022), with counts that are
smoothed as Laplace did. Its server averages clients alike, looks ahead along its momentum as FedACG does
(CVPR 2024), and serves an average of its models (Polyak and Juditsky, 1992; in federated learning Caldarola
et al., ECCV 2022, and WIMA). What it takes from each is in docs/steady.md, with what it gains and where it
loses.

    r = clients of the last round / clients that have data; 0 in the first round
    clients: L = CE(z + log(max(1 - r, 0.05) n_c + 1), y)
    sent:    f = w[t] + lam m
    server:  m <- lam m + mean_k (w_k - f),   w[t+1] = w[t] + m
    served:  a <- a + s (w[t+1] - a),   s = max(1 / (t + 1), r / 2, 0.05)

The one sample that is added to every class keeps vacant classes in the softmax: without it two classes that
no client holds together are never told apart. The more clients take part, the less the classes of a cohort
differ from those of all, and the weaker is the calibration. Some of it is left when all of them take part:
a client still leaves the shared model over its local steps.

Deviations: none, it has no other source. lam is FedACG's; its proximal term is left out. The forms of r, of
the added sample and of s were chosen on validation parts of CIFAR-10 (dirichlet:0.05 and shards:2, 10 of 100
clients, one seed) and on digits.
"""

from __future__ import annotations

from torch import Tensor

from unskew.losses import calibrated_cross_entropy
from unskew.method import Method, Work
from unskew.methods.card import card
from unskew.methods.ema import ema
from unskew.methods.fedacg import fedacg
from unskew.methods.uniform import uniform
from unskew.parts.servers import participation
from unskew.types import Server, ServerState, Tensors, Updates, View, Weights

PARTICIPATION = "steady/participation"
"""The share of the clients that took part in the last round."""
LEAST_CALIBRATION = 0.05
"""The least factor of a client's own counts in the loss, for rounds in which all clients take part."""


@card("steady", traffic="one number down")
def steady(*, lam: float = 0.85) -> Method:
    """Calibrate to the classes a client has, move with momentum, serve an average."""

    def loss(view: View) -> Tensor:
        absent = (1 - view.scope.shared[PARTICIPATION]).clamp(min=LEAST_CALIBRATION)
        return calibrated_cross_entropy(view.out.logits, view.labels, absent * view.scope.counts + 1)

    def init(weights: Weights) -> Tensors:
        return {PARTICIPATION: next(iter(weights.params.values())).new_zeros(())}

    def note(state: ServerState, after: Weights, updates: Updates) -> Tensors:
        return {PARTICIPATION: state.memory[PARTICIPATION].new_full((), participation(updates))}

    def share(state: ServerState) -> Tensors:
        return {PARTICIPATION: state.memory[PARTICIPATION]}

    calibrated = Method(loss=loss, server=Server(init=init, note=note, share=share), work=Work())
    return calibrated + uniform() + fedacg(lam=lam, beta=0) + ema(decay="auto")
