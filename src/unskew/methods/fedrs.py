"""FedRS.

Li, Zhan. FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data. KDD 2021.

A client that never sees a class can only push its logit down. FedRS scales the logits of vacant classes in
the local loss, so that their classifiers move less.

    L = CE(s * z, y),   s_c = alpha for vacant classes, 1 for the others
    form="graded":      s_c = alpha + (1 - alpha) n_c / max(n)

Prediction uses the plain logits z.

Deviations:
- The authors' code scales h . w_c and has no bias; here the whole logit is scaled, bias included, as in the
  re-implementations of FedDecorr and FedVLS.
- The authors' code has the graded scale, the paper the binary one; its gradient clipping is left out.
- alpha=0.5 is FedLMD's most frequent value; FedVLS's comparison prints 0.7. alpha=0 pins vacant logits at 0
  and does not remove them from the softmax; any alpha below 1 pulls negative ones up.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from unskew.errors import require
from unskew.losses import restricted_cross_entropy
from unskew.method import Method, Work
from unskew.methods.card import card
from unskew.types import View


@card("fedrs")
def fedrs(*, alpha: float = 0.5, form: Literal["binary", "graded"] = "binary") -> Method:
    """Scale down the logits of the classes a client does not have."""
    require(0 <= alpha <= 1, f"alpha is {alpha} but should be from 0 to 1.")
    require(form in ("binary", "graded"), f"form is '{form}' but should be binary or graded.")

    def loss(view: View) -> Tensor:
        counts = view.scope.counts
        return restricted_cross_entropy(
            view.out.logits, view.labels, counts, alpha=alpha, soft=form == "graded"
        )

    return Method(loss=loss, work=Work())
