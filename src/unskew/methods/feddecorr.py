"""FedDecorr.

Shi, Liang, Zhang, Tan, Bai. Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous
Federated Learning. ICLR 2023.

Under label skew the features of local models collapse into few directions. A term that penalises
correlations between feature dimensions keeps them spread.

    L = CE + beta (B-1)^2/B mean_{i != j} K_ij^2,   K the correlations of the features over the batch of B

Deviations:
- None from the released code, whose form (`form="code"`) grows with the batch size. The paper's form
  (`form="paper"`) is beta ||K||_F^2 / d^2.
- `beta` is 0.1 as released for CIFAR-10; its CIFAR-100 scripts use 0.05.
- A batch of one sample has no correlations: the term is 0.
"""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor

from unskew.errors import require, unknown
from unskew.losses import decorrelation_term
from unskew.method import Method, Work
from unskew.methods.card import card
from unskew.types import View

FedDecorrForm = Literal["code", "paper"]


@card("feddecorr")
def feddecorr(*, beta: float = 0.1, form: FedDecorrForm = "code") -> Method:
    """Keep features from collapsing by penalising correlations between their dimensions."""
    require(beta >= 0, f"beta is {beta} but should be 0 or more.")
    if form not in get_args(FedDecorrForm):
        raise unknown("form", form, get_args(FedDecorrForm))

    def term(view: View) -> Tensor:
        return beta * decorrelation_term(view.out.features, form=form)

    return Method(terms=(term,), work=Work())
