"""Label smoothing.

Szegedy, Vanhoucke, Ioffe, Shlens, Wojna. Rethinking the Inception Architecture for Computer Vision. CVPR
2016. As a baseline of federated learning: Lu et al., FedLMD, ACM Multimedia 2023.

A share of every target is spread over all classes, which keeps a client from pushing the logits of its vacant
classes down without end.

    L = (1 - mu) CE + mu / C sum_c -log p_c

Deviations: none. mu=0.1 is the value of both papers.
"""

from __future__ import annotations

from torch import Tensor

from unskew.errors import require
from unskew.losses import label_smoothing_cross_entropy
from unskew.method import Method, Work
from unskew.methods.card import card
from unskew.types import View


@card("label-smoothing")
def label_smoothing(*, mu: float = 0.1) -> Method:
    """Spread a share of every target over all classes."""
    require(0 <= mu <= 1, f"mu is {mu} but should be from 0 to 1.")

    def loss(view: View) -> Tensor:
        return label_smoothing_cross_entropy(view.out.logits, view.labels, smoothing=mu)

    return Method(loss=loss, work=Work())
