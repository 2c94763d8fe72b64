"""Focal loss.

Lin, Goyal, Girshick, He, Dollár. Focal Loss for Dense Object Detection. ICCV 2017. As a baseline of federated
learning: Gan et al., Partial Knowledge Distillation (PKD).

Samples the model is sure of weigh less. With classwise=True classes the global model is good at weigh less,
which is how PKD describes its baseline.

    L = mean of (1 - p_y)^gamma CE
    classwise:  L = mean of w_y CE,   w_c = (1 - accuracy_c)^gamma / mean over classes

Deviations:
- There is no class weight alpha.
- detach_weight=True takes the factor as a constant in the gradient, as BalanceFL's code does.
- PKD does not say whose accuracy weighs the classes, or when it is taken. Here every client counts what the
  received model gets right of its samples before it trains; the server adds up and broadcasts the accuracies
  with the next model, one round old. A class that nobody in the cohort has keeps its last accuracy, and one
  that is not known yet weighs 1: the first round is plain cross-entropy.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from unskew.errors import require
from unskew.losses import focal_loss
from unskew.method import Method, Work
from unskew.methods.card import card
from unskew.types import End, Look, Memory, Scope, Server, ServerState, Tensors, Updates, View, Weights

ACCURACY = "focal/accuracy"
CORRECT = "focal/correct"
SAMPLES = "focal/samples"


@card(
    "focal",
    passes="none; with classwise one per round, of the received model over the client's data",
    traffic="none; with classwise C numbers down and 2 C up",
    sends="nothing; with classwise its label counts and how many of each class are right",
)
def focal(*, gamma: float = 2.0, classwise: bool = False, detach_weight: bool = False) -> Method:
    """Weigh samples, or classes, down as the model gets them right."""
    require(gamma >= 0, f"gamma is {gamma} but should be 0 or more.")
    require(
        not (classwise and detach_weight),
        "detach_weight has no effect with classwise, whose weights are constants: leave one of the two out.",
    )

    def loss(view: View) -> Tensor:
        accuracy = view.scope.memory[ACCURACY] if classwise else None
        return focal_loss(
            view.out.logits, view.labels, gamma=gamma, detach_weight=detach_weight, class_accuracy=accuracy
        )

    if not classwise:
        return Method(loss=loss, work=Work())
    return Method(
        loss=loss,
        memory=Memory(prepare=_look_before, update=_report),
        server=Server(note=_note, share=_share),
        work=Work(looks=1),
    )


def _look_before(scope: Scope, look: Look) -> Tensors:
    """Return the accuracies that the server sent, and for each class how many of the client's samples the
    received model gets right."""
    classes = len(scope.counts)
    unknown = torch.full((classes,), math.nan, device=scope.counts.device)
    correct = torch.zeros_like(scope.counts)
    for view in look(scope.anchor):
        right = view.out.logits.argmax(1) == view.labels
        correct += (one_hot(view.labels, classes) * right.unsqueeze(1)).sum(0)
    return {ACCURACY: scope.shared.get(ACCURACY, unknown), CORRECT: correct}


def _report(scope: Scope, end: End) -> tuple[Tensors, Tensors]:
    return {}, {CORRECT: scope.memory[CORRECT], SAMPLES: scope.counts}


def _note(state: ServerState, after: Weights, updates: Updates) -> Tensors:
    correct, samples = updates.reported[CORRECT].sum(0), updates.reported[SAMPLES].sum(0)
    accuracy = correct / samples  # NaN if the cohort has no sample of a class
    before = state.memory.get(ACCURACY, accuracy)
    return {ACCURACY: torch.where(samples > 0, accuracy, before)}


def _share(state: ServerState) -> Tensors:
    return {name: value for name, value in state.memory.items() if name == ACCURACY}
