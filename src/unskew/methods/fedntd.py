"""FedNTD and FedNTD-Tf.

Lee, Jeong, Shin, Bae, Yun. Preservation of the Global Knowledge by Not-True Distillation in Federated
Learning. NeurIPS 2022. The teacher-free form: Lu et al., FedLMD, ACM Multimedia 2023.

What a client forgets is what the received model says about the classes that are not the label: that part
alone is distilled, and the label is left to the cross-entropy. FedNTD-Tf puts a uniform distribution in the
place of the teacher and saves its forward pass.

    L = CE + beta T^2 KL( q_g || q ),   q, q_g: softmax of the logits / T over the classes other than y
    FedNTD-Tf:  q_g = 1 / (C - 1)

Deviations: none from the paper. beta=1, T=1 are the authors' values; FedVLS's comparison uses beta=0.1,
FedLMD's 1 to 3. No beta and T are printed for FedNTD-Tf: it shares FedNTD's. The teacher is in evaluation
mode; in the released code it is not for the very first client. With two classes the term is 0.
"""

from __future__ import annotations

from torch import Tensor

from unskew.errors import require
from unskew.losses import not_true_distillation
from unskew.method import Method, Work
from unskew.methods.card import COPY, TEACHER, card
from unskew.types import View


@card("fedntd", passes=TEACHER, memory=COPY)
def fedntd(*, beta: float = 1.0, temperature: float = 1.0) -> Method:
    """Distil what the received model says about the classes other than the label."""
    _check(beta, temperature)

    def term(view: View) -> Tensor:
        return beta * not_true_distillation(
            view.out.logits, view.teacher.logits, view.labels, temperature=temperature
        )

    return Method(terms=(term,), work=Work(teacher=True))


@card("fedntd-tf")
def fedntd_tf(*, beta: float = 1.0, temperature: float = 1.0) -> Method:
    """FedNTD without a teacher: keep the classes other than the label equally likely."""
    _check(beta, temperature)

    def term(view: View) -> Tensor:
        return beta * not_true_distillation(view.out.logits, None, view.labels, temperature=temperature)

    return Method(terms=(term,), work=Work())


def _check(beta: float, temperature: float) -> None:
    require(beta >= 0, f"beta is {beta} but should be 0 or more.")
    require(temperature > 0, f"temperature is {temperature} but should be above 0.")
