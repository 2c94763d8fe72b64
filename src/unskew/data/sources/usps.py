"""USPS: 16x16 digits, as one .npz file or as the two LIBSVM files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from unskew.data.bounded import DAMAGED
from unskew.data.bounded import read_npz as read_npz_file
from unskew.data.dataset import Dataset, Split
from unskew.data.sources.files import check_labels, damaged, find_file, read, to_split
from unskew.data.sources.idx import DIGITS


def usps(folder: Path) -> Dataset:
    """Read usps.npz (uint8 x_train, y_train, x_test, y_test) if it is there, else usps.bz2 and usps.t.bz2."""
    path = folder / "usps.npz"
    if path.is_file():
        train, test = read_npz(path)
    else:
        train, test = (read_libsvm(find_file(folder, f"{name}.bz2", name)) for name in ("usps", "usps.t"))
    # Computed over the 7,291 training images.
    return Dataset("usps", train, test, DIGITS, (0.2545,), (0.3846,))


def read_npz(path: Path) -> tuple[Split, Split]:
    try:
        content = read_npz_file(path)
        arrays = {key: content[key] for key in ("x_train", "y_train", "x_test", "y_test")}
    except DAMAGED as error:
        raise damaged(path, "is not an .npz file with x_train, y_train, x_test and y_test") from error
    splits = []
    for which in ("train", "test"):
        x, y = arrays[f"x_{which}"], arrays[f"y_{which}"]
        if x.dtype != np.uint8 or x.shape != (y.size, 16, 16):
            raise damaged(path, f"does not hold uint8 x_{which} [n, 16, 16] and as many labels")
        splits.append(to_split(x[:, None], check_labels(y, 10, path)))
    return splits[0], splits[1]


def read_libsvm(path: Path) -> Split:
    """Read lines "label index:value ...": labels 1..10 for the digits 0..9, indices 1..256, values in -1..1,
    with zeros left out. Pixels are (value + 1) / 2 · 255, rounded."""
    lines = read(path).splitlines()
    values, labels = np.zeros((len(lines), 256)), np.empty(len(lines))
    try:
        for row, line in enumerate(lines):
            label, *pairs = line.split()
            labels[row] = int(label)
            for pair in pairs:
                index, value = pair.split(b":")
                values[row, range(256)[int(index) - 1]] = float(value)
    except (ValueError, IndexError) as error:
        raise damaged(path, f"is not in LIBSVM's format in line {row + 1}") from error
    if not (values.min() >= -1 and values.max() <= 1):
        raise damaged(path, "has values outside -1..1")
    pixels = np.rint((values + 1) / 2 * 255).astype(np.uint8)
    return to_split(pixels.reshape(-1, 1, 16, 16), check_labels(labels, 10, path, first=1))
