"""Rules that give equal pieces: of everything (iid), of each class, or of the data sorted by label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from unskew.data.partition import Ints
from unskew.data.partitions.pool import Division, PartitionSeed, SamplePool, deal, enough, even, per_class
from unskew.errors import UserError


@dataclass(frozen=True)
class Iid:
    """A random permutation in equal parts, whose sizes differ by 1 at most.

    truncate: all parts have floor(n/N) samples, and the rest is dropped (FedNTD).
    """

    truncate: bool = False

    def divide(self, pool: SamplePool, clients: int, seed: PartitionSeed) -> Division:
        enough(pool, clients)
        order = seed.stream("deal").permutation(len(pool))
        if self.truncate:
            order = order[: len(pool) // clients * clients]
        return Division(tuple(np.sort(mine) for mine in np.array_split(order, clients)))


@dataclass(frozen=True)
class Shards:
    """Each class is cut into s·N/C shards of equal size (samples left over go to the first ones, one each),
    and each client is dealt s shards at random. It has at most s classes, and fewer if it is dealt two shards
    of one class (FedNTD, FedLMD).

    variant: clean, or fedntd for the draws of the published code, bit for bit; it cuts the classes in the
        order of the dataset.
    """

    shards: int
    variant: Literal["clean", "fedntd"] = "clean"

    def __post_init__(self) -> None:
        if self.shards < 1:
            raise UserError(f"shards is {self.shards} but should be at least 1.")

    def divide(self, pool: SamplePool, clients: int, seed: PartitionSeed) -> Division:
        enough(pool, clients)
        if clients * self.shards > len(pool.labels):
            raise UserError(
                f"{self.shards} shards for each of {clients} clients are more than the {len(pool.labels)} "
                "samples: ask for fewer."
            )
        each = per_class("shards", self.shards, clients, pool.classes)
        if self.variant == "fedntd":
            return self._divide_as_published(pool, clients, each, seed)
        rng = seed.stream("shards")
        labels = rng.permutation(np.repeat(np.arange(pool.classes), each)).reshape(clients, self.shards)
        counts = np.zeros((clients, pool.classes), dtype=np.int64)
        for c, size in enumerate(pool.class_sizes.tolist()):
            np.add.at(counts[:, c], np.nonzero(labels == c)[0], rng.permutation(even(size, each)))
        return Division(deal(pool, counts, seed.stream("deal")))

    def _divide_as_published(
        self, pool: SamplePool, clients: int, each: int, seed: PartitionSeed
    ) -> Division:
        labels = list(range(pool.classes)) * each
        seed.legacy_python().shuffle(labels)
        shards = [_cut(mine, each) for mine in pool.by_class]
        rng, hands = seed.legacy(), []
        for k in range(clients):
            mine = labels[k * self.shards : (k + 1) * self.shards]
            hands.append(
                np.concatenate([shards[c].pop(rng.choice(len(shards[c]), replace=False)) for c in mine])
            )
        return Division(tuple(hands))


def _cut(mine: Ints, parts: int) -> list[Ints]:
    """Cut into equal consecutive parts; samples left over are appended to the first parts, one each."""
    whole = len(mine) - len(mine) % parts
    left = mine[whole:]
    return [np.append(part, left[i : i + 1]) for i, part in enumerate(np.split(mine[:whole], parts))]


@dataclass(frozen=True)
class SortedShards:
    """The data sorted by label, cut into N·α equal sets, α of them dealt to each client (McMahan et al. 2017;
    the Q(α) of FedLC).

    straddle: a set may hold the end of one class and the start of the next, so that α sets can have up to 2α
        labels; false cuts each class by itself, which is the skew `shards`.
    """

    sets: int
    straddle: bool = True

    def __post_init__(self) -> None:
        if self.sets < 1:
            raise UserError(f"sorted-shards sets is {self.sets} but should be at least 1.")

    def divide(self, pool: SamplePool, clients: int, seed: PartitionSeed) -> Division:
        if not self.straddle:
            return Shards(self.sets).divide(pool, clients, seed)
        enough(pool, clients)
        if clients * self.sets > len(pool):
            raise UserError(
                f"{clients} clients cannot have {self.sets} sets each of {len(pool)} samples: ask for fewer "
                "of either."
            )
        mixed = seed.stream("deal").permutation(len(pool))
        by_label = mixed[np.argsort(pool.labels[mixed], kind="stable")]
        cut = np.array_split(by_label, clients * self.sets)
        dealt = seed.stream("shards").permutation(len(cut)).reshape(clients, self.sets)
        return Division(tuple(np.sort(np.concatenate([cut[i] for i in mine])) for mine in dealt))
