"""The 8x8 digits that come with scikit-learn."""

from __future__ import annotations

import numpy as np

from unskew.data.dataset import Dataset
from unskew.data.sources.files import to_split
from unskew.data.sources.idx import DIGITS


def digits() -> Dataset:
    """1,797 images, grey levels 0..16 scaled to 0..255; every fifth sample of each class is a test sample."""
    from sklearn.datasets import load_digits  # a second to import, and few runs need it

    content = load_digits()
    images = np.rint(content.images * (255 / 16)).astype(np.uint8)[:, None]
    labels = content.target.astype(np.int64)
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
