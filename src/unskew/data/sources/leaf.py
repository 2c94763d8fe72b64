"""FEMNIST as LEAF writes it: JSON files of users, each with images and labels."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unskew.data.cache import Arrays, cached
from unskew.data.dataset import Dataset
from unskew.data.images import channel_stats
from unskew.data.sources.files import Labels, check_labels, damaged, read, to_split
from unskew.errors import UserError

# LEAF's order of classes (its data_to_json.py).
CLASSES = (*string.digits, *string.ascii_uppercase, *string.ascii_lowercase)


def femnist(folder: Path, *, digits_only: bool = False, min_samples: int = 10) -> Dataset:
    """Handwriting with its writers, who become `Split.owners`.

    digits_only: keep the ten digits. min_samples: drop writers with fewer samples than this in both splits
    together, after that choice (LEAF's default is 10). Where LEAF has cut train/ and test/, these are the
    splits; of its all_data/ every tenth sample of each writer is a test sample, as many as LEAF takes."""
    if min_samples < 0:
        raise UserError(f"min_samples is {min_samples}: give 0 or more.")
    files, training = leaf_files(folder)
    arrays = cached("femnist", files, lambda: decode(files))
    images, labels, owners = arrays["images"], arrays["labels"], arrays["owners"]
    is_test = every_tenth(owners) if training is None else arrays["origin"] >= training
    classes = CLASSES[:10] if digits_only else CLASSES
    keep = labels < len(classes)
    keep &= (np.bincount(owners[keep], minlength=owners.max() + 1) >= min_samples)[owners]
    images, labels, owners, is_test = images[keep], labels[keep], owners[keep], is_test[keep]
    if is_test.all() or not is_test.any():
        raise UserError(
            f"{folder} leaves no training or no test samples with min_samples={min_samples}: lower it."
        )
    owners = numbered(owners, is_test)
    train, test = (to_split(images[w], labels[w], owners[w]) for w in (~is_test, is_test))
    mean, std = channel_stats(train.inputs.numpy())
    return Dataset("femnist:digits" if digits_only else "femnist", train, test, classes, mean, std)


def numbered(owners: Labels, is_test: npt.NDArray[np.bool_]) -> Labels:
    """Owners as 0..N-1 in order, those with training samples first, so that no training owner is empty."""
    training = np.unique(owners[~is_test])
    others = np.setdiff1d(owners, training)
    number = np.empty(owners.max() + 1, np.int64)
    number[np.concatenate([training, others])] = np.arange(len(training) + len(others))
    return number[owners]


def leaf_files(folder: Path) -> tuple[list[Path], int | None]:
    """LEAF's files, in `folder` or in its data/, and how many of them, from the first on, are for training
    (None where LEAF has not split them)."""
    for base in (folder, folder / "data"):
        train, test = sorted((base / "train").glob("*.json")), sorted((base / "test").glob("*.json"))
        if train and test:
            return train + test, len(train)
        if train or test:
            raise UserError(f"{base} has only one of train/ and test/: copy both from LEAF.")
        if whole := sorted((base / "all_data").glob("*.json")) or sorted(base.glob("*.json")):
            return whole, None
    raise UserError(f"{folder} has no JSON files in train/ and test/ or in all_data/: copy them from LEAF.")


def every_tenth(owners: Labels) -> npt.NDArray[np.bool_]:
    order = np.argsort(owners, kind="stable")
    counts = np.bincount(owners)
    rank = np.empty(len(owners), np.int64)
    rank[order] = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.equal(rank % 10, 9)


def decode(files: list[Path]) -> Arrays:
    """All files in order; `origin` numbers the one each sample came from."""
    images, labels, owners, origin = [], [], [], []
    known: dict[str, int] = {}
    for number, path in enumerate(files):
        for user, x, y in users_of(path):
            images.append(x)
            labels.append(y)
            owners.append(np.full(len(y), known.setdefault(user, len(known)), np.int64))
            origin.append(np.full(len(y), number, np.int64))
    if not any(len(y) for y in labels):
        raise damaged(files[0], "and the files beside it hold no samples")
    return {
        "images": np.concatenate(images),
        "labels": np.concatenate(labels),
        "owners": np.concatenate(owners),
        "origin": np.concatenate(origin),
    }


def users_of(path: Path) -> list[tuple[str, npt.NDArray[np.uint8], Labels]]:
    text = read(path)
    try:
        content: Any = json.loads(text)
    except (ValueError, RecursionError) as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
        raise damaged(path, "is not readable JSON (cut short?)") from error
    try:
        out = []
        for user in content["users"]:
            data = content["user_data"][user]
            x, y = np.array(data["x"], np.float64).reshape(-1, 784), np.array(data["y"], np.int64)
            if len(x) != y.size or (len(x) and not (x.min() >= 0 and x.max() <= 1)):
                raise ValueError(user)
            out.append((str(user), np.rint(x * 255).astype(np.uint8).reshape(-1, 1, 28, 28), y))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise damaged(path, "does not hold LEAF's users with 28x28 images in 0..1 and labels") from error
    return [(user, x, check_labels(y, len(CLASSES), path)) for user, x, y in out]
