"""FedKD and FedEKD.

Baselines of Guo et al., FedVLS, AAAI 2025 (Table 13), and Lu et al., FedLMD, ACM Multimedia 2023
("FedAvg+KD"). The distillation is that of Hinton, Vinyals, Dean. Distilling the Knowledge in a Neural
Network. 2015.

FedKD distils the received model into the local one on the client's own samples. FedEKD does so over the
client's existing classes only.

    L = CE + beta T^2 KL( softmax(g / T) || softmax(z / T) ),   g: logits of the received model
    FedEKD:  both softmaxes over the classes with n_c > 0

Deviations: neither paper prints beta or T; beta=0.1 is what FedVLS's comparison gives FedNTD. This is not the
published method that is also called FedKD (communication-efficient mutual distillation). The teacher is in
evaluation mode. On a client with one class FedEKD's term is 0.
"""

from __future__ import annotations

from torch import Tensor

from unskew.errors import require
from unskew.losses import distillation
from unskew.method import Method, Work
from unskew.methods.card import COPY, TEACHER, card
from unskew.types import View


@card("fedkd", passes=TEACHER, memory=COPY)
def fedkd(*, beta: float = 0.1, temperature: float = 1.0) -> Method:
    """Distil the received model over all classes."""
    _check(beta, temperature)

    def term(view: View) -> Tensor:
        return beta * distillation(view.out.logits, view.teacher.logits, temperature=temperature)

    return Method(terms=(term,), work=Work(teacher=True))


@card("fedekd", passes=TEACHER, memory=COPY)
def fedekd(*, beta: float = 0.1, temperature: float = 1.0) -> Method:
    """Distil the received model over the classes a client has."""
    _check(beta, temperature)

    def term(view: View) -> Tensor:
        present = view.scope.counts > 0
        return beta * distillation(
            view.out.logits, view.teacher.logits, temperature=temperature, classes=present
        )

    return Method(terms=(term,), work=Work(teacher=True))


def _check(beta: float, temperature: float) -> None:
    require(beta >= 0, f"beta is {beta} but should be 0 or more.")
    require(temperature > 0, f"temperature is {temperature} but should be above 0.")
