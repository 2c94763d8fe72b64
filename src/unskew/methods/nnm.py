"""NNM: nearest-neighbour mixing.

Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan. Fixing by Mixing: A Recipe for Optimal Byzantine ML
under Heterogeneity. AISTATS 2023.

Where honest clients differ, as under label skew, a median or Krum takes them for liars, or hides an attack in
their spread. So every update is first replaced by the mean of those nearest to it: honest updates move
together, and what is combined afterwards, by whichever rule, varies less. With `median`, `trimmed-mean`,
`krum` or `geometric-median` the error is then of the best order that any rule can have.

    Delta_k <- mean of the n - f updates nearest to Delta_k, itself among them;   f = floor(fraction n)

Weights: in the mixing every client counts alike; after it those of the rule it is combined with, alone by
the number of samples. Alone it bounds nothing: nnm+trimmed-mean does.

Deviations:
- The paper has f as a number; here it is a fraction of the clients that trained, since cohorts vary.
- An update that is not finite becomes the mean of all others, where the run has not left its client out
  already.
- BatchNorm statistics, where the run averages them, are the clients' median by coordinate, which distances
  between parameters know nothing of. What a method reports beside the update is not mixed.
"""

from __future__ import annotations

import torch

from unskew.method import Method
from unskew.methods.card import card
from unskew.parts.robust import (
    bad_clients,
    check_fraction,
    median_buffers,
    ranks,
    sound_rows,
    squared_distances,
    with_rows,
    without_unsound,
)
from unskew.types import Server, ServerState, Updates


@card("nnm")
def nnm(*, fraction: float = 0.2) -> Method:
    """Replace every update by the mean of those nearest to it, before another rule combines them."""
    check_fraction(fraction)

    def revise(state: ServerState, updates: Updates) -> Updates:
        sound = sound_rows(updates.delta)
        n = sound.sum()
        distances = squared_distances(updates.delta, sound)
        # A row that is not sound is near none, not even itself.
        distances = torch.where(sound, distances, torch.inf)
        near = (ranks(distances) < n - bad_clients(fraction, n)) & sound
        mixing = near / near.sum(dim=1, keepdim=True).clamp(min=1)
        rows = without_unsound(updates.delta, sound)
        return with_rows(
            updates, {name: torch.tensordot(mixing.to(value), value, dims=1) for name, value in rows.items()}
        )

    return Method(server=Server(revise=revise, buffers=median_buffers))
