"""Geometric median, known as RFA.

Pillutla, Kakade, Harchaoui. Robust Aggregation for Federated Learning. IEEE Transactions on Signal Processing
70, 2022.

The server takes the point whose summed distance to all updates is smallest. Distances and not their squares:
a far outlier pulls no harder than a near one. In contrast to the coordinate-wise median it does not depend on
the axes, and follows a minority of clients on the weights that only they move.

    Delta = argmin_z sum_k p_k ||z - Delta_k||
    Weiszfeld steps:  b_k = p_k / ||z - Delta_k||,   z <- sum_k b_k Delta_k / sum_k b_k

Weights: p_k alike by default, because a number of samples is a claim as well; weighting="size" weighs by
samples as the paper does, and withstands bad clients as long as they have less than half of the samples.

Deviations:
- The steps start at the coordinate-wise median of the updates and not at their mean, so that an outlier at
  any distance does not slow them; 8 steps are the default, the paper finds 3 to suffice.
- Where z lies within nu, 1e-6, of updates the paper takes nu for their distance, by which z all but stays
  there. Here it leaves them if the others pull harder, as in Vardi, Zhang. The Multivariate L1-Median and
  Associated Data Depth. PNAS 2000.
- BatchNorm statistics, where the run averages them, are the clients' median by coordinate, since distances
  between parameters know nothing of them. What a method reports beside the update is used as it is sent.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from unskew.errors import require
from unskew.method import Method
from unskew.methods.card import card
from unskew.parts.robust import median, median_buffers, sound_rows, without_unsound
from unskew.parts.servers import squared_norms, weighted_sum
from unskew.types import Params, Server, ServerState, Updates


@card("geometric-median")
def geometric_median(
    *, steps: int = 8, nu: float = 1e-6, weighting: Literal["uniform", "size"] = "uniform"
) -> Method:
    """Take the point whose summed distance to the clients' updates is smallest."""
    require(steps >= 1, f"steps is {steps} but should be 1 or more.")
    require(nu > 0, f"nu is {nu} but should be above 0.")
    require(
        weighting in ("uniform", "size"), f"weighting is '{weighting}' but should be 'uniform' or 'size'."
    )

    def combine(state: ServerState, updates: Updates) -> Params:
        sound = sound_rows(updates.delta)
        p = updates.weight if weighting == "size" else torch.ones_like(updates.weight)
        p = torch.where(sound, p, 0.0)
        rows = without_unsound(updates.delta, sound)
        z = {name: median(value, sound) for name, value in rows.items()}
        for _ in range(steps):
            z = _weiszfeld_step(z, rows, p, nu)
        return z

    return Method(server=Server(combine=combine, buffers=median_buffers))


def _weiszfeld_step(z: Params, rows: Params, p: Tensor, nu: float) -> Params:
    distance = squared_norms({name: value - z[name] for name, value in rows.items()}).sqrt()
    smallest = torch.finfo(p.dtype).tiny
    here = distance < nu
    b = torch.where(here, 0.0, p / distance.clamp(min=smallest))
    others = weighted_sum(rows, b / b.sum().clamp(min=smallest))
    pull = (
        b.sum() * squared_norms({name: (others[name] - value)[None] for name, value in z.items()})[0].sqrt()
    )
    hold = torch.where(here, p, 0.0).sum()
    share = torch.where(hold > 0, (hold / pull.clamp(min=smallest)).clamp(max=1), 0.0)
    return {name: others[name].lerp(value, share.to(value)) for name, value in z.items()}
