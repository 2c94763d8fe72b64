"""Data in LEAF's format, such as FEMNIST: JSON files of users, each with samples and labels."""

from __future__ import annotations

import json
import math
import string
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from unskew.data.arrays import from_arrays
from unskew.data.bounded import check_regular
from unskew.data.cache import Arrays, cached
from unskew.data.dataset import Dataset
from unskew.data.images import channel_stats
from unskew.data.sources.files import LabelArray, check_labels, damaged, read, to_split
from unskew.errors import UserError

# LEAF's order of classes (its data_to_json.py).
CLASSES = (*string.digits, *string.ascii_uppercase, *string.ascii_lowercase)


def femnist(folder: Path, *, digits_only: bool = False, min_samples: int = 10) -> Dataset:
    """Read FEMNIST, handwritten characters whose writers become `Split.owners`.

    digits_only: keep the ten digits. min_samples: drop writers with fewer samples than this in both splits
    together, after that choice (LEAF's default is 10). LEAF's train/ and test/ are the splits, if it has made
    them; of its all_data/ every tenth sample of each writer is a test sample, which is LEAF's share."""
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


class UserSamples(NamedTuple):
    """The samples of a user in one file."""

    user: str
    x: npt.NDArray[np.float64]
    y: npt.NDArray[np.str_]
    """The names of the samples' classes."""
    file: int
    """The number of the file."""


def from_leaf(
    path: Path,
    *,
    shape: tuple[int, ...] = (),
    min_samples: int = 0,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Make a dataset of a file in LEAF's JSON, or of a folder of such files.

    A file has users, num_samples, and user_data with x and y for each user. Users become owners: the skew
    `natural` makes a client of each.
    x: numbers, [features] for each sample, which become a table; with `shape`, such as 1/28/28 for channels,
       height and width, images of values in 0..1.
    y: class numbers or names.
    min_samples: drop users with fewer samples than this in both splits together.
    The folders train/ and test/ are the splits, if there are such; else `test_fraction` of each class of each
    user is drawn with `seed` and cut off for testing."""
    path = Path(path)
    if not path.exists():
        raise UserError(f"{path} does not exist: give a JSON file of LEAF's, or the folder with them.")
    if min_samples < 0:
        raise UserError(f"min_samples is {min_samples}: give 0 or more.")
    if shape and (len(shape) != 3 or min(shape) < 1):
        raise UserError("shape should be channels/height/width, such as 1/28/28.")
    files, training = leaf_files(path) if path.is_dir() else ([path], None)
    parts = [UserSamples(user, x, y, n) for n, file in enumerate(files) for user, x, y in numbers_of(file)]
    samples = Counter[str]()
    for each in parts:
        samples[each.user] += len(each.y)
    parts = [each for each in parts if samples[each.user] >= max(min_samples, 1)]
    splits = []
    for is_test in (False, True) if training is not None else (False,):
        mine = [each for each in parts if is_test == (training is not None and each.file >= training)]
        mine = [each for each in mine if len(each.y)]
        if not mine:
            raise UserError(f"{path} has no {'test' if is_test else 'training'} samples: lower min_samples.")
        splits.append(_joined(mine, path, files, shape))
    (x, y, owners), test = splits[0], splits[1] if len(splits) > 1 else (None, None, None)
    return from_arrays(
        x,
        y,
        test[0],
        test[1],
        name=path.stem,
        owners=owners,
        owners_test=test[2],
        layout="chw" if shape else None,
        test_fraction=test_fraction,
        seed=seed,
    )


def _joined(
    parts: list[UserSamples], path: Path, files: list[Path], shape: tuple[int, ...]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.str_], npt.NDArray[np.str_]]:
    """Join the samples of a split; return the inputs, in `shape` if there is one, the classes' names and the
    owners' names."""
    width = parts[0].x.shape[1]
    for each in parts:
        if each.x.shape[1] != width:
            raise _other_than_leaf(
                files[each.file],
                f"has {each.x.shape[1]} numbers a sample of '{each.user}' and {width} elsewhere",
            )
    x = np.concatenate([each.x for each in parts])
    if shape and width != math.prod(shape):
        raise UserError(
            f"{path} has {width} numbers a sample, which are no {'×'.join(map(str, shape))} image: give "
            "the shape that it has."
        )
    owners = np.repeat([each.user for each in parts], [len(each.y) for each in parts])
    return x.reshape(-1, *shape) if shape else x, np.concatenate([each.y for each in parts]), owners


def numbers_of(path: Path) -> list[tuple[str, npt.NDArray[np.float64], npt.NDArray[np.str_]]]:
    """Read the users of a file, each with rows of numbers and the names of their classes."""
    check_regular(path)
    content = _json(path)
    wrong = "does not hold LEAF's users, num_samples and user_data with x and y"
    if not isinstance(content, dict) or not isinstance(content.get("users"), list):
        raise _other_than_leaf(path, wrong)
    data, sizes = content.get("user_data"), content.get("num_samples")
    if not isinstance(data, dict) or not isinstance(sizes, list) or len(sizes) != len(content["users"]):
        raise _other_than_leaf(path, wrong)
    found = []
    if len(set(map(str, content["users"]))) < len(content["users"]):
        raise _other_than_leaf(path, "names a user twice")
    for user, number in zip(content["users"], sizes, strict=True):
        mine = data.get(user) if isinstance(user, str) else None
        if not isinstance(mine, dict) or not all(isinstance(mine.get(key), list) for key in "xy"):
            raise _other_than_leaf(path, f"has no lists x and y for user {str(user)[:40]!r}")
        if not len(mine["x"]) == len(mine["y"]) == number:
            raise _other_than_leaf(
                path, f"has another number of samples of user '{user}' than num_samples says"
            )
        if any(isinstance(each, str) for each in mine["x"]):
            raise UserError(f"{path} holds texts or names of files as samples: only numbers can be read.")
        if not all(isinstance(each, str | int) and not isinstance(each, bool) for each in mine["y"]):
            raise _other_than_leaf(
                path, f"has labels of user '{user}' that are neither whole numbers nor names"
            )
        try:
            x = np.array(mine["x"], np.float64).reshape(len(mine["x"]), -1 if mine["x"] else 1)
        except (ValueError, TypeError, OverflowError) as error:
            raise _other_than_leaf(
                path, f"has samples of user '{user}' that are no rows of numbers"
            ) from error
        found.append((user, x, np.array([str(each)[:100] for each in mine["y"]], np.str_)))
    return found


def _other_than_leaf(path: Path, why: str) -> UserError:
    return UserError(f"{path} {why}: write it as LEAF does.")


def numbered(owners: LabelArray, is_test: npt.NDArray[np.bool_]) -> LabelArray:
    """Return the owners as numbers 0..N-1 in order, those with training samples first, so that no
    training owner is empty."""
    training = np.unique(owners[~is_test])
    others = np.setdiff1d(owners, training)
    number = np.empty(owners.max() + 1, np.int64)
    number[np.concatenate([training, others])] = np.arange(len(training) + len(others))
    return number[owners]


def leaf_files(folder: Path) -> tuple[list[Path], int | None]:
    """List LEAF's files in `folder` or in its data/, training files first; return them and the number of
    training files (None if LEAF has not split them)."""
    for base in (folder, folder / "data"):
        train, test = sorted((base / "train").glob("*.json")), sorted((base / "test").glob("*.json"))
        if train and test:
            return train + test, len(train)
        if train or test:
            raise UserError(f"{base} has only one of train/ and test/: copy both from LEAF.")
        if whole := sorted((base / "all_data").glob("*.json")) or sorted(base.glob("*.json")):
            return whole, None
    raise UserError(f"{folder} has no JSON files in train/ and test/ or in all_data/: copy them from LEAF.")


def every_tenth(owners: LabelArray) -> npt.NDArray[np.bool_]:
    """Mark every tenth sample of each owner."""
    order = np.argsort(owners, kind="stable")
    counts = np.bincount(owners)
    rank = np.empty(len(owners), np.int64)
    rank[order] = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.equal(rank % 10, 9)


def decode(files: list[Path]) -> Arrays:
    """Read FEMNIST's images, labels and owners from all files in order, and the number of each sample's file
    as `origin`."""
    images, labels, owners, origin = [], [], [], []
    known: dict[str, int] = {}
    for number, path in enumerate(files):
        for user, x, y in users_of(path):
            images.append(x)
            labels.append(y)
            owners.append(np.full(len(y), known.setdefault(user, len(known)), np.int64))
            origin.append(np.full(len(y), number, np.int64))
    if not any(len(y) for y in labels):
        raise damaged(files[0], "and the other files hold no samples")
    return {
        "images": np.concatenate(images),
        "labels": np.concatenate(labels),
        "owners": np.concatenate(owners),
        "origin": np.concatenate(origin),
    }


def users_of(path: Path) -> list[tuple[str, npt.NDArray[np.uint8], LabelArray]]:
    """Read the users of a file of FEMNIST, each with images and labels."""
    content = _json(path)
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


def _json(path: Path) -> Any:
    text = read(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
        raise damaged(path, "is not readable JSON (cut short?)") from error
