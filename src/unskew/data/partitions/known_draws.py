"""Known results of the published codes' long searches, so that the draws that fail need not be repeated."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np


class PublishedSearch(NamedTuple):
    """Everything that the draws of a search depend on."""

    beta: float
    cap: bool
    min_size: int
    clients: int
    class_sizes: tuple[int, ...]
    seed: int


class FailedDraws(NamedTuple):
    """The draws of a search before the one that succeeds; none of them underflows."""

    draws: int
    """The number of these draws."""
    state: str
    """The file with the state of the generator after them: MT19937's key, then its position, as little-endian
    numbers of 32 bits."""

    def skip(self, rng: np.random.RandomState) -> None:
        """Set a generator to the state after these draws."""
        *key, position = np.fromfile(Path(__file__).parent / self.state, dtype="<u4").tolist()
        rng.set_state(("MT19937", np.array(key, dtype=np.uint32), position, 0, 0.0))


FAILED_DRAWS = {
    # CIFAR-10 under Dirichlet 0.05 in FedNTD and FedLMD, which takes 15 to 20 s to draw.
    PublishedSearch(0.05, True, 10, 100, (5000,) * 10, 19940817): FailedDraws(
        19125, "fedntd_cifar10_dirichlet_0.05.state"
    ),
}
