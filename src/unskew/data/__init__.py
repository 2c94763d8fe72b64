"""Datasets, and which clients hold which of their samples."""

from __future__ import annotations

from unskew.data.arrays import from_arrays, from_npz, from_torch
from unskew.data.augment import Augment
from unskew.data.dataset import Dataset, Split
from unskew.data.federation import Federation, federate
from unskew.data.image_folders import from_folder
from unskew.data.join import join
from unskew.data.loading import load
from unskew.data.partition import Partition, partition_of
from unskew.data.sources.leaf import from_leaf
from unskew.data.table_dataset import from_csv

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
    "from_leaf",
    "from_npz",
    "from_torch",
    "join",
    "load",
    "partition_of",
]
