"""The source of all random numbers: pure functions of the seed and of the purpose, never of what ran before.
So the order of clients, the number of workers and the engine cannot change a result."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


class Purpose(IntEnum):
    """The streams of a seed. Every result depends on the numbers: never change them, only append."""

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
    """Return the stream of random numbers for a purpose and a key, such as a round and a client. Keys of
    different lengths give different streams, even (0,), (0, 0) and an empty key."""
    return np.random.Generator(np.random.PCG64(_sequence(seed, purpose, *key)))


def draw_seed(seed: int, purpose: Purpose, *key: int) -> int:
    """Return a seed for a generator that is not NumPy's."""
    return int(_sequence(seed, purpose, *key).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _sequence(seed: int, purpose: Purpose, *key: int) -> np.random.SeedSequence:
    # A spawn key, since NumPy pads entropy with zeros: as entropy, [1] and [1, 0, 0] are the same.
    return np.random.SeedSequence(seed, spawn_key=(purpose, len(key), *key))


def seed_torch(value: int, device: torch.device) -> None:
    """Seed PyTorch's default generators, of the CPU and of the device."""
    import torch  # here, since drawing with NumPy does not need it

    if device.type == "cpu":
        # torch.manual_seed also leaves a note, with a stack trace, for every kind of device that is not
        # there: 0.7 ms, a tenth of a small client's round.
        torch.default_generator.manual_seed(value)
    else:
        torch.manual_seed(value)
