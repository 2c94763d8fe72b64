"""The 8x8 digits that come with scikit-learn."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

from unskew.data.dataset import Dataset
from unskew.data.sources.files import damaged, find_file, read, to_split
from unskew.data.sources.idx import DIGITS
from unskew.errors import UserError


def digits() -> Dataset:
    """Read the 1,797 images, with grey levels 0..16 scaled to 0..255. Every fifth sample of each class is a
    test sample."""
    path = find_file(_bundled(), "digits.csv.gz")
    try:
        table = np.loadtxt(read(path).decode().splitlines(), delimiter=",", dtype=np.uint8)
        pixels, labels = table[:, :64].reshape(-1, 1, 8, 8), table[:, 64].astype(np.int64)
    except (ValueError, IndexError) as error:
        raise damaged(path, "is not the table of 64 pixels and a label that scikit-learn ships") from error
    images = np.rint(pixels * (255 / 16)).astype(np.uint8)
    is_test = np.zeros(len(labels), np.bool_)
    for c in range(10):
        is_test[np.flatnonzero(labels == c)[4::5]] = True
    # Computed over the 1,442 training images.
    return Dataset(
        "digits",
        to_split(images[~is_test], labels[~is_test]),
        to_split(images[is_test], labels[is_test]),
        DIGITS,
        (0.3052,),
        (0.3760,),
    )


def _bundled() -> Path:
    """Find the folder of scikit-learn's data without importing scikit-learn, which would slow down every
    start by most of a second."""
    package = importlib.util.find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise UserError("'digits' comes with scikit-learn, which is not installed: pip install scikit-learn.")
    return Path(package.submodule_search_locations[0], "datasets", "data")
