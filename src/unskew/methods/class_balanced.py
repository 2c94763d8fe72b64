"""Class-balanced re-weighting.

Cui, Jia, Lin, Song, Belongie. Class-Balanced Loss Based on Effective Number of Samples. CVPR 2019.

Every sample weighs as the inverse of its class's effective number of samples at the client, which grows with
n_c but never beyond 1 / (1 - beta).

    L = mean of w_y CE,   w_c proportional to (1 - beta) / (1 - beta^n_c)

Deviations: the counts are the client's own. The weights sum to the number of classes the client has; the
original normalises over all C classes (normalise="all"), which only scales the loss of a client. Vacant
classes weigh 0 and are never used. The weighted sum is divided by the batch size, not by the sum of its
weights.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from unskew.errors import require
from unskew.losses import class_balanced_cross_entropy
from unskew.method import Method, Work
from unskew.methods.card import card
from unskew.types import View


@card("class-balanced")
def class_balanced(*, beta: float = 0.9999, normalise: Literal["present", "all"] = "present") -> Method:
    """Weigh samples by the inverse of their class's effective number of samples."""
    require(0 <= beta < 1, f"beta is {beta} but should be at least 0 and below 1.")
    require(normalise in ("present", "all"), f"normalise is '{normalise}' but should be present or all.")

    def loss(view: View) -> Tensor:
        return class_balanced_cross_entropy(
            view.out.logits, view.labels, view.scope.counts, beta=beta, normalise=normalise
        )

    return Method(loss=loss, work=Work())
