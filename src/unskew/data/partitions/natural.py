"""The rule by which the owners of samples become clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from unskew.data.partitions.pool import Division, PartitionSeed, SamplePool
from unskew.errors import UserError


@dataclass(frozen=True)
class Natural:
    """One client for each owner of samples in the dataset (writer, site, generated client).

    min_size: owners with fewer samples are dropped.
    surplus: if there are more owners than clients asked for, drop keeps random owners, and merge gives each
        client equally many owners (up to one more).
    Asking for 0 clients keeps every owner.
    """

    min_size: int = 1
    surplus: Literal["drop", "merge"] = "drop"

    def __post_init__(self) -> None:
        if self.min_size < 1:
            raise UserError(f"natural min_size is {self.min_size} but should be at least 1.")

    def divide(self, pool: SamplePool, clients: int, seed: PartitionSeed) -> Division:
        if pool.owners is None:
            raise UserError(
                "natural needs a dataset whose samples have owners, and this one names none: name them "
                "(site=COLUMN of a table, SITE/CLASS/ folders, owners= of arrays), or choose another skew."
            )
        owners, owner_of, sizes = np.unique(pool.owners, return_inverse=True, return_counts=True)
        kept, notes = np.flatnonzero(sizes >= self.min_size), []
        if len(kept) < len(owners):
            notes.append(
                f"{len(owners) - len(kept)} of {len(owners)} owners have fewer than {self.min_size} samples."
            )
        if not len(kept):
            raise UserError(
                f"no owner has {self.min_size} samples or more, and the largest has {sizes.max()}: lower "
                "min_size."
            )
        if clients > len(kept):
            enough = f"{self.min_size} sample{'s' * (self.min_size > 1)} or more"
            raise UserError(
                f"{clients} clients are asked for, but {len(kept)} owners have {enough}: ask for fewer "
                f"clients{', or lower min_size' if self.min_size > 1 else ''}."
            )
        groups = np.split(kept, len(kept))
        if 0 < clients < len(kept):
            order = seed.stream("owners").permutation(kept)
            if self.surplus == "merge":
                groups = np.array_split(order, clients)
                notes.append(f"{len(kept)} owners were merged into {clients} clients.")
            else:
                groups = np.split(np.sort(order[:clients]), clients)
                notes.append(f"{clients} of {len(kept)} owners were kept.")
        client_of = np.full(len(owners), len(groups))
        for k, group in enumerate(groups):
            client_of[group] = k
        holder = client_of[owner_of]
        cuts = np.cumsum(np.bincount(holder, minlength=len(groups)))[: len(groups)]
        return Division(tuple(np.split(np.argsort(holder, kind="stable"), cuts)[: len(groups)]), tuple(notes))
