"""Datasets of many small image files, TinyImageNet and CINIC-10: decoded once, then read from the cache."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt

from unskew.data.cache import cached
from unskew.data.dataset import Dataset, Split
from unskew.data.images import list_images, read_images
from unskew.data.sources.cifar import CIFAR10
from unskew.data.sources.files import damaged, find_file, to_split
from unskew.errors import UserError

Labelled = list[tuple[Path, int]]


def tiny_imagenet(folder: Path) -> Dataset:
    """Read TinyImageNet, 200 classes in the order of their WordNet ids, with the published validation images
    as the test split."""
    wnids = sorted(path.name for path in (folder / "train").iterdir() if path.is_dir())
    train = in_class_folders(folder / "train", wnids)
    annotations = folder / "val" / "val_annotations.txt"
    test = annotated(annotations, wnids) if annotations.is_file() else in_class_folders(folder / "val", wnids)
    # ImageNet's, which FedNTD and FedLMD use for this set.
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    return Dataset(
        "tiny_imagenet",
        decoded("tiny_imagenet-train", train, 64),
        decoded("tiny_imagenet-val", test, 64),
        class_names(folder / "words.txt", wnids),
        mean,
        std,
    )


def cinic10(folder: Path, *, valid: bool = False) -> Dataset:
    """Read CINIC-10. valid: add the published validation images to the training split."""
    parts = {
        which: decoded(f"cinic10-{which}", in_class_folders(folder / which, CIFAR10), 32)
        for which in (("train", "valid", "test") if valid else ("train", "test"))
    }
    train = parts["train"]
    if valid:
        extra = parts["valid"]
        train = to_split(
            np.concatenate([train.inputs.numpy(), extra.inputs.numpy()]),
            np.concatenate([train.labels.numpy(), extra.labels.numpy()]),
        )
    # Printed by the authors (https://github.com/BayesWatch/cinic-10), rounded as FedNTD and FedLMD use them.
    mean, std = (0.4789, 0.4723, 0.4305), (0.2421, 0.2383, 0.2587)
    return Dataset("cinic10:valid" if valid else "cinic10", train, parts["test"], CIFAR10, mean, std)


def in_class_folders(folder: Path, classes: list[str] | tuple[str, ...]) -> Labelled:
    """List the images in FOLDER/CLASS/, at any depth, with their class numbers."""
    labelled = []
    for label, name in enumerate(classes):
        images = list_images(folder / name)
        if not images:
            raise UserError(f"{folder / name} holds no images: fetch or copy the whole set again.")
        labelled += [(path, label) for path in images]
    return labelled


def annotated(table: Path, wnids: list[str]) -> Labelled:
    """List the images in TinyImageNet's val_annotations.txt with their class numbers. A line has file name,
    WordNet id and a box, separated by tabs."""
    labels = {wnid: i for i, wnid in enumerate(wnids)}
    labelled = []
    for number, line in enumerate(table.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        name, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0]
        if wnid not in labels:
            raise damaged(table, f"names the class '{wnid}' in line {number}, which train/ does not have")
        labelled.append((find_file(table.parent / "images", name), labels[wnid]))
    if not labelled:
        raise damaged(table, "is empty")
    return labelled


def class_names(words: Path, wnids: list[str]) -> tuple[str, ...]:
    """Return the first word that words.txt gives for each id, the id itself if it is not listed, and both if
    two classes have the same word."""
    listed = {}
    if words.is_file():
        rows = (
            line.partition("\t") for line in words.read_text(encoding="utf-8", errors="replace").splitlines()
        )
        listed = {wnid: names.split(",")[0].strip() for wnid, _, names in rows}
    names = [listed.get(wnid) or wnid for wnid in wnids]
    often = Counter(names)
    return tuple(
        f"{name} ({wnid})" if often[name] > 1 else name for name, wnid in zip(names, wnids, strict=True)
    )


def decoded(name: str, labelled: Labelled, side: int) -> Split:
    """Decode images of side × side pixels, or take them from the cache, where `name` stands for them."""
    files = [path for path, _ in labelled]

    def decode() -> dict[str, npt.NDArray[np.uint8]]:
        images = read_images(files, channels=3)
        if images.shape[1:] != (3, side, side):
            raise damaged(files[0], f"is {images.shape[3]}x{images.shape[2]} pixels, not {side}x{side}")
        return {"images": images}

    images = cached(name, files, decode)["images"]
    return to_split(images, np.array([label for _, label in labelled], np.int64))
