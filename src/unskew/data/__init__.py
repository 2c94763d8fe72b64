"""Datasets and who holds what of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from unskew.data import sources
from unskew.data.arrays import from_arrays, from_npz, from_torch
from unskew.data.augment import Augment
from unskew.data.dataset import Dataset, Split
from unskew.data.federation import Federation, federate
from unskew.data.image_folders import from_folder
from unskew.data.join import join
from unskew.data.manifest import Partition, partition_of
from unskew.data.names import distinct_names
from unskew.data.sources.leaf import from_leaf
from unskew.data.tables import from_csv
from unskew.notation import items, joined, named, path_of


def load(name: str, folder: Path | None = None, *, seed: int | None = None) -> Dataset:
    """A dataset by name, such as "cifar10", "emnist:letters" or "csv:table.csv,label=kind". Names joined by
    +, such as "mnist+usps+svhn", are the domains of one dataset, and tables its sites; of the user's own data
    the classes are those of all parts together, and images that have one shape keep it. It is looked for in
    `folder`, else in the folder that UNSKEW_DATA names, else in the user's cache folder."""
    parts = joined(name)
    dataset = _load(parts, folder, seed)
    known = name if seed is None else sources.seeded(name, seed) if len(parts) == 1 else ""
    object.__setattr__(
        dataset, "spec", known.strip()
    )  # it is frozen, and what `replace` makes of it has none
    return dataset


def _load(parts: list[str], folder: Path | None, seed: int | None) -> Dataset:
    if len(parts) > 1 and all(named(part)[0] in sources.TABLES for part in parts):
        return sources.load_tables(parts, seed=seed)
    datasets = [sources.load(part, folder, seed=seed) for part in parts]
    if len(datasets) == 1:
        return datasets[0]
    if not all(named(part)[0] in sources.OWN for part in parts):
        return join(datasets)
    names = distinct_names([path_of(items(named(part)[1])[0].text) for part in parts])
    datasets = [replace(each, name=name) for each, name in zip(datasets, names, strict=True)]
    shapes = {dataset.inputs.shape for dataset in datasets if dataset.kind == "image"}
    same = next(iter(shapes)) if len(shapes) == 1 else (3, 32, 32)
    return join(datasets, (same[0], same[1], same[2]), union=True)


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
