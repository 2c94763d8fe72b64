"""FedVLS, also published as FedED.

Guo, Ding, Liang, He, Wang, Tan. Exploring Vacant Classes in Label-Skewed Federated Learning. AAAI 2025,
arXiv:2401.02329. Its first version: Not all Minorities are Equal: Empty-Class-Aware Distillation for
Heterogeneous Federated Learning (FedED), 2024.

A calibrated cross-entropy balances the classes a client has, and distillation over its vacant classes alone
keeps what the received model knows of them. Logit suppression pushes down the logits of classes that are not
the label.

    L = L_cal + lam L_dis + gamma L_sup
    L_cal = CE(z + log(p + floor), y),   p = n / sum(n)
    L_dis = KL( softmax_O(g) || softmax_O(z) ),   O: vacant classes, g: logits of the received model
    L_sup = sum_c p_c log( 1/B [ #{x: y = c} + sum_{x: y != c} exp(z_c) / (C p_c) ] )    form="official"
    L_sup = sum_c p_c log( 1/B sum_{x: y != c} exp(z_c) )                                form="paper"

form="paper" with its weight of 1 really diverges: L_cal and L_dis do not change when a constant is added to
all logits, and L_sup falls with it without end. CIFAR-10 with 100 clients under Dirichlet 0.05 ends in NaN,
where the official form trains.

Deviations:
- Eq. 3 is printed with the opposite sign. The divergence is minimised, as in the released code.
- form="official" (the default) is the suppression of the released code: logits shifted by the prior, label
  positions counted as exp(0), and a weight of 0.005 that the paper does not mention. gamma="auto" is 0.005
  for it and 1 for the paper's form.
- floor=1e-9 is the released code's. floor=0 leaves vacant classes out of L_cal, which is Eq. 2 to the letter.
- FedED sums L_sup over the present classes and FedVLS over all: the same, because p_c = 0 for the others.
- lam=0.1 is for MNIST and CIFAR-10; the papers use 0.5 for CIFAR-100 and TinyImageNet.
- The teacher is in evaluation mode; the released code leaves it in training mode: model.teacher=batch.
- Weight decay is the budget's, the same for all methods; the released code sets it to 0 for this one alone.
- Counts come from the labels; the released code counts them in a pass over batches, which can miss some.
- With one vacant class, or none, L_dis is 0.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from unskew.errors import require
from unskew.losses import calibrated_cross_entropy, logit_suppression, vacant_distillation
from unskew.method import Method, Work
from unskew.methods.card import COPY, TEACHER, card
from unskew.types import View

WEIGHTS = {"official": 0.005, "paper": 1.0}
"""The weights of the suppression: as hard-coded in the released client, and as in Eq. 6."""

UNBOUNDED = (
    "FedVLS's logit suppression as printed has no minimum and training is likely to diverge: "
    "form='official' is the released code's, which is bounded."
)


@card("feded", passes=TEACHER, memory=COPY)
@card("fedvls", passes=TEACHER, memory=COPY)
def fedvls(
    *,
    lam: float = 0.1,
    gamma: float | Literal["auto"] = "auto",
    form: Literal["official", "paper"] = "official",
    floor: float = 1e-9,
) -> Method:
    """Calibrate the classes a client has, distil its vacant ones, suppress the logits of non-labels."""
    require(form in WEIGHTS, f"form is '{form}' but should be official or paper.")
    weight = WEIGHTS[form] if gamma == "auto" else gamma
    require(lam >= 0, f"lam is {lam} but should be 0 or more.")
    require(
        not isinstance(weight, str) and weight >= 0, f"gamma is {gamma} but should be 0 or more, or 'auto'."
    )
    require(floor >= 0, f"floor is {floor} but should be 0 or more.")

    def loss(view: View) -> Tensor:
        return calibrated_cross_entropy(
            view.out.logits, view.labels, view.scope.counts, floor=floor or None
        )  # Eq. 2

    def distil(view: View) -> Tensor:
        return lam * vacant_distillation(view.out.logits, view.teacher.logits, view.scope.counts)  # Eq. 3

    def suppress(view: View) -> Tensor:
        return weight * logit_suppression(
            view.out.logits, view.labels, view.scope.counts, form=form
        )  # Eqs. 4, 5

    return Method(
        loss=loss,
        terms=(distil, suppress),
        notes=(UNBOUNDED,) if form == "paper" else (),
        work=Work(teacher=True),
    )
