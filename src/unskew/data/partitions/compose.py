"""Rules that choose or group samples before another rule divides them: a long tail, a part, or domains."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from unskew.data.partition import Ints
from unskew.data.partitions.pool import Division, Partitioner, PartitionSeed, SamplePool, even
from unskew.errors import UserError


@dataclass(frozen=True)
class LongTail:
    """The sizes of the classes, over all clients together, get a long tail: class 0 keeps n_max samples, the
    size of the largest class, and the last class 1/factor of that. The rest is dropped, and `then` divides
    the samples that are left.

    profile: exp, class c keeps n_max·factor^(-c/(C-1)); step, the second half of the classes keeps
        n_max/factor.
    """

    factor: float
    then: Partitioner
    profile: Literal["exp", "step"] = "exp"

    def __post_init__(self) -> None:
        if not 1 <= self.factor < np.inf:
            raise UserError(f"longtail factor is {self.factor} but should be a finite number of at least 1.")

    def divide(self, pool: SamplePool, clients: int, seed: PartitionSeed) -> Division:
        rng = seed.stream("longtail")
        keep = np.minimum(self.wanted(int(pool.class_sizes.max()), pool.classes), pool.class_sizes)
        mine = [rng.permutation(samples)[:n] for samples, n in zip(pool.by_class, keep.tolist(), strict=True)]
        kept = np.sort(np.concatenate(mine))
        inner = self.then.divide(pool.take(kept), clients, seed)
        note = (
            f"The long tail (factor {self.factor:g}) dropped {len(pool) - len(kept):,} of {len(pool):,} "
            f"samples: classes have {keep.max():,} to {keep.min():,}."
        )
        return Division(tuple(kept[hand] for hand in inner.clients), (note, *inner.notes), inner.tries)

    def wanted(self, largest: int, classes: int) -> Ints:
        """Return how many samples each class should have, at least 1."""
        steps = np.arange(classes)
        depth = steps / (classes - 1) if self.profile == "exp" else (steps >= classes // 2).astype(np.float64)
        sizes: Ints = np.floor(largest * self.factor**-depth + 1e-9).astype(np.int64)
        return np.maximum(sizes, 1)


def kept_of(samples: int, fraction: float) -> int:
    """Return how many samples of a class, or of an owner, `Part` keeps."""
    return max(1, round(fraction * samples))


@dataclass(frozen=True)
class Part:
    """A random part of the data, as a smaller version of the same: this fraction of every class, or of every
    owner's samples if there are owners, and at least one sample of each. `then` divides the samples that are
    left."""

    fraction: float
    then: Partitioner

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise UserError(f"part is {self.fraction} but should be above 0 and at most 1.")

    def divide(self, pool: SamplePool, clients: int, seed: PartitionSeed) -> Division:
        rng = seed.stream("part")
        groups = pool.by_class if pool.owners is None else _by_owner(pool.owners)
        mine = [
            rng.permutation(samples)[: kept_of(len(samples), self.fraction)]
            for samples in groups
            if len(samples)
        ]
        kept = np.sort(np.concatenate(mine))
        inner = self.then.divide(pool.take(kept), clients, seed)
        note = f"A part of the data: {len(kept):,} of {len(pool):,} samples were kept."
        return Division(tuple(kept[hand] for hand in inner.clients), (note, *inner.notes), inner.tries)


def _by_owner(owners: Ints) -> list[Ints]:
    """Return the positions of each owner's samples, ascending."""
    _, sizes = np.unique(owners, return_counts=True)
    return np.split(np.argsort(owners, kind="stable"), np.cumsum(sizes)[:-1])


@dataclass(frozen=True)
class Domains:
    """Every domain of a joined dataset has clients of its own, among which `then` divides its samples.

    clients: the number of clients of each domain (6/4/3/7), or even.
    fraction: the part of each domain's samples that is used, one number for all domains or one for each
        (0.01/0.01/0.02/0.01).
    """

    clients: tuple[int, ...]
    then: Partitioner
    fraction: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if any(n < 1 for n in self.clients):
            raise UserError(
                f"domains is {'/'.join(map(str, self.clients))} but every domain needs at least 1 client."
            )
        if not self.fraction or any(not 0 < f <= 1 for f in self.fraction):
            raise UserError("domains fraction should be numbers above 0 and at most 1, separated by '/'.")

    def spell_out(self, names: tuple[str, ...], clients: int) -> Domains:
        """Return the same rule with one number of clients and one fraction for each domain."""
        if not names:
            raise UserError("domains needs several datasets joined by +, and this is one: leave it out.")
        D = len(names)
        each = self.clients
        if not each:
            if clients < D:
                raise UserError(f"{clients} clients cannot be spread over {D} domains: ask for at least {D}.")
            each = tuple(even(clients, D).tolist())
        fraction = self.fraction * D if len(self.fraction) == 1 else self.fraction
        for what, given in (("numbers of clients", each), ("fractions", fraction)):
            if len(given) != D:
                raise UserError(
                    f"domains gives {len(given)} {what} for the {D} domains {', '.join(names)}: give {D}."
                )
        if clients not in (0, sum(each)):
            written = "+".join(map(str, each))
            raise UserError(
                f"the domains have {written} = {sum(each)} clients, but {clients} are asked for: ask for "
                "these."
            )
        return replace(self, clients=each, fraction=fraction)

    def divide(self, pool: SamplePool, clients: int, seed: PartitionSeed) -> Division:
        rule = self.spell_out(pool.domain_names, clients)
        if pool.domains is None:
            raise UserError("domains needs a training split that tells the domain of every sample.")
        hands: list[Ints] = []
        notes: list[str] = []
        tries = 0
        for d, name in enumerate(pool.domain_names):
            own = PartitionSeed(seed.value, d + 1)
            here = np.flatnonzero(pool.domains == d)
            if rule.fraction[d] < 1:
                part = max(1, round(rule.fraction[d] * len(here)))
                here = np.sort(own.stream("fraction").permutation(here)[:part])
            try:
                inner = self.then.divide(pool.take(here), rule.clients[d], own)
            except UserError as error:
                raise UserError(f"in the domain {name}: {error}") from None
            hands += [here[hand] for hand in inner.clients]
            notes += [f"{name}: {note}" for note in inner.notes]
            tries += inner.tries
        return Division(tuple(hands), tuple(notes), tries)
