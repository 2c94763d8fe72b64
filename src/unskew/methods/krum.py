"""Krum and Multi-Krum.

Blanchard, El Mhamdi, Guerraoui, Stainer. Machine Learning with Adversaries: Byzantine Tolerant Gradient
Descent. NeurIPS 2017.

The server follows the one client whose update lies nearest to its neighbours; Multi-Krum averages the `m`
best of them.

    s_k = sum of ||Delta_k - Delta_j||^2 over the n - f - 2 nearest updates,   f = floor(fraction n)
    Delta = mean of the m updates with the smallest s_k

Weights: none, every client counts alike.

Deviations:
- n are the clients of the cohort that trained. The paper's guarantee needs n > 2 f + 2: f is at most (n - 3)
  / 2 here, and with fewer than three clients the first one is followed.
- Of equal scores the client with the smallest number is taken.
- BatchNorm statistics, where the run averages them, are the clients' median by coordinate, since distances
  between parameters know nothing of them. What a method reports beside the update is used as it is sent.
- It assumes clients that are alike. Under label skew m=1 follows a client that lacks classes, and any m
  leaves out those with rare ones. See docs/reliability.md, and `nnm`.
"""

from __future__ import annotations

import torch

from unskew.errors import require
from unskew.method import Method
from unskew.methods.card import card
from unskew.parts.robust import (
    bad_clients,
    check_fraction,
    mean_of_rows,
    median_buffers,
    ranks,
    sound_rows,
    squared_distances,
)
from unskew.types import Params, Server, ServerState, Updates


@card("krum")
def krum(*, fraction: float = 0.2, m: int = 1) -> Method:
    """Follow the client whose update lies nearest to the others', or the mean of the m best such."""
    check_fraction(fraction)
    require(m >= 1, f"m is {m} but should be 1 or more.")

    def combine(state: ServerState, updates: Updates) -> Params:
        sound = sound_rows(updates.delta)
        n = sound.sum()
        f = torch.minimum(bad_clients(fraction, n), (n - 3).clamp(min=0) // 2)
        # In ascending order, each client's distance to itself comes first and adds nothing.
        ascending = squared_distances(updates.delta, sound).sort(dim=1).values
        near = torch.arange(len(sound), device=sound.device) <= (n - f - 2).clamp(min=1)
        scores = torch.where(near, ascending, 0.0).sum(dim=1)
        highest = torch.finfo(scores.dtype).max
        scores = torch.where(sound, scores.clamp(max=highest), torch.inf)
        return mean_of_rows(updates.delta, (ranks(scores) < m) & sound)

    return Method(server=Server(combine=combine, buffers=median_buffers))
