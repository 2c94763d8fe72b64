"""CalFAT's calibration.

Chen, Liu, Ma, Lyu. CalFAT: Calibrated Federated Adversarial Training with Label Skewness. NeurIPS 2022.

The log-prior of a client's classes is added to its logits in the loss, so that the model learns what is left
without it: the same at all clients, however skewed. It is logit-adjustment with tau=1 and the client's prior.

    L = CE(z + log p, y),   p_c = n_c / n
    form="released":  L = CE(10 (z + 0.1 log(n_c + 1e-7)), y),   and every client counts alike in the average

Deviations:
- The adversarial training is left out: samples are trained on as they are.
- form="paper" leaves vacant classes out of the softmax, the limit p_c -> 0, and averages by samples. The
  released code keeps them there with a prior of log 1e-7, scales the logits by 10, and averages uniformly;
  with logits scaled by 10 local steps are as much larger.
"""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor
from torch.nn.functional import cross_entropy

from unskew.errors import unknown
from unskew.losses import calibrated_cross_entropy
from unskew.method import Method, Work
from unskew.methods.card import card
from unskew.parts.servers import combine_equally
from unskew.types import Server, View

CalfatForm = Literal["paper", "released"]

SCALE, FLOOR = 10.0, 1e-7


@card("calfat")
def calfat(*, form: CalfatForm = "paper") -> Method:
    """Add the log-prior of a client's own classes to its logits in the loss."""
    if form not in get_args(CalfatForm):
        raise unknown("form", form, get_args(CalfatForm))
    if form == "paper":
        return Method(loss=_calibrated, work=Work())
    return Method(loss=_released, server=Server(combine=combine_equally), work=Work())


def _calibrated(view: View) -> Tensor:
    return calibrated_cross_entropy(view.out.logits, view.labels, view.scope.counts)


def _released(view: View) -> Tensor:
    prior = (view.scope.counts + FLOOR).log()
    return cross_entropy(SCALE * (view.out.logits + prior / SCALE), view.labels)
