"""A dataset and who holds what of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from unskew.data.dataset import Dataset
from unskew.data.manifest import Partition, cite, save
from unskew.data.partitions import Skew, partition
from unskew.errors import UserError


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients that share a dataset: each holds some of its training samples, and all are tested on its test
    split."""

    dataset: Dataset
    partition: Partition

    @property
    def clients(self) -> int:
        return self.partition.clients

    @cached_property
    def counts(self) -> Tensor:
        """Samples per client and class, int64 [clients, classes]."""
        return torch.from_numpy(self.partition.counts)

    @cached_property
    def sizes(self) -> Tensor:
        """Samples per client, int64 [clients]."""
        return self.counts.sum(dim=1)

    def indices(self, client: int) -> Tensor:
        """The client's samples in the training split, int64."""
        return torch.from_numpy(self.partition.indices[client])

    def labels(self, client: int) -> Tensor:
        """The labels of the client's samples, int64."""
        return self.dataset.train.labels[self.indices(client)]

    def save(self, path: Path) -> None:
        """Write the partition's manifest; the skew `file:PATH` makes the same federation from it."""
        save(self.partition, self.dataset, path)

    def cite(self) -> str:
        """One line that identifies the partition in a paper."""
        return cite(self.partition, self.dataset)


def federate(dataset: Dataset, skew: str | Skew, clients: int, seed: int) -> Federation:
    """Divide the training split among `clients` clients by a skew such as "dirichlet:0.1"."""
    if not isinstance(dataset, Dataset):
        raise UserError("federate needs a dataset: load one with unskew.load(name).")
    return Federation(dataset, partition(dataset, skew, clients, seed))
