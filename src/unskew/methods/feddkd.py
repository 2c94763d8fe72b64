"""FedDKD.

A baseline of Guo et al., FedVLS, AAAI 2025 (Table 13). The distillation is that of Zhao, Cui, Song, Qiu,
Liang. Decoupled Knowledge Distillation. CVPR 2022.

Distillation is taken apart into how sure the teacher is of the label and what it says about the other
classes, and the two are weighted freely.

    L = CE + weight (alpha TCKD + beta NCKD)
    TCKD = T^2 KL( (p_y, 1 - p_y) of the teacher || of the student ),   NCKD: FedNTD's term

Deviations: FedVLS prints no hyperparameters. alpha=1 and beta=8 are those of DKD; T=1 instead of its 4, and
the outer weight of 0.1, are those of FedKD here. DKD's linear warm-up over 20 epochs is left out: a client's
round is shorter than that. The teacher is in evaluation mode.
"""

from __future__ import annotations

from torch import Tensor

from unskew.errors import require
from unskew.losses import decoupled_distillation
from unskew.method import Method, Work
from unskew.methods.card import COPY, TEACHER, card
from unskew.types import View


@card("feddkd", passes=TEACHER, memory=COPY)
def feddkd(*, alpha: float = 1.0, beta: float = 8.0, temperature: float = 1.0, weight: float = 0.1) -> Method:
    """Distil the received model, its view of the label and of the other classes weighted apart."""
    require(alpha >= 0, f"alpha is {alpha} but should be 0 or more.")
    require(beta >= 0, f"beta is {beta} but should be 0 or more.")
    require(temperature > 0, f"temperature is {temperature} but should be above 0.")
    require(weight >= 0, f"weight is {weight} but should be 0 or more.")

    def term(view: View) -> Tensor:
        return weight * decoupled_distillation(
            view.out.logits,
            view.teacher.logits,
            view.labels,
            alpha=alpha,
            beta=beta,
            temperature=temperature,
        )

    return Method(terms=(term,), work=Work(teacher=True))
