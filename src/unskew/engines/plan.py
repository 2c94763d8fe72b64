"""Who trains in a round, on which batches, with which augmentation draws: known before anything runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unskew.randomness import Purpose, stream


def cohort(seed: int, round: int, clients: int, size: int) -> list[int]:
    """The clients of a round, without replacement, in ascending order."""
    if size == clients:
        return list(range(clients))
    chosen = stream(seed, Purpose.COHORT, round).choice(clients, size=size, replace=False)
    return sorted(int(client) for client in chosen)


@dataclass(frozen=True)
class Batch:
    rows: NDArray[np.int64]
    """Positions in the client's own list of samples."""
    draws: NDArray[np.float32]
    """Uniform numbers for the augmentation of each row, [len(rows), draws]."""


def batches(
    seed: int,
    round: int,
    client: int,
    samples: int,
    *,
    epochs: int,
    batch_size: int,
    draws: int = 0,
    drop_single: bool = False,
) -> Iterator[Batch]:
    """A client's batches of one round, freshly shuffled in each epoch. The draws belong to the sample, not
    to its place in the batch. `drop_single` leaves out a trailing batch of one sample after full ones, from
    which BatchNorm could take no statistics."""
    for epoch in range(epochs):
        order = stream(seed, Purpose.BATCH_ORDER, round, client, epoch).permutation(samples)
        uniform = stream(seed, Purpose.AUGMENTATION, round, client, epoch).random(
            (samples, draws), np.float32
        )
        for start in range(0, samples, batch_size):
            rows = order[start : start + batch_size]
            if drop_single and len(rows) == 1 < batch_size and start > 0:
                continue
            yield Batch(rows, uniform[rows])
