"""The clients of a round, their batches and their augmentation draws, all known before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unskew.randomness import Purpose, stream
from unskew.trial import Budget


def draw_cohort(seed: int, round: int, clients: int, size: int) -> list[int]:
    """Draw the clients of a round, without replacement, and return them in ascending order."""
    if size == clients:
        return list(range(clients))
    chosen = stream(seed, Purpose.COHORT, round).choice(clients, size=size, replace=False)
    return sorted(int(client) for client in chosen)


def longest_first(sizes: Sequence[int]) -> list[int]:
    """Return the indices of the sizes above 0, the largest first. If work is given out in this order, what
    ends last is short, so that no worker waits long for another."""
    return sorted((place for place, size in enumerate(sizes) if size), key=lambda place: -sizes[place])


def divide(sizes: Sequence[int], parts: int) -> list[list[int]]:
    """Divide the indices of the sizes above 0 into parts: the largest first, each to the part with the
    smallest sum."""
    divided: list[list[int]] = [[] for _ in range(parts)]
    load = [0] * parts
    for place in longest_first(sizes):
        least = load.index(min(load))
        divided[least].append(place)
        load[least] += sizes[place]
    return divided


@dataclass(frozen=True)
class Epoch:
    """One pass of a client over its data, or the first part of one."""

    rows: NDArray[np.int64]
    """Positions in the client's own list of samples, in the order of the batches."""
    draws: NDArray[np.float32]
    """Uniform numbers for the augmentation of each row, [len(rows), draws]."""
    sizes: list[int]
    """The sizes of the batches."""


def epochs(
    seed: int,
    round: int,
    client: int,
    samples: int,
    budget: Budget,
    *,
    draws: int = 0,
    drop_single: bool = False,
) -> Iterator[Epoch]:
    """Yield a client's passes of one round, each freshly shuffled; the last one ends where the budget does. A
    sample's draws do not depend on its place in the batch. `drop_single` is that of `Budget.batch_sizes`."""
    sizes = budget.batch_sizes(samples, drop_single=drop_single)
    left, epoch = budget.steps_in(len(sizes)), 0
    while left or not epoch:
        now = sizes[:left]
        order = stream(seed, Purpose.BATCH_ORDER, round, client, epoch).permutation(samples)[: sum(now)]
        uniform = np.empty((samples, 0), np.float32)
        if draws:
            chance = stream(seed, Purpose.AUGMENTATION, round, client, epoch)
            uniform = chance.random((samples, draws), np.float32)
        yield Epoch(order, uniform[order], now)
        left, epoch = left - len(now), epoch + 1
