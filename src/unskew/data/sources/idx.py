"""Datasets in the IDX format: MNIST, Fashion-MNIST, KMNIST and EMNIST."""

from __future__ import annotations

import math
import string
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from unskew.data.dataset import Dataset, Split
from unskew.data.images import channel_stats
from unskew.data.sources.files import check_labels, damaged, find_file, read, to_split
from unskew.errors import UserError

DIGITS = tuple(string.digits)
FASHION = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
KUZUSHIJI = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")

# EMNIST's merged sets join the lower-case letters that look like their capitals (Cohen et al., EMNIST, 2017).
UNMERGED = (*string.digits, *string.ascii_uppercase, *"abdefghnqrt")
EMNIST = {
    "balanced": UNMERGED,
    "byclass": (*string.digits, *string.ascii_uppercase, *string.ascii_lowercase),
    "bymerge": UNMERGED,
    "letters": tuple(string.ascii_lowercase),
    "digits": DIGITS,
    "mnist": DIGITS,
}


def mnist(folder: Path) -> Dataset:
    # Statistics of the training pixels (0.13066, 0.30811), rounded to four digits as they are published.
    return mnist_like("mnist", folder, DIGITS, 0.1307, 0.3081)


def fashion_mnist(folder: Path) -> Dataset:
    # Computed over the 60,000 training images.
    return mnist_like("fashion_mnist", folder, FASHION, 0.2860, 0.3530)


def kmnist(folder: Path) -> Dataset:
    # The values in common use, of the 60,000 training images.
    return mnist_like("kmnist", folder, KUZUSHIJI, 0.1918, 0.3483)


def mnist_like(name: str, folder: Path, classes: tuple[str, ...], mean: float, std: float) -> Dataset:
    train, test = (read_pair(folder, part, len(classes)) for part in ("train", "t10k"))
    return Dataset(name, train, test, classes, (mean,), (std,))


def emnist(
    folder: Path,
    *,
    split: Literal["balanced", "byclass", "bymerge", "letters", "digits", "mnist"] = "balanced",
) -> Dataset:
    """Read a split of EMNIST, and turn its images upright, since its files have them transposed."""
    classes = EMNIST[split]
    first = 1 if split == "letters" else 0
    train, test = (
        read_pair(folder, f"emnist-{split}-{which}", len(classes), first, transposed=True)
        for which in ("train", "test")
    )
    mean, std = channel_stats(train.inputs.numpy())
    return Dataset(f"emnist:{split}", train, test, classes, mean, std)


def read_pair(folder: Path, stem: str, classes: int, first: int = 0, transposed: bool = False) -> Split:
    """Read the files of images and labels whose names begin with `stem`."""
    images_path, labels_path = idx_file(folder, f"{stem}-images", 3), idx_file(folder, f"{stem}-labels", 1)
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
    if len(images) != len(labels):
        raise UserError(
            f"{images_path} holds {len(images)} images but {labels_path} {len(labels)} labels: "
            f"fetch or copy both again."
        )
    if transposed:
        images = images.transpose(0, 2, 1)
    return to_split(images[:, None], check_labels(labels, classes, labels_path, first))


def idx_file(folder: Path, stem: str, ndim: int) -> Path:
    plain = [f"{stem}{dot}idx{ndim}-ubyte" for dot in "-."]
    return find_file(folder, *plain, *(f"{name}.gz" for name in plain))


def read_idx(path: Path, ndim: int) -> npt.NDArray[Any]:
    """Read an IDX file of bytes: 0, 0, 8 (unsigned bytes), ndim, a big-endian uint32 per axis, the data."""
    data = read(path)
    start = 4 + 4 * ndim
    if data[:4] != bytes((0, 0, 8, ndim)) or len(data) < start:
        raise damaged(path, f"is not an IDX file of {ndim}-dimensional unsigned bytes")
    shape = tuple(int(n) for n in np.frombuffer(data, ">u4", ndim, offset=4))
    if len(data) - start != math.prod(shape):
        raise damaged(path, f"holds {len(data) - start} values where its header says {math.prod(shape)}")
    # A copy, because torch wants memory that it may write to.
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape).copy()
