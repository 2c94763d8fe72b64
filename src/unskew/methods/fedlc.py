"""FedLC.

Zhang, Li, Li, Xu, Wu, Ding, Wu. Federated Learning with Label Distribution Skew via Logits Calibration. ICML
2022.

A margin is taken off every logit before the softmax, the larger the rarer the class is at the client. Rare
classes must then win by more, and classes the client does not have drop out.

    L = CE(z - tau n^(-1/4), y)

Deviations:
- The printed Eq. 7 leaves the label out of its denominator. That form has no minimum and was reported to
  collapse, so the label is kept, as in the public implementations; denominator="exclude" is the print.
- The paper says nothing of n_c = 0. The margin is then infinite and the class drops out ("mask"); FL-bench
  clamps n_c to 1e-8 ("clamp", a margin of 100 tau); "one" sets n_c = 1.
- The paper prints no tau. 0.5 is what FedVLS's comparison uses; FedDecorr's code has 0.1 and FL-bench 1. At
  such values the margins are small (0.12 tau at n_c = 5000), and dropping vacant classes is most of the
  effect.
- Under "mask" a client with one class has no loss at all, and learns nothing.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from unskew.errors import require
from unskew.losses import margin_cross_entropy
from unskew.method import Method, Work
from unskew.methods.card import card
from unskew.types import View


@card("fedlc")
def fedlc(
    *,
    tau: float = 0.5,
    vacant: Literal["mask", "clamp", "one"] = "mask",
    denominator: Literal["include", "exclude"] = "include",
) -> Method:
    """Take a margin off the logits that grows as a class gets rarer."""
    require(tau >= 0, f"tau is {tau} but should be 0 or more.")
    require(vacant in ("mask", "clamp", "one"), f"vacant is '{vacant}' but should be mask, clamp or one.")
    require(
        denominator in ("include", "exclude"),
        f"denominator is '{denominator}' but should be include or exclude.",
    )

    def loss(view: View) -> Tensor:
        return margin_cross_entropy(
            view.out.logits, view.labels, view.scope.counts, tau=tau, vacant=vacant, denominator=denominator
        )  # Eq. 7

    notes = ("FedLC's loss without the label in its denominator, as printed, has no minimum.",)
    return Method(loss=loss, notes=notes if denominator == "exclude" else (), work=Work())
