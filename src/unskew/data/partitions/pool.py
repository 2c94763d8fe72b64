"""The input and output of partitioners, and the arithmetic that several of them share."""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from unskew.data.partition import Floats, Ints
from unskew.errors import UserError


@dataclass(frozen=True, eq=False)
class SamplePool:
    """The samples to divide, which are named by their positions 0..n-1."""

    labels: Ints
    classes: int
    owners: Ints | None = None
    domains: Ints | None = None
    domain_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def by_class(self) -> tuple[Ints, ...]:
        """The positions of each class's samples, ascending."""
        order = np.argsort(self.labels, kind="stable")
        return tuple(np.split(order, np.cumsum(self.class_sizes)[:-1]))

    @cached_property
    def class_sizes(self) -> Ints:
        return np.bincount(self.labels, minlength=self.classes)

    def take(self, positions: Ints) -> SamplePool:
        """Return a pool of only these samples; its position i is positions[i] of this pool."""
        owners = None if self.owners is None else self.owners[positions]
        domains = None if self.domains is None else self.domains[positions]
        return SamplePool(self.labels[positions], self.classes, owners, domains, self.domain_names)


@dataclass(frozen=True, eq=False)
class Division:
    """The positions of every client's samples in the pool, with notes and the number of draws."""

    clients: tuple[Ints, ...]
    notes: tuple[str, ...] = ()
    tries: int = 1


@dataclass(frozen=True)
class PartitionSeed:
    """The seed of a partition: every purpose has its own stream, apart from those of training. Domains of one
    federation have different branches."""

    value: int
    branch: int = 0

    def stream(self, purpose: str) -> np.random.Generator:
        key = (zlib.crc32(b"partition"), self.branch, zlib.crc32(purpose.encode()))
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence(self.value, spawn_key=key)))

    def legacy(self) -> np.random.RandomState:
        """Return NumPy's generator as after np.random.seed(seed), which the published codes call. NumPy never
        changes this stream."""
        return np.random.RandomState(self.legacy_seed())

    def legacy_python(self) -> random.Random:
        """Return Python's generator as after random.seed(seed)."""
        return random.Random(self.legacy_seed())

    def legacy_seed(self) -> int:
        """Return the seed for the published codes' generators; refuse one that is too large for them."""
        if self.value + self.branch >= 2**32:
            raise UserError(
                f"a published variant needs a seed below {2**32}, not {self.value}: choose a smaller one."
            )
        return self.value + self.branch


class Partitioner(Protocol):
    """A rule that divides samples among clients. Its dataclass fields are its options."""

    def divide(self, pool: SamplePool, clients: int, seed: PartitionSeed) -> Division: ...


def enough(pool: SamplePool, clients: int, each: int = 1) -> None:
    """Raise a UserError unless there are `each` samples for every client."""
    if clients < 1:
        raise UserError(f"{clients} clients cannot share data: ask for at least 1.")
    if clients > len(pool):
        raise UserError(
            f"{clients} clients cannot share {len(pool)} samples: ask for at most {len(pool)} clients."
        )
    if clients * each > len(pool):
        raise UserError(
            f"{clients} clients cannot have {each} samples each, {len(pool)} are there: lower min_size to "
            f"{len(pool) // clients} or less, or ask for fewer clients."
        )


def pfllib_least(pool: SamplePool, clients: int) -> int:
    """Return PFLlib's least number of samples of a client: so many that a quarter of them is a test batch of
    10, or half an equal share if that is less."""
    return int(min(10 / (1 - 0.75), len(pool) / max(clients, 1) / 2))


def per_class(rule: str, each: int, clients: int, classes: int) -> int:
    """Return how many clients hold a class if every client holds `each` classes and every class has equally
    many holders; raise a UserError if that is no whole number."""
    if clients * each % classes:
        raise UserError(
            f"{rule}:{each} needs clients × {each} to be a multiple of the {classes} classes, but {clients} "
            f"× {each} = {clients * each}: change one of them."
        )
    return clients * each // classes


def even(total: int, parts: int) -> Ints:
    """Divide `total` into `parts` shares that differ by 1 at most, larger ones first."""
    return total // parts + (np.arange(parts) < total % parts).astype(np.int64)


def largest_remainder(shares: Floats, total: int) -> Floats:
    """Round each row of `shares`, whose sum is `total`, to whole numbers with the same sum: all are rounded
    down, then the ones with the largest fractions get one more, the lower index first among equals."""
    whole = np.floor(shares)
    fractions = shares - whole
    missing = total - whole.sum(axis=1).astype(np.int64)
    # One sort finds each row's smallest fraction that is still rounded up, which is faster than ranking.
    ranked = np.sort(fractions, axis=1)
    smallest = np.where(missing > 0, ranked[np.arange(len(missing)), -missing], np.inf)
    up = fractions >= smallest[:, None]
    # With equal fractions this rounds too many up.
    for row in np.flatnonzero(np.count_nonzero(up, axis=1) != missing):
        up[row] = False
        up[row, np.argsort(-fractions[row], kind="stable")[: missing[row]]] = True
    whole += up
    return whole


def deal(pool: SamplePool, counts: Ints, rng: np.random.Generator) -> tuple[Ints, ...]:
    """Deal counts[client, class] random samples to each client; return their positions in ascending order."""
    hands: list[list[Ints]] = [[] for _ in counts]
    for mine, share in zip(pool.by_class, counts.T, strict=True):
        cuts = np.cumsum(share)
        for hand, dealt in zip(hands, np.split(rng.permutation(mine), cuts)[:-1], strict=True):
            hand.append(dealt)
    return tuple(np.sort(np.concatenate(hand)) for hand in hands)
