"""Uniform averaging.

Karimireddy et al. (SCAFFOLD, ICML 2020) and Lu et al. (FedLMD, ACM Multimedia 2023), among others, print the
plain mean over the clients where most code weighs them by their number of samples. Put together with a
client method it gives that method's printed form: fedlmd+uniform is Algorithm 1 of FedLMD.

    w[t+1] = w[t] + 1/m sum_k (w_k - w[t]),   over the m clients that trained

Deviations: BatchNorm statistics are still averaged by the number of samples, because what becomes of them is
a policy of the run.
"""

from __future__ import annotations

from unskew.method import Method
from unskew.methods.card import card
from unskew.parts.servers import combine_equally
from unskew.types import Server


@card("uniform")
def uniform() -> Method:
    """Average the clients' models, every client alike."""
    return Method(server=Server(combine=combine_equally))
