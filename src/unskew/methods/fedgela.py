"""FedGELA.

Fan, Zhang, Yao, Han, Zhang, Wang. Federated Learning with Bilateral Curation for Partially Class-Disjoint
Data. NeurIPS 2023.

The classifier is a simplex of equal angles, the same for all and never trained, so that missing classes keep
their place in feature space. Each client scales its logits by its own class shares.

    M = sqrt(C/(C-1)) U (I - 11^T/C),   U^T U = I
    local:  CE( Phi_k z / temperature ),   z = M^T h,   Phi_k[c] = C n_kc / n_k
    global: z

Deviations:
- h is the BatchNorm1d output of the features, trained scale and shift included, as released
  (`normalise="batch"`); "l2" gives every feature the length sqrt(e_h) as in the paper, "none" takes them as
  they are. The released networks also have two linear layers before it: here the trial's own network is used,
  and the simplex takes the dimension of its features.
- `temperature` is 0.2, the released default; the example that comes with it uses 1e-5. `clip` bounds the norm
  of every step's gradient by 20 as the released code does in every run; 0 leaves gradients as they are.
- U is drawn from a normal distribution, the released one from a uniform one; both are orthonormalised.
- The logit of a vacant class is 0 at its client and stays in the softmax, as released.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from unskew.errors import require, unknown
from unskew.method import Method, Work
from unskew.methods.card import card
from unskew.parts.architecture import with_fixed_head
from unskew.parts.clipping import clipped
from unskew.parts.heads import find_head
from unskew.program import Program, Run
from unskew.randomness import Purpose, draw_seed
from unskew.record import FixedHead, NetworkRecord
from unskew.result import Result
from unskew.trial import Trial
from unskew.types import View

Normalise = Literal["batch", "l2", "none"]


@card("fedgela")
def fedgela(
    *, temperature: float = 0.2, normalise: Normalise = "batch", e_h: float = 1.0, clip: float = 20.0
) -> Program:
    """Fix the classifier as a simplex of equal angles, scaled at each client by its class shares."""
    require(temperature > 0, f"temperature is {temperature} but should be above 0.")
    require(e_h > 0, f"e_h is {e_h} but should be above 0.")
    require(clip >= 0, f"clip is {clip} but should be 0 (gradients as they are) or more.")
    if normalise not in get_args(Normalise):
        raise unknown("normalise", normalise, get_args(Normalise))

    def loss(view: View) -> Tensor:
        counts = view.scope.counts
        phi = len(counts) * counts / counts.sum()
        return cross_entropy(phi * view.out.logits / temperature, view.labels)

    def run(run: Run) -> Result:
        model = GelaModel(run.trial, FixedHead(normalise, math.sqrt(e_h)))
        method = replace(run.base, transform=clipped(run.base.transform, clip)) if clip else run.base
        return run.train_all(method, run.trial.with_model(model))

    changed = (
        "last layer is fixed" if normalise == "none" else "last layer is fixed and its features normalised"
    )
    note = f"the model's {changed}: it is not the other methods' model."
    return Program(run, Method(loss=loss, notes=(note,), work=Work()), work=Work())


@dataclass(frozen=True)
class GelaModel:
    """Makes the trial's model with a normalisation and a fixed simplex in the place of its last layer."""

    trial: Trial
    fixed: FixedHead

    @property
    def network(self) -> NetworkRecord:
        return replace(self.trial.network, fixed_head=self.fixed)

    def __call__(self) -> nn.Module:
        trial, classes = self.trial, len(self.trial.federation.dataset.classes)
        module = trial.build(adapted=False)
        d = find_head(module, classes).features
        require(
            d >= classes,
            f"fedgela needs at least as many features as classes, and the model has {d} for {classes}: "
            "choose a wider one.",
        )
        vectors = simplex(d, classes, draw_seed(trial.seed, Purpose.INITIAL_WEIGHTS, 1))
        module = with_fixed_head(module, classes, self.fixed, vectors)
        require(
            any(parameter.requires_grad for parameter in module.parameters()),
            "fedgela fixes the only layer of this model that is trained: choose a deeper model, or train "
            "more of it.",
        )
        return module


def simplex(d: int, classes: int, seed: int) -> Tensor:
    """Return unit vectors [C, d] with pairwise cosine -1/(C-1), in a random orientation."""
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(d, classes, generator=generator, dtype=torch.float64)).Q
    centring = torch.eye(classes, dtype=torch.float64) - 1 / classes
    vectors: Tensor = math.sqrt(classes / (classes - 1)) * (basis @ centring).T
    return vectors.float()
