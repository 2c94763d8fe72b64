"""A method of your own: cross-entropy plus a penalty on confident answers (Pereyra et al., 2017).

    unskew run --method examples/flatten.py --dataset digits --skew dirichlet:0.05
    unskew compare fedavg examples/flatten.py:beta=0.2 examples/flatten.py+fedprox

The objective is  L = CE - beta H(p),  with H the entropy of the model's answer p.
"""

from torch import Tensor

from unskew import Method
from unskew.types import View


def flatten(*, beta: float = 0.1) -> Method:
    """Reward answers that leave room for other classes."""

    def term(view: View) -> Tensor:
        log_p = view.out.logits.log_softmax(dim=1)
        return beta * (log_p.exp() * log_p).sum(dim=1).mean()

    return Method(terms=(term,))
