"""Clipping of the clients' updates at the server.

Sun, Kairouz, Suresh, McMahan. Can You Really Backdoor Federated Learning? NeurIPS 2019 workshop on federated
learning (a fixed bound). The median of the norms as the bound: as for instance in Andrew, Thakkar, McMahan,
Ramaswamy. Differentially Private Learning with Adaptive Clipping. NeurIPS 2021, there tracked over the
rounds.

An update that is longer than the bound is scaled down to it, so that a client can point anywhere but pull no
harder than others. It is not a rule by itself: what is combined afterwards, by whichever rule, are the
clipped updates.

    Delta_k <- Delta_k min(1, bound / ||Delta_k||),   the norm over all parameters together
    bound="median":  factor times the median of the cohort's norms in this round

Weights: as those of the rule it is combined with; alone by the number of samples, as in FedAvg. The
median of the norms counts every client alike.

Deviations:
- The bound that follows the round's own median needs no tuning as updates shrink, and nothing is remembered.
- Rules written after it in a sum see clipped updates: clip+nnm is not nnm+clip.
- BatchNorm statistics, where the run averages them, are the clients' median by coordinate, since clipping has
  no meaning for them. What a method reports beside the update (SCAFFOLD's controls) is not clipped.
"""

from __future__ import annotations

from typing import Literal

import torch

from unskew.errors import require
from unskew.method import Method
from unskew.methods.card import card
from unskew.parts.robust import median, median_buffers, with_rows, without_unsound
from unskew.parts.servers import scaled_rows, squared_norms
from unskew.types import Server, ServerState, Updates


@card("clip")
def clip(*, bound: Literal["median"] | float = "median", factor: float = 1.0) -> Method:
    """Scale updates down to a bound on their norm, by default the median norm of the cohort."""
    require(bound == "median" or bound > 0, f"bound is {bound} but should be above 0, or median.")
    require(factor > 0, f"factor is {factor} but should be above 0.")
    require(
        bound == "median" or factor == 1, "factor scales the median of the norms: leave it out with a bound."
    )

    def revise(state: ServerState, updates: Updates) -> Updates:
        norms = squared_norms(updates.delta).sqrt()
        sound = norms.isfinite()
        limit = factor * median(norms, sound) if bound == "median" else torch.full_like(norms[0], bound)
        scale = torch.where(norms > limit, limit / norms, 1.0)
        return with_rows(updates, scaled_rows(without_unsound(updates.delta, sound), scale))

    return Method(server=Server(revise=revise, buffers=median_buffers))
