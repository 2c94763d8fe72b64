"""Datasets and who holds what of them."""

from __future__ import annotations

from pathlib import Path

from unskew.data import sources
from unskew.data.augment import Augment
from unskew.data.dataset import Dataset, Split
from unskew.data.federation import Federation, federate
from unskew.data.join import join
from unskew.data.manifest import Partition, partition_of
from unskew.data.own import from_arrays, from_csv, from_folder, from_npz, from_torch
from unskew.notation import joined


def load(name: str, folder: Path | None = None, *, seed: int | None = None) -> Dataset:
    """A dataset by name, such as "cifar10", "emnist:letters" or "csv:table.csv,label=kind". Names joined by
    +, such as "mnist+usps+svhn", are the domains of one dataset. It is looked for in `folder`, else in the
    folder that UNSKEW_DATA names, else in the user's cache folder."""
    datasets = [sources.load(part, folder, seed=seed) for part in joined(name)]
    return datasets[0] if len(datasets) == 1 else join(datasets)


__all__ = [
    "Augment",
    "Dataset",
    "Federation",
    "Partition",
    "Split",
    "federate",
    "from_arrays",
    "from_csv",
    "from_folder",
    "from_npz",
    "from_torch",
    "join",
    "load",
    "partition_of",
]
