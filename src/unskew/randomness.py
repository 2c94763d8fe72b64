"""Where every random number comes from: a pure function of the seed and of what it is for, never of what
ran before. So the order of clients, the number of workers and the engine cannot change a result."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


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


def seed_torch(value: int, device: torch.device) -> None:
    """Seed what draws without a generator of its own, on the CPU and on the device."""
    import torch  # here: who only draws numbers does without

    if device.type == "cpu":
        # torch.manual_seed also leaves a note, with a stack trace, for every kind of device that is not
        # there: 0.7 ms, a tenth of a small client's round.
        torch.default_generator.manual_seed(value)
    else:
        torch.manual_seed(value)
