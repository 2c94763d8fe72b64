"""FedLMD, FedLMD-Tf, and the switch from one to the other.

Lu, Li, Bao, Wang, Qian, Ge. Federated Learning with Label-Masking Distillation. ACM Multimedia 2023.

A client learns its majority classes from its labels and forgets the others: the received model teaches only
classes that are neither the label nor in the majority, and majority logits are pushed down on samples of
other classes. FedLMD-Tf puts a uniform distribution in the place of the teacher and saves its forward pass;
FedLMD-switch begins with it, while the global model is no good teacher yet.

    L = CE + beta T^2 KL( q_g || q )
    q:    softmax of z / T over the classes other than y
    q_g:  softmax of g / T over the classes other than y that are not in the majority
    g:    logits of the received model;   majority: n_c > n / C
    FedLMD-Tf:      q_g uniform on the same classes
    FedLMD-switch:  FedLMD-Tf in rounds t < switch_round, then FedLMD; t counts from 0

Deviations:
- Eq. 3 keeps the label of a minority sample in the teacher while Eq. 4 takes it from the student, which makes
  the divergence infinite. The label is left out of both, as in the released code.
- The majority is the released code's. majority="ge" includes equality; "present" compares with the mean over
  the classes the client has, as the paper's |Y_k| can be read.
- A sample without any class left for the teacher contributes 0. The released mask of -1000 then cancels: the
  teacher keeps the label, and the term becomes about 1000 times its probability. fallback="ntd" is FedNTD's
  term for such a sample.
- T^2 is in the released code and not in Eq. 6: squared_temperature=False.
- FedLMD-Tf: Eq. 8 divides by the number of minority classes also where the label is one of them. Here the
  target sums to 1 for every sample; target="paper" (of the switch, tf_target) is Eq. 8. The released
  FedLMD-Tf does not run.
- Averages are weighted by the clients' sizes, as in the released code; Algorithm 1 is fedlmd+uniform.
- beta=1, T=1 are the paper's choice nearly everywhere; 2 and 3 for CIFAR-100 shards and for CIFAR-10 at
  Dirichlet 0.05. Nothing is printed for FedLMD-Tf, and no round is recommended for the switch: earlier is
  better and dearer.
- A method keeps one objective for all rounds, so FedLMD-switch runs the teacher before the switch too. Rounds
  in which nobody has data are not counted.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from unskew.errors import require
from unskew.losses import label_masking_distillation
from unskew.method import Method, Work
from unskew.methods.card import COPY, TEACHER, card
from unskew.parts.rounds import share_round
from unskew.types import Objective, View

Majority = Literal["code", "ge", "present"]
Fallback = Literal["zero", "ntd"]
TeacherFreeTarget = Literal["sample", "paper"]

ROUND = "fedlmd-switch/round"


@card("fedlmd", passes=TEACHER, memory=COPY)
def fedlmd(
    *,
    beta: float = 1.0,
    temperature: float = 1.0,
    majority: Majority = "code",
    fallback: Fallback = "zero",
    squared_temperature: bool = True,
) -> Method:
    """Distil the classes that are neither the label nor in a client's majority."""
    term = _term(beta, temperature, majority, fallback, squared_temperature, taught=True)
    return Method(terms=(term,), work=Work(teacher=True))


@card("fedlmd-tf")
def fedlmd_tf(
    *,
    beta: float = 1.0,
    temperature: float = 1.0,
    majority: Majority = "code",
    fallback: Fallback = "zero",
    squared_temperature: bool = True,
    target: TeacherFreeTarget = "sample",
) -> Method:
    """FedLMD without a teacher: keep the same classes equally likely."""
    term = _term(beta, temperature, majority, fallback, squared_temperature, taught=False, target=target)
    return Method(terms=(term,), work=Work())


@card("fedlmd-switch", passes=TEACHER, memory=COPY, traffic="one number down")
def fedlmd_switch(
    *,
    switch_round: int = 10,
    beta: float = 1.0,
    temperature: float = 1.0,
    tf_beta: float = 1.0,
    tf_temperature: float = 1.0,
    tf_target: TeacherFreeTarget = "sample",
    majority: Majority = "code",
    fallback: Fallback = "zero",
    squared_temperature: bool = True,
) -> Method:
    """FedLMD-Tf before a round, FedLMD from that round on."""
    require(switch_round >= 0, f"switch_round is {switch_round} but should be 0 or more.")
    early = _term(
        tf_beta,
        tf_temperature,
        majority,
        fallback,
        squared_temperature,
        taught=False,
        target=tf_target,
        prefix="tf_",
    )
    late = _term(beta, temperature, majority, fallback, squared_temperature, taught=True)

    def term(view: View) -> Tensor:
        return torch.where(view.scope.shared[ROUND] < switch_round, early(view), late(view))

    return Method(terms=(term,), server=share_round(ROUND), work=Work(teacher=True))


def _term(
    beta: float,
    temperature: float,
    majority: Majority,
    fallback: Fallback,
    squared_temperature: bool,
    *,
    taught: bool,
    target: TeacherFreeTarget = "sample",
    prefix: str = "",
) -> Objective:
    require(beta >= 0, f"{prefix}beta is {beta} but should be 0 or more.")
    require(temperature > 0, f"{prefix}temperature is {temperature} but should be above 0.")
    require(
        majority in ("code", "ge", "present"), f"majority is '{majority}' but should be code, ge or present."
    )
    require(fallback in ("zero", "ntd"), f"fallback is '{fallback}' but should be zero or ntd.")
    require(target in ("sample", "paper"), f"{prefix}target is '{target}' but should be sample or paper.")

    def term(view: View) -> Tensor:
        return beta * label_masking_distillation(
            view.out.logits,
            view.teacher.logits if taught else None,
            view.labels,
            view.scope.counts,
            temperature=temperature,
            majority=majority,
            fallback="ntd" if fallback == "ntd" else None,
            squared_temperature=squared_temperature,
            target=target,
        )  # Eqs. 3, 4, 6; Eq. 8 in the place of Eq. 3 without a teacher

    return term
