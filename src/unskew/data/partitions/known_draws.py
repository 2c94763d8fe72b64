"""Searches of published codes whose end is known, so that nobody waits for the draws that fail."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np


class PublishedSearch(NamedTuple):
    """What the outcome of every draw of a search depends on."""

    beta: float
    cap: bool
    min_size: int
    clients: int
    class_sizes: tuple[int, ...]
    seed: int


class FailedDraws(NamedTuple):
    """The draws before the one that succeeds, none of which underflows."""

    draws: int
    state: str
    """The file with the state of the generator after them: MT19937's key, then its position, in 32 bits each,
    the lowest first."""

    def skip(self, rng: np.random.RandomState) -> None:
        """Set a generator to where these draws leave it."""
        *key, position = np.fromfile(Path(__file__).parent / self.state, dtype="<u4").tolist()
        rng.set_state(("MT19937", np.array(key, dtype=np.uint32), position, 0, 0.0))


FAILED_DRAWS = {
    # CIFAR-10 under Dirichlet 0.05 in FedNTD and FedLMD, which takes 15 to 20 s to draw.
    PublishedSearch(0.05, True, 10, 100, (5000,) * 10, 19940817): FailedDraws(
        19125, "fedntd_cifar10_dirichlet_0.05.state"
    ),
}
