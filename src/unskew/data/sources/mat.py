"""Digits in Matlab files of the same layout: SVHN (cropped) and SYN."""

from __future__ import annotations

import warnings
import zlib
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from unskew.data.bounded import CHUNK, TooLargeError, most_unpacked
from unskew.data.dataset import Dataset, Split
from unskew.data.images import channel_stats
from unskew.data.sources.files import LabelArray, check_labels, damaged, find_file, to_split
from unskew.data.sources.idx import DIGITS
from unskew.errors import UserError

COMPRESSED = 15
"""The type of a compressed part of a Matlab file."""
LARGE = 64 << 20
"""The size from which on a file is not checked: its parts, of 4 GB at most, cannot be many times as large."""


def svhn(folder: Path, *, extra: bool = False) -> Dataset:
    """Read SVHN. extra: add the 531,131 easier images of extra_32x32.mat to the training split."""
    files = [find_file(folder, "train_32x32.mat")]
    if extra:
        path = folder / "extra_32x32.mat"
        if not path.is_file():
            raise UserError(f"{folder} lacks extra_32x32.mat: run `unskew data fetch svhn_extra`.")
        files.append(path)
    train, test = read_digits(*files), read_digits(find_file(folder, "test_32x32.mat"))
    # The values in common use, of the 73,257 training images (without the extra ones).
    mean, std = (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)
    return Dataset("svhn:extra" if extra else "svhn", train, test, DIGITS, mean, std)


def syn_digits(folder: Path) -> Dataset:
    train, test = (read_digits(find_file(folder, f"synth_{which}_32x32.mat")) for which in ("train", "test"))
    mean, std = channel_stats(train.inputs.numpy())
    return Dataset("syn_digits", train, test, DIGITS, mean, std)


def read_digits(*paths: Path) -> Split:
    """Read files with `X` [32, 32, 3, n] and `y` [n, 1], where 10 stands for the digit 0, as one split."""
    parts = [read_mat(path) for path in paths]
    return to_split(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def check_unpacked(path: Path) -> None:
    """Check that the compressed parts of a Matlab file do not unpack to more than they should. Each part is a
    tag of type and size, followed by its content."""
    packed = path.stat().st_size
    if packed > LARGE:
        return
    with path.open("rb") as file:
        order: Literal["little", "big"] = "little" if file.read(128)[126:] == b"IM" else "big"
        while len(tag := file.read(8)) == 8:
            kind, size = (int.from_bytes(tag[at : at + 4], order) for at in (0, 4))
            if kind != COMPRESSED:
                file.seek(size, 1)
                continue
            unpacking, content, done = zlib.decompressobj(), file.read(size), 0
            while content:
                done += len(unpacking.decompress(content, CHUNK))
                content = unpacking.unconsumed_tail
                if done > most_unpacked(packed):
                    raise TooLargeError(f"unpacks to more than {most_unpacked(packed):,} bytes")


def read_mat(path: Path) -> tuple[npt.NDArray[np.uint8], LabelArray]:
    from scipy.io import loadmat  # slow to import, and few runs need it
    from scipy.io.matlab import MatReadError

    try:
        check_unpacked(path)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # about damage that scipy ignores
            content = loadmat(path, variable_names=("X", "y"))
    except TooLargeError as error:
        raise damaged(path, str(error)) from None
    # What scipy raises on damaged files; NotImplementedError is for Matlab 7.3 files, which these are not.
    except (
        *(MatReadError, NotImplementedError, ValueError, TypeError, KeyError, IndexError),
        *(OSError, EOFError, OverflowError, MemoryError, zlib.error, Warning),
    ) as error:
        raise damaged(path, "is not a readable Matlab file") from error
    x, y = content.get("X"), content.get("y")
    if (
        not isinstance(x, np.ndarray)
        or not isinstance(y, np.ndarray)
        or x.dtype != np.uint8
        or y.dtype.kind not in "buif"
        or x.shape != (32, 32, 3, y.size)
    ):
        raise damaged(path, "does not hold X [32, 32, 3, n] and y [n, 1]")
    return np.ascontiguousarray(x.transpose(3, 2, 0, 1)), check_labels(y, 11, path) % 10
