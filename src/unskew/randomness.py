"""Where every random number comes from: a pure function of the seed and of what it is for, never of what
ran before. So the order of clients, the number of workers and the engine cannot change a result."""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """Streams of one seed. The numbers are part of every result: never renumber, only append."""

    INITIAL_WEIGHTS = 0
    COHORT = 1
    BATCH_ORDER = 2
    AUGMENTATION = 3
    CLIENT = 4
    SERVER = 5
    QUERY = 6
    LOOK_ORDER = 7
    NOISE = 8
    ATTACK = 9
    SEARCH = 10


def stream(seed: int, purpose: Purpose, *key: int) -> np.random.Generator:
    """The random numbers for one purpose and one key. The key's length counts: (0,) and (0, 0) are different
    streams, and so is no key at all."""
    return np.random.Generator(np.random.PCG64(_sequence(seed, purpose, *key)))


def draw_seed(seed: int, purpose: Purpose, *key: int) -> int:
    """A seed for a generator that is not NumPy's."""
    return int(_sequence(seed, purpose, *key).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _sequence(seed: int, purpose: Purpose, *key: int) -> np.random.SeedSequence:
    # As a spawn key and not as further entropy, which NumPy pads with zeros: [1] and [1, 0, 0] are the same.
    return np.random.SeedSequence(seed, spawn_key=(purpose, len(key), *key))
