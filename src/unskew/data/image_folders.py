"""The user's own folders of images as a Dataset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from unskew.data.arrays import Array, from_arrays
from unskew.data.dataset import Dataset
from unskew.data.images import SUFFIXES, list_images, read_images
from unskew.data.names import shortened
from unskew.errors import UserError


def from_folder(
    path: Path,
    *,
    size: int | None = None,
    channels: int | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    sites: bool | None = None,
) -> Dataset:
    """Images in train/CLASS/ and test/CLASS/, or in CLASS/ (or train/CLASS/ alone), from which a stratified
    `test_fraction` is cut. Classes are the folders' names in alphabetical order.

    Images of several sites are in SITE/CLASS/, train/SITE/CLASS/ or SITE/train/CLASS/, with or without the
    same below test. The sites become owners, and a site may lack classes.
    sites: whether the first folders are sites; without it this is told from the folders, and `Dataset.notes`
    says what was taken.
    size: resize every image to size x size; without it all must have one size.
    channels: 1 makes all grey, 3 all RGB; without it all must be grey or all colour. Transparency is
    dropped."""
    path = Path(path)
    if not path.is_dir():
        raise UserError(f"{path} is not a folder: give one with a folder of images per class.")
    if channels not in (None, 1, 3) or (size is not None and size < 1):
        raise UserError("channels is 1 or 3, and size at least 1: give such values or leave them out.")
    parts = [path / "train" if (path / "train").is_dir() else path]
    if parts[0] != path and (path / "test").is_dir():
        parts.append(path / "test")
    groups, notes = [{"": part} for part in parts], tuple[str, ...]()
    found = site_folders(parts[0])
    if sites or (sites is None and found.sites):
        groups = site_splits(parts)
        first = f"{len(groups[0])} site{'s' * (len(groups[0]) > 1)} ({shortened(groups[0])})"
        notes = (
            f"{path} was read as SITE/CLASS/image: {first}; sites=false takes the first folders as classes.",
        )
    elif sites is None and found.deeper:
        notes = (
            f"{path} was read as CLASS/image, with images in folders inside a class's folder; sites=true "
            "takes the first folders as sites.",
        )
    classes = sorted({name for folder in groups[0].values() for name in class_folders(folder)})
    arrays: list[Array] = []
    owners: list[list[str]] = []
    for group in groups:
        files, labels, mine = list[Path](), list[int](), list[str]()
        for site, folder in group.items():
            for name in class_folders(folder):
                if name not in classes:
                    raise UserError(
                        f"{folder / name} has no counterpart in {parts[0]}: add training images of it."
                    )
                images = list_images(folder / name)
                if not images and group is groups[0]:
                    raise UserError(f"{folder / name} holds no images: add some or remove the folder.")
                files += images
                labels += [classes.index(name)] * len(images)
                mine += [site] * len(images)
        if not files:
            raise UserError(f"{parts[-1]} holds no images: add some or remove the folder.")
        arrays += [read_images(files, channels, size), np.array(labels)]
        owners.append(mine)
    named = any(groups[0])
    dataset = from_arrays(
        *arrays,
        name=path.resolve().name,
        classes=classes,
        owners=owners[0] if named else None,
        owners_test=owners[1] if named and len(owners) == 2 else None,
        layout="chw",
        test_fraction=test_fraction,
        seed=seed,
    )
    return replace(dataset, notes=notes)


def class_folders(path: Path) -> list[str]:
    found = folders_in(path)
    if not found:
        raise UserError(f"{path} has no folders: give one with a folder of images per class.")
    return found


def folders_in(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))


@dataclass(frozen=True)
class Layers:
    """What a folder of folders of images looks like."""

    sites: bool
    """Whether its folders are sites, each with a folder per class."""
    deeper: bool
    """Whether all its images are in folders inside its folders."""


def site_folders(path: Path) -> Layers:
    """Sites share the names of their folders, the classes. Where folders inside those of the classes hold the
    images, such as patients, most of their names are in one class alone."""
    inside = [folders_in(path / name) for name in folders_in(path)]
    images = (
        entry.suffix.lower() in SUFFIXES for name in folders_in(path) for entry in (path / name).iterdir()
    )
    if not inside or not all(inside) or any(images):
        return Layers(sites=False, deeper=False)
    if all("train" in names and set(names) <= {"train", "test"} for names in inside):
        return Layers(sites=True, deeper=True)
    held = Counter(name for names in inside for name in names)
    shared = sum(number > 1 for number in held.values())
    return Layers(sites=len(held) > 1 and (len(inside) == 1 or 4 * shared >= len(held)), deeper=True)


def site_splits(parts: Sequence[Path]) -> list[dict[str, Path]]:
    """The folder of each site, by its name, in the training split and, where there is one, the test split."""
    splits = [{name: part / name for name in class_folders(part)} for part in parts]
    if len(parts) == 1 and all((folder / "train").is_dir() for folder in splits[0].values()):
        test = {site: folder / "test" for site, folder in splits[0].items() if (folder / "test").is_dir()}
        splits = [{site: folder / "train" for site, folder in splits[0].items()}, *([test] if test else [])]
    return splits
