"""Rules that give each client a few classes, or all classes in equal parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from unskew.data.partition import Ints
from unskew.data.partitions.pool import (
    Division,
    PartitionSeed,
    SamplePool,
    deal,
    enough,
    even,
    per_class,
    pfllib_least,
)
from unskew.errors import UserError


@dataclass(frozen=True)
class Labels:
    """Client i holds class i mod C and k-1 other random classes; every class is divided evenly among the
    clients that hold it (NIID-Bench "#label=k").

    variant: clean first deals the classes that no client would hold (if there are fewer clients than
        classes), so that none is lost; niid-bench makes the draws of the published code, bit for bit, and
        fails if that leaves a class without a client.
    """

    k: int
    variant: Literal["clean", "niid-bench"] = "clean"

    def __post_init__(self) -> None:
        if self.k < 1:
            raise UserError(f"labels k is {self.k} but should be at least 1.")

    def divide(self, pool: SamplePool, clients: int, seed: PartitionSeed) -> Division:
        enough(pool, clients)
        C = pool.classes
        _refuse_too_many("labels", self.k, C)
        if clients * self.k < C:
            raise UserError(
                f"{clients} clients with {self.k} classes each cannot cover {C} classes: raise one of the "
                "numbers."
            )
        if self.variant == "niid-bench":
            return self._divide_as_published(pool, clients, seed)
        holds = self._deal_classes(clients, C, seed.stream("labels"))
        return Division(deal(pool, _evenly(pool.class_sizes, holds), seed.stream("deal")))

    def _deal_classes(self, clients: int, classes: int, rng: np.random.Generator) -> Ints:
        """Draw the classes that clients hold, [clients, classes] of 0 and 1."""
        holds = np.zeros((clients, classes), dtype=np.int64)
        holds[np.arange(clients), np.arange(clients) % classes] = 1
        unheld = rng.permutation(np.flatnonzero(holds.sum(axis=0) == 0))
        holds[rng.permutation(np.repeat(np.arange(clients), self.k - 1))[: len(unheld)], unheld] = 1
        for mine in holds:
            others = np.flatnonzero(mine == 0)
            mine[rng.choice(others, self.k - int(mine.sum()), replace=False)] = 1
        return holds

    def _divide_as_published(self, pool: SamplePool, clients: int, seed: PartitionSeed) -> Division:
        C, rng, draw = pool.classes, seed.legacy(), seed.legacy_python()
        holds = [list(range(C))] * clients if self.k == C else [[i % C] for i in range(clients)]
        for mine in holds:
            while len(mine) < self.k:
                label = draw.randint(0, C - 1)
                if label not in mine:
                    mine.append(label)
        hands: list[list[Ints]] = [[] for _ in range(clients)]
        for c, samples in enumerate(pool.by_class):
            holders = [k for k in range(clients) if c in holds[k]]
            if not holders:
                raise UserError(
                    f"with this seed no client holds class {c}: change the seed, or use variant=clean."
                )
            order = samples.copy()
            rng.shuffle(order)
            for k, part in zip(holders, np.array_split(order, len(holders)), strict=True):
                hands[k].append(part)
        return Division(tuple(np.concatenate(hand) for hand in hands))


def _refuse_too_many(rule: str, each: int, classes: int) -> None:
    """Refuse a rule that asks for more classes per client than there are."""
    if each > classes:
        raise UserError(
            f"{rule}:{each} asks for more classes per client than the {classes} there are: lower it."
        )


def _evenly(sizes: Ints, holds: Ints) -> Ints:
    """Divide every class in equal shares among the clients that hold it; return counts [clients, classes]."""
    counts = np.zeros_like(holds)
    for c, size in enumerate(sizes.tolist()):
        holders = np.flatnonzero(holds[:, c])
        counts[holders, c] = even(size, len(holders))
    return counts


@dataclass(frozen=True)
class Quantity:
    """Each client holds s classes and each class has s·N/C holders (clients that hold it), in fixed blocks:
    clients 0 and 1 share the first s classes, and so on. The holders of a class get unequal parts of it (the
    quantity-based skew of FedVLS and FedED; PFLlib "pat").

    variant: clean cuts a class at uniformly random places, with a tenth of an equal share for each holder at
        least. The other variants make the draws of the published codes, bit for bit: fedvls-cifar10 (the
        first holder gets a tenth of an equal share to all of the class), fedvls-cifar100 (also TinyImageNet;
        up to an equal share, so that all but the last holder have little), fedvls-mnist (the same, at least
        256/C samples), pfllib (the same, at least 40/C samples, or n/2NC if that is less; more holders if
        s·N/C is no whole number, and classes that then find no holder are dropped).
    mix_classes: form the blocks from the classes in random order (clean only).
    """

    s: int
    variant: Literal["clean", "fedvls-cifar10", "fedvls-cifar100", "fedvls-mnist", "pfllib"] = "clean"
    mix_classes: bool = False

    def __post_init__(self) -> None:
        if self.s < 1:
            raise UserError(f"quantity s is {self.s} but should be at least 1.")
        if self.mix_classes and self.variant != "clean":
            raise UserError(
                f"quantity variant={self.variant} takes the classes in order: leave mix_classes out."
            )

    def divide(self, pool: SamplePool, clients: int, seed: PartitionSeed) -> Division:
        enough(pool, clients)
        C = pool.classes
        _refuse_too_many("quantity", self.s, C)
        if self.variant != "clean":
            return self._divide_as_published(pool, clients, seed)
        holders = per_class("quantity", self.s, clients, C)
        rng = seed.stream("quantity")
        order = rng.permutation(C) if self.mix_classes else np.arange(C)
        counts = np.zeros((clients, C), dtype=np.int64)
        quota = np.full(clients, self.s)
        for left, c in zip(range(C, 0, -1), order.tolist(), strict=True):
            able = np.flatnonzero(quota)
            # Clients that need all remaining classes come first, so that every quota is met in the end.
            mine = able[np.argsort(quota[able] < left, kind="stable")][:holders]
            quota[mine] -= 1
            counts[mine, c] = _spacings(int(pool.class_sizes[c]), holders, c, rng)
        return Division(deal(pool, counts, seed.stream("deal")))

    def _divide_as_published(self, pool: SamplePool, clients: int, seed: PartitionSeed) -> Division:
        C, rng = pool.classes, seed.legacy()
        ratio = clients / C * self.s
        holders = int(np.ceil(ratio)) if self.variant == "pfllib" else int(ratio)
        published = {"fedvls-cifar10": 10, "fedvls-cifar100": 10, "fedvls-mnist": 256}
        least = pfllib_least(pool, clients) if self.variant == "pfllib" else published[self.variant]
        hands: list[list[Ints]] = [[] for _ in range(clients)]
        quota, overdrawn = np.full(clients, self.s), 0
        for c, samples in enumerate(pool.by_class):
            mine = np.flatnonzero(quota)[:holders]
            if not len(mine):
                if self.variant == "pfllib":
                    break
                raise UserError(
                    f"{clients} clients with {self.s} classes each leave class {c} without a holder."
                )
            quota[mine] -= 1
            equal = len(samples) / len(mine)
            low = int(max(equal / 10, least / C))
            high = len(samples) if self.variant == "fedvls-cifar10" else int(equal)
            if low >= high and len(mine) > 1:
                raise UserError(
                    f"class {c} has {len(samples)} samples, too few for {self.variant} to draw a part of."
                )
            parts = rng.randint(low, high, len(mine) - 1, dtype=np.int64)
            overdrawn += int(parts.sum() > len(samples))
            for k, part in zip(mine, np.split(samples, np.cumsum(parts)), strict=True):
                hands[k].append(part)
        note = (
            f"{self.variant} gave {overdrawn} classes away before all their holders had a part, as the "
            "published code does."
        )
        empty = np.zeros(0, dtype=np.int64)
        return Division(tuple(np.concatenate([*hand, empty]) for hand in hands), (note,) if overdrawn else ())


def _spacings(total: int, parts: int, label: int, rng: np.random.Generator) -> Ints:
    """Cut `total` at uniformly random places into parts of at least a tenth of an equal one."""
    if total == 0:
        return np.zeros(parts, dtype=np.int64)
    if total < parts:
        raise UserError(
            f"class {label} has {total} samples for {parts} holders: ask for fewer clients or classes."
        )
    floor = max(1, total // parts // 10)
    cuts = np.sort(rng.integers(0, total - parts * floor, size=parts - 1, endpoint=True))
    return floor + np.diff(cuts, prepend=0, append=total - parts * floor)


@dataclass(frozen=True)
class Classes:
    """Each client holds exactly k classes, dealt at random (k = 1: class i mod C), and each class has k·N/C
    holders (the pathological skew of PKD).

    equal: all clients get equally many samples of each of their classes, and the rest of the larger classes
        is dropped; false divides every class evenly and drops nothing.
    """

    k: int
    equal: bool = True

    def __post_init__(self) -> None:
        if self.k < 1:
            raise UserError(f"classes k is {self.k} but should be at least 1.")

    def divide(self, pool: SamplePool, clients: int, seed: PartitionSeed) -> Division:
        enough(pool, clients)
        C = pool.classes
        _refuse_too_many("classes", self.k, C)
        holders = per_class("classes", self.k, clients, C)
        holds = _distinct(clients, self.k, C, seed.stream("classes"))
        sizes = pool.class_sizes
        if self.equal:
            each = int(sizes.min()) // holders
            if not each:
                raise UserError(
                    f"class {sizes.argmin()} has {sizes.min()} samples for {holders} holders: ask for fewer "
                    "clients, or set equal=false."
                )
            sizes = np.full(C, each * holders)
        return Division(deal(pool, _evenly(sizes, holds), seed.stream("deal")))


def _distinct(clients: int, k: int, classes: int, rng: np.random.Generator) -> Ints:
    """Draw the classes that clients hold, [clients, classes] of 0 and 1, with k classes for each client and
    equally many clients for each class.

    It begins with a cyclic table, in which pairs of clients then exchange at random the classes that only one
    of them holds. This tends to the uniform distribution over all such tables, and always ends, unlike
    drawing until no client has a class twice."""
    holds = np.zeros((clients, classes), dtype=np.int64)
    for j in range(k):
        holds[np.arange(clients), (np.arange(clients) * k + j) % classes] = 1
    if k == 1 or clients == 1:
        return holds
    for _ in range(10 * clients):
        a, b = rng.choice(clients, 2, replace=False)
        traded = np.flatnonzero(holds[a] != holds[b])
        mine = rng.permutation(traded)[: holds[a, traded].sum()]
        holds[a, traded], holds[b, traded] = 0, 1
        holds[a, mine], holds[b, mine] = 1, 0
    return holds


@dataclass(frozen=True)
class Balanced:
    """Every client has equally many samples of every class (the local balance of PKD): each class is cut down
    to the smallest one, then into N equal parts; the rest is dropped."""

    def divide(self, pool: SamplePool, clients: int, seed: PartitionSeed) -> Division:
        enough(pool, clients)
        smallest, label = int(pool.class_sizes.min()), int(pool.class_sizes.argmin())
        if smallest < clients:
            raise UserError(
                f"class {label} has {smallest} samples for {clients} clients, and balanced gives every "
                "client one at least: ask for fewer clients."
            )
        counts = np.full((clients, pool.classes), smallest // clients)
        return Division(deal(pool, counts, seed.stream("deal")))
