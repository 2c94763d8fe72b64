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

SiteFolders = dict[str, Path]
"""The folder of each site of a split, by the site's name: it holds a folder for each class. A split without
sites has one folder, under an empty name."""


def from_folder(
    path: Path,
    *,
    size: int | None = None,
    channels: int | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    sites: bool | None = None,
) -> Dataset:
    """Make a dataset of folders of images, one for each class. Classes are their names in alphabetical order.

    The images are in train/CLASS/ and test/CLASS/, or in CLASS/ (or train/CLASS/ alone), from which a
    stratified `test_fraction` is cut.

    Images of several sites are in SITE/CLASS/, train/SITE/CLASS/ or SITE/train/CLASS/, with or without the
    same below test. The sites become owners, and a site may lack classes.
    sites: whether the first folders are sites; without it the names of the folders decide, and
    `Dataset.notes` says how.
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
    splits, notes = _find_sites(path, parts, sites)
    classes = sorted({name for folder in splits[0].values() for name in class_folders(folder)})
    arrays: list[Array] = []
    owners: list[list[str]] = []
    for number, split in enumerate(splits):
        files, labels, image_sites = _list_split(split, classes, parts[0], is_test=number > 0)
        if not files:
            raise UserError(f"{parts[-1]} holds no images: add some or remove the folder.")
        arrays += [read_images(files, channels, size), np.array(labels)]
        owners.append(image_sites)
    has_sites = any(splits[0])
    dataset = from_arrays(
        *arrays,
        name=path.resolve().name,
        classes=classes,
        owners=owners[0] if has_sites else None,
        owners_test=owners[1] if has_sites and len(owners) == 2 else None,
        layout="chw",
        test_fraction=test_fraction,
        seed=seed,
    )
    return replace(dataset, notes=notes)


def _find_sites(
    path: Path, parts: Sequence[Path], sites: bool | None
) -> tuple[list[SiteFolders], tuple[str, ...]]:
    """Find the sites of the training and the test split, and say in a note how the folders were read, unless
    that is plain. `parts` are the splits' folders, and `sites` is what the user says about them."""
    levels = levels_below(parts[0])
    if sites or (sites is None and levels.sites):
        splits = site_splits(parts)
        first = f"{len(splits[0])} site{'s' * (len(splits[0]) > 1)} ({shortened(splits[0])})"
        note = (
            f"{path} was read as SITE/CLASS/image: {first}; sites=false takes the first folders as classes."
        )
        return splits, (note,)
    splits = [{"": part} for part in parts]
    if sites is None and levels.deeper:
        note = (
            f"{path} was read as CLASS/image, with images in folders inside a class's folder; sites=true "
            "takes the first folders as sites."
        )
        return splits, (note,)
    return splits, ()


def _list_split(
    split: SiteFolders, classes: Sequence[str], training: Path, *, is_test: bool
) -> tuple[list[Path], list[int], list[str]]:
    """List the images of a split, the number of each image's class, and the name of its site. `training` is
    the folder of the training split."""
    files, labels, sites = list[Path](), list[int](), list[str]()
    for site, folder in split.items():
        for name in class_folders(folder):
            if name not in classes:
                raise UserError(
                    f"{folder / name} has no counterpart in {training}: add training images of it."
                )
            images = list_images(folder / name)
            if not images and not is_test:
                raise UserError(f"{folder / name} holds no images: add some or remove the folder.")
            files += images
            labels += [classes.index(name)] * len(images)
            sites += [site] * len(images)
    return files, labels, sites


def class_folders(path: Path) -> list[str]:
    found = folders_in(path)
    if not found:
        raise UserError(f"{path} has no folders: give one with a folder of images per class.")
    return found


def folders_in(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))


@dataclass(frozen=True)
class FolderLevels:
    """What the levels of folders below a split's folder are."""

    sites: bool
    """Whether the first level is sites, each with a folder per class."""
    deeper: bool
    """Whether all images are in folders of the second level or below."""


def levels_below(path: Path) -> FolderLevels:
    """Tell folders of sites from folders of classes by the names of the folders inside them.

    Sites share the names of these folders, the classes. Folders inside a class's folder, such as patients,
    mostly have names that no other class has."""
    inside = [folders_in(path / name) for name in folders_in(path)]
    images = (
        entry.suffix.lower() in SUFFIXES for name in folders_in(path) for entry in (path / name).iterdir()
    )
    if not inside or not all(inside) or any(images):
        return FolderLevels(sites=False, deeper=False)
    if all("train" in names and set(names) <= {"train", "test"} for names in inside):
        return FolderLevels(sites=True, deeper=True)
    held = Counter(name for names in inside for name in names)
    shared = sum(number > 1 for number in held.values())
    return FolderLevels(sites=len(held) > 1 and (len(inside) == 1 or 4 * shared >= len(held)), deeper=True)


def site_splits(parts: Sequence[Path]) -> list[SiteFolders]:
    """Return the folders of the sites in the training split and, if there is one, in the test split."""
    splits = [{name: part / name for name in class_folders(part)} for part in parts]
    if len(parts) == 1 and all((folder / "train").is_dir() for folder in splits[0].values()):
        test = {site: folder / "test" for site, folder in splits[0].items() if (folder / "test").is_dir()}
        splits = [{site: folder / "train" for site, folder in splits[0].items()}, *([test] if test else [])]
    return splits
