"""What all readers of publishers' files share."""

from __future__ import annotations

import bz2
import gzip
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from unskew.data.bounded import TooLargeError, read_all
from unskew.data.dataset import Split
from unskew.errors import UserError

LabelArray = npt.NDArray[np.int64]


def damaged(path: Path, why: str) -> UserError:
    return UserError(f"{path} {why}: delete it, then fetch or copy it again.")


def find_file(folder: Path, *names: str) -> Path:
    """Return the path of the first of `names` that is in `folder`."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise UserError(f"{folder} lacks {' or '.join(names)}: fetch or copy the whole set again.")


def read(path: Path) -> bytes:
    """Read a file, decompressed if its name ends in .gz or .bz2; refuse an empty one."""
    opened: Any = {".gz": gzip.open, ".bz2": bz2.open}.get(path.suffix, open)
    try:
        with opened(path, "rb") as file:
            data = read_all(file, path.stat().st_size)
    except TooLargeError as error:
        raise damaged(path, str(error)) from None
    except (EOFError, zlib.error) as error:
        raise damaged(path, "is cut short or damaged") from error
    except OSError as error:  # also gzip.BadGzipFile and bz2's "Invalid data stream"
        raise damaged(path, f"cannot be read ({error})") from error
    if not data:
        raise damaged(path, "is empty")
    return data


def check_labels(labels: npt.NDArray[Any], classes: int, path: Path, first: int = 0) -> LabelArray:
    """Return labels first..first+classes-1 of a publisher's file as int64 0..classes-1; refuse any others."""
    strange = damaged(path, "has labels that are no numbers of classes")
    if labels.dtype.kind == "f" and not (np.abs(labels) < 1 << 53).all():
        raise strange
    try:
        shifted = labels.astype(np.int64).reshape(-1) - first
    except (OverflowError, ValueError, TypeError):
        raise strange from None
    wrong = np.flatnonzero((shifted < 0) | (shifted >= classes))
    if len(wrong):
        value = int(shifted[wrong[0]]) + first
        raise damaged(path, f"has label {value} at sample {wrong[0]}, outside {first}..{first + classes - 1}")
    return shifted


def to_split(images: npt.NDArray[np.uint8], labels: LabelArray, owners: LabelArray | None = None) -> Split:
    """Make a Split of arrays; it shares their memory if they are contiguous."""
    return Split(
        torch.from_numpy(np.ascontiguousarray(images)),
        torch.from_numpy(labels),
        None if owners is None else torch.from_numpy(owners),
    )
